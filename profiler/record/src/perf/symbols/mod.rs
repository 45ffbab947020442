//! Looks up function names by address: of the kernel, of files, and of compiled code.
//!
//! We read a file at the first address in it, and keep its symbols. If a file can't be read or isn't valid, its
//! functions have no names, and a note explains why ([`Symbols::notes`]). The report then shows addresses.
//!
//! We don't check that a file is still the one that ran. If it was replaced, names may be wrong or missing.

mod elf;
mod table;
mod text;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use elf::{Segments, segments};
use table::Table;

/// Looks up names, and caches the symbols that it has read.
#[derive(Default)]
pub struct Symbols {
    kernel: Option<Option<Table>>,
    files: HashMap<Arc<str>, Option<elf::Functions>>,
    compiled: HashMap<u32, Option<Table>>,
    notes: Vec<String>,
    /// Files without symbols.
    stripped: Vec<Arc<str>>,
}

impl Symbols {
    /// Returns the function of the running kernel at this address.
    pub fn kernel(&mut self, address: u64) -> Option<Arc<str>> {
        let notes = &mut self.notes;
        let table = self.kernel.get_or_insert_with(|| match text::kernel() {
            Ok(table) => Some(table),
            Err(why) => {
                notes.push(format!("No names for the kernel's functions: {why}."));
                None
            }
        });
        table.as_mut()?.name(address)
    }

    /// Returns the start address of the kernel's function of this name.
    pub fn address(&mut self, name: &str) -> Option<u64> {
        self.kernel(0);
        self.kernel.as_ref()?.as_ref()?.address(name)
    }

    /// Returns the function at this offset of an ELF file.
    ///
    /// `pid` is a process that has it mapped. While that process runs, we search for the file in its root directory.
    pub fn file(&mut self, path: &Arc<str>, pid: u32, offset: u64) -> Option<Arc<str>> {
        if !self.files.contains_key(path) {
            let read = elf::read(&seen(path, pid));
            match &read {
                Err(why) => self.notes.push(format!("No names for functions of {path}: {why}.")),
                Ok(functions) if functions.is_empty() => self.stripped.push(path.clone()),
                Ok(_) => {}
            }
            self.files.insert(path.clone(), read.ok());
        }
        self.files.get_mut(path)?.as_mut()?.name(offset)
    }

    /// Returns the function that a process compiled at run time to this address.
    ///
    /// The name comes from the map that the process writes for profilers: `/tmp/perf-PID.map`. If code replaced other
    /// code, the name that was written last counts.
    pub fn compiled(&mut self, pid: u32, address: u64) -> Option<Arc<str>> {
        let notes = &mut self.notes;
        let table = self.compiled.entry(pid).or_insert_with(|| match text::compiled(pid) {
            Ok((table, path, unreadable)) => {
                if unreadable > 0 {
                    let path = path.display();
                    notes.push(format!(
                        "{path}: {unreadable} lines were not understood and are left out."
                    ));
                }
                Some(table)
            }
            // Most processes compile no code at run time.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                notes.push(format!("No names for code that process {pid} compiled: {error}."));
                None
            }
        });
        table.as_mut()?.name(address)
    }

    /// Returns notes on files that couldn't be read, each once.
    pub fn notes(&mut self) -> Vec<String> {
        let stripped = std::mem::take(&mut self.stripped);
        let mut notes = std::mem::take(&mut self.notes);
        if let Some((first, others)) = stripped.split_first() {
            let others = match others.len() {
                0 => String::new(),
                1 => " and 1 other file".to_owned(),
                more => format!(" and {more} other files"),
            };
            notes.push(format!(
                "No names for functions of {first}{others}: symbols are stripped, and no debug files are installed."
            ));
        }
        notes
    }
}

/// Returns the path of a mapped file, in the root directory of `pid`. If that has ended, uses our root directory.
pub(crate) fn seen(path: &str, pid: u32) -> PathBuf {
    let seen = PathBuf::from(format!("/proc/{pid}/root{path}"));
    if seen.exists() { seen } else { path.into() }
}

/// Returns whether a mapping's name is that of a file with symbols.
///
/// Otherwise it's the kernel's name for memory without a file.
pub(crate) fn is_file(module: &str) -> bool {
    module.starts_with('/')
        && !module.starts_with("//")
        && !module.starts_with("/memfd:")
        && !module.starts_with("/dev/")
}
