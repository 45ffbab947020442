//! Reads functions from text: the kernel's, and those that a process compiled at run time.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use super::table::Table;

/// Reads the kernel's functions from `/proc/kallsyms`. The error is a sentence.
pub(super) fn kernel() -> Result<Table, String> {
    let text = std::fs::read_to_string("/proc/kallsyms")
        .map_err(|error| format!("/proc/kallsyms: {error}"))?;
    let table = kallsyms(&text);
    (table.len() > 0).then_some(table).ok_or_else(|| {
        "/proc/kallsyms shows no addresses; root sees them, unless kernel.kptr_restrict is 2"
            .to_owned()
    })
}

/// Parses lines with an address, a kind and a name. The kernel may hide addresses: then they are 0.
fn kallsyms(text: &str) -> Table {
    let mut table = Table::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        if let (Some(address @ 1..), Some("t" | "T" | "w" | "W"), Some(name)) =
            (address, words.next(), words.next())
        {
            table.add(address, 0, name);
        }
    }
    table
}

/// The largest part of a map to read, in bytes. Its writer may write anything.
const MOST_BYTES: u64 = 256 << 20;

/// Reads the map of functions that a process compiled, which it writes for profilers. Also returns the map's path, and
/// the number of its lines that have another form.
///
/// We read it from the process's own `/tmp`, by its number in its own namespace. If that file is missing, we read ours.
pub(super) fn compiled(pid: u32) -> io::Result<(Table, PathBuf, usize)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    let inner: u32 = inner.unwrap_or(pid);
    let seen = PathBuf::from(format!("/proc/{pid}/root/tmp/perf-{inner}.map"));
    let path = if seen.exists() { seen } else { format!("/tmp/perf-{pid}.map").into() };
    let file = File::open(&path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let (table, unreadable) = map(&String::from_utf8_lossy(&bytes));
    Ok((table, path, unreadable))
}

/// Parses lines with a start and a size in hexadecimal digits, and a name up to the end of the line. Also returns the
/// number of other lines.
fn map(text: &str) -> (Table, usize) {
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
    fn functions_are_found_and_other_lines_are_counted() {
        let text = "ffffffff81000000 T _text\nffffffff81000100 d data\nffffffff81000200 t flush_tlb_func\t[mod]\n";
        let mut table = kallsyms(text);
        assert_eq!(table.name(0xffff_ffff_8100_0150).as_deref(), Some("_text"));
        assert_eq!(table.name(0xffff_ffff_8100_0204).as_deref(), Some("flush_tlb_func"));
        assert_eq!(kallsyms("0000000000000000 T _text\n").len(), 0);
        let (mut table, unreadable) = map("7f00 20 add(int, int)\n7f20 nonsense\n7f40 10 second\n");
        assert_eq!(table.name(0x7f10).as_deref(), Some("add(int, int)"));
        assert_eq!(table.name(0x7f4f).as_deref(), Some("second"));
        assert_eq!((table.name(0x7f30), unreadable), (None, 1));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9a-fx]{0,17} [0-9a-fT]{0,17} ?\\PC{0,8}\n){0,8}", address: u64) {
            map(&text).0.name(address);
            kallsyms(&text).name(address);
        }
    }
}
