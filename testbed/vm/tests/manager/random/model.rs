//! The model: the values that a program should read, as plain vectors.

use super::program::Kind;
use quell_vm::{Fault, Protection};
use std::collections::BTreeMap;

/// A mapped page of the model.
#[derive(Clone, Copy)]
pub struct ModelPage {
    pub kind: Kind,
    pub protection: Protection,
    /// The page's own value, if it has one: anonymous, or a private copy.
    pub own: Option<u64>,
}

#[derive(Clone, Default)]
pub struct ModelProcess {
    pub pages: BTreeMap<u64, ModelPage>,
}

#[derive(Default)]
pub struct Model {
    pub files: Vec<Vec<u64>>,
    pub processes: BTreeMap<u32, ModelProcess>,
}

impl Model {
    /// Returns the result of a load of the page.
    pub fn load(&self, process: u32, at: u64) -> Result<u64, Fault> {
        let page = self.processes[&process].pages.get(&at).ok_or(Fault::NotMapped)?;
        if page.protection == Protection::NONE {
            return Err(Fault::Forbidden);
        }
        match (page.own, page.kind) {
            (Some(value), _) => Ok(value),
            (None, Kind::Zeros) => Ok(0),
            (None, Kind::Shared(file, index) | Kind::Private(file, index)) => {
                self.files[file as usize].get(index as usize).copied().ok_or(Fault::BeyondEnd)
            }
        }
    }

    pub fn store(&mut self, process: u32, at: u64, value: u64) -> Result<(), Fault> {
        let page = self.processes.get_mut(&process).unwrap().pages.get_mut(&at);
        let page = page.ok_or(Fault::NotMapped)?;
        if !page.protection.write {
            return Err(Fault::Forbidden);
        }
        match page.kind {
            Kind::Zeros => page.own = Some(value),
            Kind::Shared(file, index) | Kind::Private(file, index) => {
                let exists = (index as usize) < self.files[file as usize].len();
                match page.kind {
                    Kind::Private(..) if page.own.is_some() || exists => page.own = Some(value),
                    Kind::Shared(..) if exists => self.files[file as usize][index as usize] = value,
                    _ => return Err(Fault::BeyondEnd),
                }
            }
        }
        Ok(())
    }
}
