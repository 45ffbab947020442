//! Generated programs over the memory manager, and the judge of what they lose.
//!
//! Every operation is a call that a program may make at any time; the manager must cope. Calls that
//! it refuses are no failure.
//!
//! The oracle of single accesses sees a store that reaches the wrong frame; it does not see one that
//! reaches nothing. So beside it stands [what is expected](super::expected): what memory must hold when a CPU
//! reads it, and when the run is over.

use super::expected::{Behind, Expected, Known, NO_CPU, Place};
use super::program::{CallOp, Flags, Lane, Memory};
use crate::action::MAX_CPUS;
use crate::context;
use crate::coverage::Coverage;
use crate::stage::Stage;
use crate::vm_kernel::{self, FIRST_PROCESS, Parts, VmKernel};
use quell::{Frame, PageSize};
use quell_contract::Clause;
use quell_contract::timeline::Line;
use quell_sim::heap;
use quell_vm::{Backing, Call, ProcessId, Protection};
use std::cell::{Cell, RefCell};

/// A run of a program over the manager.
struct Player<'p> {
    lanes: &'p [Lane<CallOp>],
    flags: Flags,
    expected: RefCell<Expected>,
    begun: Cell<bool>,
    offline: [Cell<bool>; MAX_CPUS],
    flag: [Cell<u8>; MAX_CPUS],
    /// The process whose program each CPU runs while it is in one.
    process: [Cell<Option<ProcessId>>; MAX_CPUS],
    stores: [Cell<u64>; MAX_CPUS],
}

const fn bytes(pages: u64) -> u64 {
    pages << 12
}

