//! Generated programs over the memory manager.
//!
//! Every operation is a call that a program may make at any time, so the manager must handle it. A call that it refuses
//! for a reason is no failure.
//!
//! The [abstract machine](quell_vm::contract::abstract_machine) judges the calls. After each operation of a CPU, it
//! also judges everything that the programs of the other CPUs could access then.

use super::program::{CallOp, CpuProgram, Flags, Memory};
use crate::action::MAX_CPUS;
use crate::context;
use crate::coverage::Coverage;
use crate::op::AccessKind;
use crate::stage::Stage;
use crate::vm_kernel::{self, FIRST_PROCESS, ProgramParts, VmKernel};
use quell::PageSize;
use quell_vm::contract::timeline::Line;
use quell_vm::{Backing, Call, ProcessId, Protection};
use std::cell::Cell;

/// A run of a program over the manager.
struct ProgramPlayer<'p> {
    lanes: &'p [CpuProgram<CallOp>],
    flags: Flags,
    begun: Cell<bool>,
    offline: [Cell<bool>; MAX_CPUS],
    flag: [Cell<u8>; MAX_CPUS],
    /// The process of each CPU that is in a program.
    process: [Cell<Option<ProcessId>>; MAX_CPUS],
    stores: [Cell<u64>; MAX_CPUS],
}

const fn bytes(pages: u64) -> u64 {
    pages << 12
}

/// Returns the protection for this number of a program.
fn protection(rights: u8) -> Protection {
    match rights {
        0 => Protection::NONE,
        1 => Protection::READ,
        2 => Protection::READ_WRITE,
        3 => Protection::READ_EXECUTE,
        _ => Protection { execute: true, ..Protection::READ_WRITE },
    }
}

