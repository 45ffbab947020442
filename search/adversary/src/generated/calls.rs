//! Generated programs over the memory manager.
//!
//! Every operation is a call that a program may make at any time, so the manager must handle it. A call that it refuses
//! for a reason is no failure.
//!
//! The [abstract machine](quell_vm::contract::abstract_machine) judges the calls. After each operation of a CPU, it
//! also judges everything that the programs of the other CPUs could access then.

use super::program::{CallOp, CpuProgram, Flags, Memory};
use crate::action::AccessKind;
use crate::action::MAX_CPUS;
use crate::context;
use crate::coverage::Coverage;
use crate::stage::Stage;
use crate::vm_kernel::{self, FIRST_PROCESS, ProgramParts, VmKernel};
use quell::PageSize;
use quell_vm::contract::timeline::Line;
use quell_vm::machine::USER_END;
use quell_vm::{Backing, Call, ProcessId, Protection};
use std::cell::Cell;

/// A run of a program over the manager.
struct ProgramPlayer<'p> {
    lanes: &'p [CpuProgram<CallOp>],
    flags: Flags,
    begun: Cell<bool>,
    offline: [Cell<bool>; MAX_CPUS],
    flag: [Cell<u8>; MAX_CPUS],
    process: [Cell<Option<ProcessId>>; MAX_CPUS],
    stores: [Cell<u64>; MAX_CPUS],
}

const fn bytes(pages: u64) -> u64 {
    pages << 12
}

const fn offset(page: u64, word: u8) -> u64 {
    bytes(page) + word as u64 * 8
}

fn protection(rights: u8) -> Protection {
    match rights {
        0 => Protection::NONE,
        1 => Protection::READ,
        2 => Protection::READ_WRITE,
        3 => Protection::READ_EXECUTE,
        _ => Protection { execute: true, ..Protection::READ_WRITE },
    }
}

/// Returns a call whose arguments are wrong or not round.
fn odd(number: u8, page: u64) -> Call {
    const NONE: u32 = 99;
    let (address, one) = (bytes(page), bytes(1));
    let end = USER_END.address();
    let map = |backing| {
        let (address, protection) = (Some(address), Protection::READ);
        Call::Map { address, bytes: one, protection, backing }
    };
    match number % ODD_CALLS {
        0 => Call::Unmap { address, bytes: 0 },
        1 => Call::Protect { address: address + 8, bytes: one, protection: Protection::READ },
        2 => Call::Discard { address: end - one, bytes: 2 * one },
        3 => Call::Remap { address, bytes: 2 * one, to: Some(address + one) },
        4 => Call::Remap { address, bytes: one, to: Some(bytes(8) + 1) },
        5 => map(Backing::Shared { file: 0, offset: 8 }),
        6 => map(Backing::Private { file: NONE, offset: 0 }),
        7 => Call::Enter { process: NONE },
        8 => Call::Exit { process: NONE },
        9 => Call::Migrate { address, bytes: one, node: NONE },
        10 => Call::Read { file: 0, offset: 4 },
        11 => Call::Write { file: 0, offset: end, value: 1 },
        12 => Call::Truncate { file: NONE, bytes: 0 },
        13 => Call::Create { bytes: end },
        14 => Call::Collapse { address: end },
        15 => Call::PageOut { address: end, bytes: one },
        16 => Call::Sync { file: NONE },
        17 => Call::Unmap { address, bytes: 1 },
        18 => Call::Discard { address, bytes: one + 1 },
        19 => Call::Protect { address, bytes: one - 1, protection: Protection::READ },
        20 => Call::PageOut { address, bytes: 2 * one - 8 },
        _ => Call::Truncate { file: 0, bytes: end },
    }
}