impl Player<'_> {
    fn expected<R>(&self, body: impl FnOnce(&mut Expected) -> R) -> R {
        // What the judge knows is no part of the machine.
        heap::off(|| body(&mut self.expected.borrow_mut()))
    }

    fn value(&self, me: usize) -> u64 {
        let stores = self.stores[me].get() + 1;
        self.stores[me].set(stores);
        (me as u64 + 1) << 16 | stores
    }

    fn write(&self, k: &VmKernel<'_>, me: usize, page: u64) {
        let Some(process) = k.vm.current() else {
            return;
        };
        let value = self.value(me);
        let place = self.expected(|expected| {
            expected.acts(process);
            let place = expected.place(process, page);
            let before = place.and_then(|place| expected.places.get(&place).copied());
            if let Some(place) = place {
                expected.writes(place, me, value);
            }
            place.map(|place| (place, before))
        });
        if !k.write(page, value)
            && let Some((place, before)) = place
        {
            // It was refused, and has changed nothing.
            self.expected(|expected| match (expected.places.get(&place), before) {
                (Some(Known::Written(..)), Some(before)) => {
                    expected.places.insert(place, before);
                }
                (Some(Known::Written(..)), None) => {
                    expected.places.remove(&place);
                }
                _ => {}
            });
        }
    }

    fn read(&self, k: &VmKernel<'_>, me: usize, page: u64) {
        let Some(process) = k.vm.current() else {
            return;
        };
        let Some(held) = k.read(page) else { return };
        let known = self.expected(|expected| {
            let place = expected.place(process, page)?;
            expected.places.get(&place).copied()
        });
        if let Some(Known::Written(writer, value)) = known
            && (writer == me || writer == NO_CPU)
            && value != held
        {
            let account = format!(
                "CPU {me} reads {held:#x} from page {page:#x}, where {value:#x} was written last"
            );
            k.hw.fail(Clause::C2, None::<Frame>, account);
        }
    }

    /// A call that changes what lies behind a range.
    fn change(&self, k: &VmKernel<'_>, page: u64, pages: u64, call: Call, anew: Option<Behind>) {
        let Some(process) = k.vm.current() else {
            return;
        };
        self.expected(|expected| expected.changes(process, page, pages, anew));
        let done = k.try_call(call).is_ok();
        if let (true, false, Some(anew)) = (done, self.begun.get(), anew) {
            self.expected(|expected| {
                expected.settles(process, page, pages, anew);
                if let Behind::Shared(file, first) = anew {
                    for at in first..first + pages {
                        expected.places.remove(&Place::File(file, at));
                    }
                }
            });
        }
    }

    /// The CPU is back in its program, if it runs one.
    fn back_in_program(&self, k: &VmKernel<'_>, me: usize) {
        let process = if self.offline[me].get() {
            None
        } else {
            context::quietly(|| k.vm.current())
        };
        self.process[me].set(process);
        if process.is_some() {
            context::with(|core| core.enter_program(me));
        }
    }

    /// The manager says what programs could load through translations left behind.
    fn compare_all(&self, k: &VmKernel<'_>) {
        for cpu in 0..self.lanes.len() {
            let Some(process) = self.process[cpu].get() else {
                continue;
            };
            for stale in context::with(|core| core.stale_loads(cpu)) {
                context::as_cpu(cpu, || {
                    k.compare(cpu, process, stale.page, (stale.frame, stale.held));
                });
            }
        }
    }

    fn perform(&self, k: &VmKernel<'_>, me: usize, op: CallOp) {
        // A CPU that has left still tells and waits: else those that wait for it would do so for ever.
        let there = matches!(
            op,
            CallOp::Online | CallOp::Tell { .. } | CallOp::Wait { .. }
        );
        if self.offline[me].get() && !there {
            return;
        }
        let refused = |call: Call| {
            let _ = k.try_call(call);
        };
        match op {
            CallOp::Read { page } => self.read(k, me, page),
            CallOp::Write { page } => self.write(k, me, page),
            CallOp::Fetch { page } => {
                k.fetch(page);
            }
            CallOp::Fill { page, pages } => {
                for page in page..page + pages {
                    self.write(k, me, page);
                    context::come_further();
                }
            }
            CallOp::Map { page, pages, large } => {
                let size = if large {
                    PageSize::Large
                } else {
                    PageSize::Base
                };
                let call = Call::Map {
                    address: Some(bytes(page)),
                    bytes: bytes(pages),
                    protection: Protection::READ_WRITE,
                    backing: Backing::Anonymous { page: size },
                };
                self.change(k, page, pages, call, Some(Behind::Memory));
            }
            CallOp::MapFile {
                page,
                pages,
                file,
                from,
                shared,
                write,
            } => {
                let offset = bytes(from);
                let (backing, behind) = if shared {
                    (Backing::Shared { file, offset }, Behind::Shared(file, from))
                } else {
                    (Backing::Private { file, offset }, Behind::Private(file))
                };
                let call = Call::Map {
                    address: Some(bytes(page)),
                    bytes: bytes(pages),
                    protection: if write {
                        Protection::READ_WRITE
                    } else {
                        Protection::READ
                    },
                    backing,
                };
                self.change(k, page, pages, call, Some(behind));
            }
            CallOp::Unmap { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                self.change(k, page, pages, Call::Unmap { address, bytes }, None);
            }
            CallOp::Discard { page, pages } => {
                let Some(process) = k.vm.current() else {
                    return;
                };
                let (address, bytes) = (bytes(page), bytes(pages));
                self.expected(|expected| {
                    for at in page..page + pages {
                        expected.forget(Place::Page(process, at));
                    }
                });
                refused(Call::Discard { address, bytes });
            }
            CallOp::Protect {
                page,
                pages,
                rights,
            } => refused(Call::Protect {
                address: bytes(page),
                bytes: bytes(pages),
                protection: match rights {
                    0 => Protection::NONE,
                    1 => Protection::READ,
                    2 => Protection::READ_WRITE,
                    3 => Protection::READ_EXECUTE,
                    _ => Protection {
                        execute: true,
                        ..Protection::READ_WRITE
                    },
                },
            }),
            CallOp::PageOut { page, pages } => refused(Call::PageOut {
                address: bytes(page),
                bytes: bytes(pages),
            }),
            CallOp::Remap { page, pages, to } => {
                let Some(process) = k.vm.current() else {
                    return;
                };
                self.expected(|expected| expected.changes(process, to, pages, None));
                let call = Call::Remap {
                    address: bytes(page),
                    bytes: bytes(pages),
                    to: Some(bytes(to)),
                };
                self.change(k, page, pages, call, None);
            }
            CallOp::Collapse { page } => refused(Call::Collapse {
                address: bytes(page),
            }),
            CallOp::Spawn => refused(Call::Spawn),
            CallOp::Fork => {
                let parent = k.vm.current();
                if let (Ok(child), Some(parent)) = (k.try_call(Call::Fork), parent) {
                    self.expected(|expected| expected.fork(parent, child as ProcessId));
                }
            }
            CallOp::Enter { process } => refused(Call::Enter { process }),
            CallOp::Exit { process } => refused(Call::Exit { process }),
            CallOp::Create { pages } => refused(Call::Create {
                bytes: bytes(pages),
            }),
            CallOp::WriteFile { file, page } => {
                let value = self.value(me);
                let place = Place::File(file, page);
                self.expected(|expected| {
                    expected.lengthens(file, page);
                    expected.writes(place, me, value);
                });
                let call = Call::Write {
                    file,
                    offset: bytes(page),
                    value,
                };
                if k.try_call(call).is_err() {
                    self.expected(|expected| expected.forget(place));
                }
            }
            CallOp::ReadFile { file, page } => refused(Call::Read {
                file,
                offset: bytes(page),
            }),
            CallOp::Truncate { file, pages } => {
                self.expected(|expected| expected.cut(file, pages));
                let call = Call::Truncate {
                    file,
                    bytes: bytes(pages),
                };
                if k.try_call(call).is_ok() {
                    k.has_truncated(file, pages);
                }
                self.expected(|expected| expected.has_cut(file));
            }
            CallOp::Sync { file } => refused(Call::Sync { file }),
            CallOp::Migrate { page, pages, node } => refused(Call::Migrate {
                address: bytes(page),
                bytes: bytes(pages),
                node,
            }),
            CallOp::Demote { pages } => refused(Call::Demote { pages }),
            CallOp::Reclaim { pages } => refused(Call::Reclaim { pages }),
            CallOp::Idle => refused(Call::Idle { until: 0 }),
            CallOp::Nothing => refused(Call::Nothing),
            CallOp::Offline => {
                k.offline();
                self.offline[me].set(true);
            }
            CallOp::Online => {
                if self.offline[me].replace(false) {
                    k.online();
                    refused(Call::Enter {
                        process: FIRST_PROCESS,
                    });
                }
            }
            CallOp::Tell { flag } => {
                if self.begun.get() {
                    k.tell(flag.into());
                    self.flag[me].set(self.flag[me].get().max(flag));
                }
            }
            CallOp::Wait { flag } => {
                if self.begun.get() && self.flags.counts(me, flag, self.flag[me].get()) {
                    self.flag[me].set(flag);
                    k.wait_for(flag.into());
                }
            }
        }
    }

    /// After the run: bytes that no CPU has changed must still be there.
    fn after(&self, k: &VmKernel<'_>) {
        let known: Vec<_> = self.expected(|expected| {
            let mut known: Vec<_> = expected.places.iter().map(|(p, k)| (*p, *k)).collect();
            known.sort_unstable_by_key(|(place, _)| match *place {
                Place::Page(process, page) => (0, process, page),
                Place::File(file, page) => (1, file, page),
            });
            known
        });
        for (place, known) in known {
            let Known::Written(_, value) = known else {
                continue;
            };
            let held = match place {
                Place::Page(process, page) => k.holds(process, page),
                Place::File(file, page) => k.read_file(file, page),
            };
            if let Some(held) = held
                && held != value
            {
                let account =
                    format!("{place:?} holds {held:#x}, where {value:#x} was written last");
                k.hw.fail(Clause::C2, None, account);
            }
        }
    }
}

