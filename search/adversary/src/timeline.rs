//! Records one run, step by step.

use crate::action::Op;
use crate::hardware::Adversary;
use crate::machine::Interruption;
use crate::word::AdversaryWord;
use quell::{AddressSpace, CpuId, LedgerEntry, PerCpuData};
use quell_vm::contract::timeline::{Line, Shape};

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RunEvent {
    Step(Op),
    Read(u64),
    /// The value read next is an earlier value of its word.
    Early,
    Wrote(u64),
    Visible(*const AdversaryWord, u64),
    Landed(u32, u64),
    Interrupted(Interruption),
    Resumed(Interruption),
    Said(String),
    Broke(String),
}

/// One line of a run's record.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) step: u32,
    pub(crate) cpu: usize,
    pub(crate) what: RunEvent,
}

/// A function that names the word at an address.
pub type WordNames<'n> = dyn Fn(usize) -> Option<String> + 'n;

/// Renders a record as text, one line per step.
pub(crate) fn lines(entries: &[Entry], names: &WordNames<'_>) -> Vec<Line> {
    let name = |word: *const AdversaryWord| {
        names(word as usize).unwrap_or_else(|| format!("{:#x}", word as usize & 0xf_ffff))
    };
    let mut lines: Vec<Line> = Vec::new();
    for entry in entries {
        let text = match &entry.what {
            RunEvent::Step(op) => match *op {
                Op::Load(word, order) => format!("load {} ({order:?})", name(word)),
                Op::Store(word, order) => format!("store {} ({order:?})", name(word)),
                Op::Modify(word, order) => format!("modify {} ({order:?})", name(word)),
                Op::Touch { place, writes } => {
                    let how = if writes { "write" } else { "read" };
                    format!("{how} shared state at {place:#x}")
                }
                Op::Fence => "fence".into(),
                Op::Barrier => "barrier: table writes reach walkers".into(),
                Op::Complete => "barrier: own broadcasts complete".into(),
                Op::Relax => "wait: poll again".into(),
                Op::Invalidate => "invalidate".into(),
                Op::Root => "root register".into(),
                Op::Broadcast => "broadcast an invalidation".into(),
                Op::Send(targets) => {
                    let cpus: Vec<_> = (0..8)
                        .filter(|cpu| targets & 1 << cpu != 0)
                        .map(|cpu| format!("cpu {cpu}"))
                        .collect();
                    format!("interrupt {}", cpus.join(", "))
                }
                Op::Content { frame, store } => {
                    format!("{} frame {frame:#x}", if store { "write" } else { "read" })
                }
                Op::Start | Op::Mask | Op::Note | Op::Halt | Op::Park | Op::Access(_) => {
                    continue;
                }
            },
            RunEvent::Read(_) | RunEvent::Wrote(_) | RunEvent::Early => {
                let more = match entry.what {
                    RunEvent::Read(value) => format!(" -> {value:#x}"),
                    RunEvent::Wrote(value) => format!(" = {value:#x}"),
                    _ => ", executed early".into(),
                };
                if let Some(last) = lines.last_mut()
                    && last.cpu.index() == entry.cpu
                {
                    last.text.push_str(&more);
                }
                continue;
            }
            RunEvent::Visible(word, value) => {
                format!("~ {} = {value:#x} becomes visible", name(*word))
            }
            RunEvent::Landed(frame, value) => format!("~ {value:#x} lands in frame {frame:#x}"),
            RunEvent::Interrupted(by) | RunEvent::Resumed(by) => match by {
                Interruption::Interrupt => "interrupt".into(),
                Interruption::Nmi => "NMI".into(),
                Interruption::Preemption => "preempted".into(),
            },
            RunEvent::Said(text) | RunEvent::Broke(text) => text.clone(),
        };
        let shape = match entry.what {
            RunEvent::Interrupted(_) => Shape::Begins,
            RunEvent::Resumed(_) => Shape::Ends,
            RunEvent::Broke(_) => Shape::Breaks,
            _ => Shape::Lasts(0),
        };
        lines.push(Line { cpu: CpuId(entry.cpu as u16), at: entry.step.into(), shape, text });
    }
    lines
}

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
    pub(crate) fn of_cpus(self, cpus: &[PerCpuData<'_, Adversary>]) -> Option<String> {
        let index = cpus.iter().position(|cpu| self.lies_in(cpu))?;
        let field = cpus[index].word_name(self.0).unwrap_or("?");
        Some(format!("cpu{index}.{field}"))
    }

    /// Names a word of an address space.
    pub(crate) fn of_spaces<'s>(
        self,
        mut spaces: impl Iterator<Item = (String, &'s AddressSpace<Adversary>)>,
    ) -> Option<String> {
        spaces.find_map(|(name, space)| Some(format!("{name}.{}", space.word_name(self.0)?)))
    }

    /// Names a word of the ledger or of the engine itself.
    pub(crate) fn of_engine<E>(
        self,
        engine: &E,
        ledger: &[LedgerEntry<Adversary>],
    ) -> Option<String> {
        if let Some(index) = ledger.iter().position(|entry| self.lies_in(entry)) {
            return Some(format!("ledger[{index}]"));
        }
        Some(format!("engine+{:#x}", self.offset_in(engine)?))
    }
}