impl ProgramPlayer<'_> {
    fn value(&self, me: usize) -> u64 {
        let stores = self.stores[me].get() + 1;
        self.stores[me].set(stores);
        (me as u64 + 1) << 16 | stores
    }

    fn write(&self, k: &VmKernel<'_>, me: usize, page: u64, word: u8) {
        let at = (page, word.into());
        let _ = k.attempt(at, AccessKind::Store, self.value(me));
    }

    /// Records that the CPU is back in its program, if it runs one.
    fn back_in_program(&self, k: &VmKernel<'_>, me: usize) {
        let process =
            if self.offline[me].get() { None } else { context::quietly(|| k.vm.current()) };
        self.process[me].set(process);
        if process.is_some() {
            context::with(|core| core.enter_program(me));
        }
    }

    /// Judges everything that the programs of all other CPUs could access now.
    fn judge_programs(&self, k: &VmKernel<'_>, me: usize) {
        for cpu in (0..self.lanes.len()).filter(|&cpu| cpu != me) {
            if let Some(process) = self.process[cpu].get()
                && context::with(|core| core.in_program(cpu))
            {
                k.judge_program(cpu, process);
            }
        }
    }

    /// Makes a call and ignores its result.
    fn may_call(k: &VmKernel<'_>, call: Call) {
        let _ = k.try_call(call);
    }

    fn perform(&self, k: &VmKernel<'_>, me: usize, op: CallOp) {
        // An offline CPU still signals and waits. Otherwise others would wait for it for ever.
        let there = matches!(op, CallOp::Online | CallOp::Tell { .. } | CallOp::Wait { .. });
        if self.offline[me].get() && !there {
            return;
        }
        match op {
            CallOp::Read { page, word } => {
                let _ = k.attempt((page, word.into()), AccessKind::Load, 0);
            }
            CallOp::Write { page, word } => self.write(k, me, page, word),
            CallOp::Fetch { page } => {
                k.fetch(page);
            }
            CallOp::Fill { page, pages } => {
                for page in page..page + pages {
                    self.write(k, me, page, 0);
                    context::come_further();
                }
            }
            CallOp::Map { page, pages, large } => {
                let page_size = match large {
                    true => PageSize::Large,
                    false => PageSize::Base,
                };
                let backing = Backing::Anonymous { page: page_size };
                Self::map(k, (page, pages), true, backing);
            }
            CallOp::MapFile { page, pages, file, from, shared, write } => {
                let offset = bytes(from);
                let backing = match shared {
                    true => Backing::Shared { file, offset },
                    false => Backing::Private { file, offset },
                };
                Self::map(k, (page, pages), write, backing);
            }
            CallOp::Unmap { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                Self::may_call(k, Call::Unmap { address, bytes });
            }
            CallOp::Discard { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                Self::may_call(k, Call::Discard { address, bytes });
            }
            CallOp::Protect { page, pages, rights } => {
                let call = Call::Protect {
                    address: bytes(page),
                    bytes: bytes(pages),
                    protection: protection(rights),
                };
                Self::may_call(k, call);
            }
            CallOp::PageOut { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                Self::may_call(k, Call::PageOut { address, bytes });
            }
            CallOp::Remap { page, pages, to } => {
                let call =
                    Call::Remap { address: bytes(page), bytes: bytes(pages), to: Some(bytes(to)) };
                Self::may_call(k, call);
            }
            CallOp::Collapse { page } => {
                let address = bytes(page);
                Self::may_call(k, Call::Collapse { address });
            }
            CallOp::Spawn => Self::may_call(k, Call::Spawn),
            CallOp::Fork => Self::may_call(k, Call::Fork),
            CallOp::Enter { process } => Self::may_call(k, Call::Enter { process }),
            CallOp::Exit { process } => Self::may_call(k, Call::Exit { process }),
            CallOp::Create { pages } => {
                let bytes = bytes(pages);
                Self::may_call(k, Call::Create { bytes });
            }
            CallOp::WriteFile { file, page, word } => {
                let (offset, value) = (bytes(page) + u64::from(word) * 8, self.value(me));
                Self::may_call(k, Call::Write { file, offset, value });
            }
            CallOp::ReadFile { file, page, word } => {
                let offset = bytes(page) + u64::from(word) * 8;
                Self::may_call(k, Call::Read { file, offset });
            }
            CallOp::Truncate { file, pages, word } => {
                let bytes = bytes(pages) + u64::from(word) * 8;
                Self::may_call(k, Call::Truncate { file, bytes });
            }
            CallOp::Sync { file } => Self::may_call(k, Call::Sync { file }),
            CallOp::Migrate { page, pages, node } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                let call = Call::Migrate { address, bytes, node };
                Self::may_call(k, call);
            }
            CallOp::Demote { pages } => Self::may_call(k, Call::Demote { pages }),
            CallOp::Reclaim { pages } => Self::may_call(k, Call::Reclaim { pages }),
            CallOp::Idle => Self::may_call(k, Call::Idle { until: 0 }),
            CallOp::Nothing => Self::may_call(k, Call::Nothing),
            CallOp::Offline => {
                k.offline();
                self.offline[me].set(true);
            }
            CallOp::Online => {
                if self.offline[me].replace(false) {
                    k.online();
                    let process = FIRST_PROCESS;
                    Self::may_call(k, Call::Enter { process });
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

    fn map(k: &VmKernel<'_>, (page, pages): (u64, u64), write: bool, backing: Backing) {
        let call = Call::Map {
            address: Some(bytes(page)),
            bytes: bytes(pages),
            protection: match write {
                true => Protection::READ_WRITE,
                false => Protection::READ,
            },
            backing,
        };
        Self::may_call(k, call);
    }
}

/// Runs a program over the manager.
pub(super) fn perform(
    memory: &Memory,
    lanes: &[CpuProgram<CallOp>],
    flags: Flags,
    stage: Stage<'_>,
    coverage: &mut Coverage,
) -> Vec<Line> {
    let player = ProgramPlayer {
        lanes,
        flags,
        begun: Cell::new(false),
        offline: Default::default(),
        flag: Default::default(),
        process: Default::default(),
        stores: Default::default(),
    };
    let parts = ProgramParts {
        start: &|k, cpu| {
            let start = || {
                for &op in &player.lanes[cpu].start {
                    player.perform(k, cpu, op);
                }
            };
            context::faultlessly(|| k.hw.faultlessly(start));
        },
        body: &|k, cpu| {
            player.begun.set(true);
            player.back_in_program(k, cpu);
            for &op in &player.lanes[cpu].run {
                player.perform(k, cpu, op);
                context::come_further();
                player.back_in_program(k, cpu);
                if !matches!(
                    op,
                    CallOp::Read { .. }
                        | CallOp::Fetch { .. }
                        | CallOp::Tell { .. }
                        | CallOp::Wait { .. }
                ) {
                    player.judge_programs(k, cpu);
                }
            }
        },
        after: &|_| {},
        repeats: false,
    };
    vm_kernel::perform(memory, &parts, stage, coverage)
}

/// Returns the number of the machine's frames.
pub(super) fn frames(memory: &Memory) -> usize {
    vm_kernel::frames([memory.fast, memory.slow])
}