/// Runs a program over the manager.
pub(super) fn perform(
    memory: &Memory,
    lanes: &[Lane<CallOp>],
    flags: Flags,
    stage: Stage<'_>,
    coverage: &mut Coverage,
) -> Vec<Line> {
    let player = Player {
        lanes,
        flags,
        expected: RefCell::default(),
        begun: Cell::new(false),
        offline: Default::default(),
        flag: Default::default(),
        process: Default::default(),
        stores: Default::default(),
    };
    let parts = Parts {
        start: &|k, cpu| {
            let start = || {
                for &op in &player.lanes[cpu].start {
                    player.perform(k, cpu, op);
                }
            };
            context::faultlessly(|| k.hw.faultlessly(start));
        },
        body: &|k, cpu| {
            if !player.begun.replace(true) {
                player.expected(Expected::begins);
            }
            player.back_in_program(k, cpu);
            for &op in &player.lanes[cpu].run {
                player.perform(k, cpu, op);
                context::come_further();
                player.back_in_program(k, cpu);
                player.compare_all(k);
            }
        },
        after: &|k| player.after(k),
        repeats: false,
    };
    let amounts = [memory.fast, memory.slow];
    vm_kernel::perform(amounts, memory.ledger.into(), &parts, stage, coverage)
}

/// The frame after the last.
pub(super) fn frames(memory: &Memory) -> usize {
    vm_kernel::frames([memory.fast, memory.slow])
}