/// The number of such calls.
const ODD_CALLS: u8 = 22;

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

    fn perform(&self, k: &VmKernel<'_>, me: usize, op: CallOp) {
        // An offline CPU still signals and waits. Otherwise others would wait for it for ever.
        let there = matches!(op, CallOp::Online | CallOp::Tell { .. } | CallOp::Wait { .. });
        if self.offline[me].get() && !there {
            return;
        }
        // The manager may refuse any call.
        let call = |call| _ = k.try_call(call);
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
                let page_size = if large { PageSize::Large } else { PageSize::Base };
                Self::map(k, (page, pages), true, Backing::Anonymous { page: page_size });
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
                call(Call::Unmap { address: bytes(page), bytes: bytes(pages) });
            }
            CallOp::Discard { page, pages } => {
                call(Call::Discard { address: bytes(page), bytes: bytes(pages) });
            }
            CallOp::Protect { page, pages, rights } => {
                let (address, bytes, protection) = (bytes(page), bytes(pages), protection(rights));
                call(Call::Protect { address, bytes, protection });
            }
            CallOp::PageOut { page, pages } => {
                call(Call::PageOut { address: bytes(page), bytes: bytes(pages) });
            }
            CallOp::Remap { page, pages, to } => {
                let (address, bytes, to) = (bytes(page), bytes(pages), Some(bytes(to)));
                call(Call::Remap { address, bytes, to });
            }
            CallOp::Collapse { page } => call(Call::Collapse { address: bytes(page) }),
            CallOp::Spawn => call(Call::Spawn),
            CallOp::Fork => call(Call::Fork),
            CallOp::Enter { process } => call(Call::Enter { process }),
            CallOp::Exit { process } => call(Call::Exit { process }),
            CallOp::Create { pages } => call(Call::Create { bytes: bytes(pages) }),
            CallOp::WriteFile { file, page, word } => {
                call(Call::Write { file, offset: offset(page, word), value: self.value(me) });
            }
            CallOp::ReadFile { file, page, word } => {
                call(Call::Read { file, offset: offset(page, word) });
            }
            CallOp::Truncate { file, pages, word } => {
                call(Call::Truncate { file, bytes: offset(pages, word) });
            }
            CallOp::Sync { file } => call(Call::Sync { file }),
            CallOp::Migrate { page, pages, node } => {
                call(Call::Migrate { address: bytes(page), bytes: bytes(pages), node });
            }
            CallOp::Demote { pages } => call(Call::Demote { pages }),
            CallOp::Reclaim { pages } => call(Call::Reclaim { pages }),
            // The judge learns the address only when the call returns. In the run others could get there before.
            CallOp::MapAnywhere { .. } | CallOp::RemapAnywhere { .. } if self.begun.get() => {}
            CallOp::MapAnywhere { pages, large } => {
                let page = if large { PageSize::Large } else { PageSize::Base };
                let (address, backing) = (None, Backing::Anonymous { page });
                let (bytes, protection) = (bytes(pages), Protection::READ_WRITE);
                if let Ok(at) = k.try_call(Call::Map { address, bytes, protection, backing }) {
                    self.write(k, me, at >> 12, 0);
                }
            }
            CallOp::RemapAnywhere { page, pages } => {
                let (address, bytes) = (bytes(page), bytes(pages));
                if let Ok(at) = k.try_call(Call::Remap { address, bytes, to: None }) {
                    let _ = k.attempt((at >> 12, 0), AccessKind::Load, 0);
                }
            }
            CallOp::Odd { call: number, page } => call(odd(number, page)),
            CallOp::Idle => call(Call::Idle { until: 0 }),
            CallOp::Nothing => call(Call::Nothing),
            CallOp::Offline => {
                k.offline();
                self.offline[me].set(true);
            }
            CallOp::Online => {
                if self.offline[me].replace(false) {
                    k.online();
                    call(Call::Enter { process: FIRST_PROCESS });
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
        let protection = if write { Protection::READ_WRITE } else { Protection::READ };
        let (address, bytes) = (Some(bytes(page)), bytes(pages));
        let _ = k.try_call(Call::Map { address, bytes, protection, backing });
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
