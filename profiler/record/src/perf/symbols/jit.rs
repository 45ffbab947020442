//! Reads the functions that a process compiled at run time. The process writes a map of them for profilers.
//!
//! Each line has a start and a size in hexadecimal digits, and a name up to the end of the line.

use std::io;
use std::path::{Path, PathBuf};

use super::table::Table;

/// The largest part of a map to read, in bytes. Its writer may write anything.
const MOST_BYTES: u64 = 256 << 20;

/// A map that was read.
pub(super) struct Map {
    pub(super) path: PathBuf,
    pub(super) table: Table,
    /// The number of lines that don't have this form.
    pub(super) unreadable: usize,
}

/// Reads the map of a process.
///
/// We read it from the process's own `/tmp`, by its number in its own namespace. If that file is missing, we read ours.
pub(super) fn read(pid: u32) -> io::Result<Map> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    let inner: u32 = inner.unwrap_or(pid);
    let seen = PathBuf::from(format!("/proc/{pid}/root/tmp/perf-{inner}.map"));
    let path = if seen.exists() { seen } else { format!("/tmp/perf-{pid}.map").into() };
    read_from(&path)
}

fn read_from(path: &Path) -> io::Result<Map> {
    use std::io::Read;
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        let what = format!("{} is not a regular file", path.display());
        return Err(io::Error::other(what));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let (table, unreadable) = parse(&String::from_utf8_lossy(&bytes));
    Ok(Map { path: path.to_owned(), table, unreadable })
}

/// Parses the functions in a text. Also returns the number of unreadable lines.
fn parse(text: &str) -> (Table, usize) {
    let mut table = Table::default();
    let mut unreadable = 0;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.splitn(3, ' ');
        let number =
            |word: Option<&str>| u64::from_str_radix(word?.trim_start_matches("0x"), 16).ok();
        match (number(words.next()), number(words.next()), words.next()) {
            (Some(start), Some(size @ 1..), Some(name)) => table.add(start, size, name),
            _ => unreadable += 1,
        }
    }
    (table, unreadable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_that_are_none_are_counted() {
        let (mut table, unreadable) =
            parse("7f00 20 add(int, int)\n7f20 nonsense\n7f40 10 second\n");
        assert_eq!(table.name(0x7f10).as_deref(), Some("add(int, int)"));
        assert_eq!(table.name(0x7f4f).as_deref(), Some("second"));
        assert_eq!(table.name(0x7f30), None);
        assert_eq!(unreadable, 1);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9a-fx]{0,17} [0-9a-f]{0,17} ?\\PC{0,8}\n){0,8}", address: u64) {
            parse(&text).0.name(address);
        }
    }
}
