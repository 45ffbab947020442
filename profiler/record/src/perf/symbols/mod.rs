//! The names of the functions at addresses: of the kernel, of ELF files, of code that was compiled at run time.
//!
//! A file is looked into when the first address in it is asked for, and its symbols are kept. One that cannot be read,
//! or that is not what it claims to be, costs its names and a note ([`Symbols::notes`]), nothing else: the address
//! stands for itself then.
//!
//! Not guaranteed: that a file is still the one that ran. One that was replaced since gives the new one's names, or
//! none.

mod elf;
mod jit;
mod kernel;
mod table;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use table::Table;

/// Finds names, and keeps what it has read.
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
    /// The function of the running kernel at this address.
    pub fn kernel(&mut self, address: u64) -> Option<Arc<str>> {
        let notes = &mut self.notes;
        let table = self.kernel.get_or_insert_with(|| match kernel::read() {
            Ok(table) => Some(table),
            Err(why) => {
                notes.push(format!("the kernel's functions have no names: {why}"));
                None
            }
        });
        table.as_mut()?.name(address)
    }

    /// Where the kernel's function of this name begins.
    pub fn address(&mut self, name: &str) -> Option<u64> {
        self.kernel(0);
        self.kernel.as_ref()?.as_ref()?.address(name)
    }

    /// The function at this offset of an ELF file. `pid` is a process that has it mapped: where that still runs, the
    /// file is looked for as it sees it, in its own root.
    pub fn file(&mut self, path: &Arc<str>, pid: u32, offset: u64) -> Option<Arc<str>> {
        if !self.files.contains_key(path) {
            let read = elf::read(&seen(path, pid));
            match &read {
                Err(why) => self
                    .notes
                    .push(format!("{path}: its functions have no names: {why}")),
                Ok(functions) if functions.is_empty() => self.stripped.push(path.clone()),
                Ok(_) => {}
            }
            self.files.insert(path.clone(), read.ok());
        }
        self.files.get_mut(path)?.as_mut()?.name(offset)
    }

    /// The function that a process compiled at run time to this address, by the map that it or its virtual machine
    /// keeps for profilers: `/tmp/perf-PID.map`. Code that took the place of other code is found under the name that
    /// stands last.
    pub fn compiled(&mut self, pid: u32, address: u64) -> Option<Arc<str>> {
        let notes = &mut self.notes;
        let table = self
            .compiled
            .entry(pid)
            .or_insert_with(|| match jit::read(pid) {
                Ok(map) => {
                    if map.unreadable > 0 {
                        let (lines, path) = (map.unreadable, map.path.display());
                        notes.push(format!(
                            "{path}: {lines} lines are not understood, the rest is used"
                        ));
                    }
                    Some(map.table)
                }
                // Most processes compile nothing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => {
                    notes.push(format!(
                        "code that process {pid} compiled has no names: {error}"
                    ));
                    None
                }
            });
        table.as_mut()?.name(address)
    }

    /// What could not be read, in sentences; each once.
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
                "functions of {first}{others} have no names: they were stripped, and no debug files are installed for them"
            ));
        }
        notes
    }
}

/// Where a file is that `pid` has mapped: as it sees it in its own root, if it still runs, or as we do.
pub(crate) fn seen(path: &str, pid: u32) -> PathBuf {
    let seen = PathBuf::from(format!("/proc/{pid}/root{path}"));
    if seen.exists() { seen } else { path.into() }
}

/// Whether a mapping's name is that of a file with symbols, rather than what the kernel calls memory without one.
pub(crate) fn is_file(module: &str) -> bool {
    module.starts_with('/')
        && !module.starts_with("//")
        && !module.starts_with("/memfd:")
        && !module.starts_with("/dev/")
}
