//! Names of words in timelines: a kernel under the adversary maps addresses to names.

use crate::stage::Hw;
use quell::{LedgerEntry, PerCpuData};

/// The address of a word to name.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) usize);

impl Address {
    /// Returns whether the word is in `object`.
    pub(crate) fn lies_in<T: ?Sized>(self, object: &T) -> bool {
        self.offset_in(object).is_some()
    }

    /// Returns the word's offset in `object` in bytes.
    pub(crate) fn offset_in<T: ?Sized>(self, object: &T) -> Option<usize> {
        let start = std::ptr::from_ref(object).addr();
        let offset = self.0.checked_sub(start)?;
        (offset < size_of_val(object)).then_some(offset)
    }

    /// Returns `what` and the number of the object in `list` that contains the word.
    pub(crate) fn numbered<T>(self, what: &str, list: &[T]) -> Option<String> {
        let index = list.iter().position(|one| self.lies_in(one))?;
        Some(format!("{what} {index}"))
    }

    /// Names a word of the engine's per-CPU state.
    pub(crate) fn of_cpus(self, cpus: &[PerCpuData<'_, Hw>]) -> Option<String> {
        let index = cpus.iter().position(|cpu| self.lies_in(cpu))?;
        let field = cpus[index].word_name(self.0).unwrap_or("?");
        Some(format!("cpu{index}.{field}"))
    }

    /// Names a word of the ledger or of the engine itself.
    pub(crate) fn of_engine<E>(self, engine: &E, ledger: &[LedgerEntry<Hw>]) -> Option<String> {
        if let Some(index) = ledger.iter().position(|entry| self.lies_in(entry)) {
            return Some(format!("ledger[{index}]"));
        }
        Some(format!("engine+{:#x}", self.offset_in(engine)?))
    }
}
