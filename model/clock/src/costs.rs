//! The machine file's figures, converted to the machine's units.

use crate::architecture::Architecture;
use crate::file::{MachineFile, Parameter as P, Time};
use crate::flushes::Protocol;
use crate::tlb::array::Replacement;
use quell::{Features, Frame, Tagging};
use quell_vm::contract::Clause;
use quell_vm::{LockUse, MemoryMap, Path, Work};
use std::array;

/// The parameters of the pieces of a kernel's code, in the order of [`Path`].
const PATHS: [P; Path::COUNT] = [
    P::MapCall,
    P::UnmapCall,
    P::ProtectCall,
    P::RemapCall,
    P::AdviseCall,
    P::AdviseArea,
    P::Zap,
    P::Change,
    P::FaultAnonymous,
    P::FaultFile,
    P::FaultCopy,
    P::FaultSwap,
    P::Table,
    P::CacheInsert,
    P::Evict,
];

/// The geometry of the translation caches: entries and ways.
#[derive(Clone, Copy, Debug)]
pub struct TlbGeometry {
    pub first: [(usize, usize); 3],
    pub second: (usize, usize),
    pub second_huge: (usize, usize),
    pub walker: [usize; 3],
    pub replacement: Replacement,
}

impl TlbGeometry {
    fn new(file: &MachineFile) -> Self {
        let pair = |entries, ways| (file.count(entries), file.count(ways));
        TlbGeometry {
            first: [
                pair(P::L1Base, P::L1BaseWays),
                pair(P::L1Large, P::L1LargeWays),
                pair(P::L1Huge, P::L1HugeWays),
            ],
            second: pair(P::L2, P::L2Ways),
            second_huge: pair(P::L2Huge, P::L2HugeWays),
            walker: [P::WalkerLeaf, P::WalkerLarge, P::WalkerHuge].map(|p| file.count(p)),
            replacement: match file.choice(P::Replacement) {
                "lru" => Replacement::Lru,
                "pseudo-lru" => Replacement::PseudoLru,
                other => unreachable!("the replacement `{other}` needs a line here"),
            },
        }
    }
}

/// The grouping of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    pub per_core: usize,
    pub per_socket: usize,
}

impl Topology {
    #[inline]
    pub fn core(&self, cpu: usize) -> usize {
        cpu / self.per_core
    }
    #[inline]
    pub fn socket(&self, cpu: usize) -> usize {
        cpu / self.per_socket
    }
}

/// The number of parameters.
const ALL: usize = P::ALL.len();

/// All costs of operations.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Times in picoseconds, by parameter. Those of the kernel's own code are multiplied by its scale.
    times: [Time; ALL],
    /// Amounts in the file's canonical units, by parameter.
    amounts: [f64; ALL],
    pub architecture: Architecture,
    pub topology: Topology,
    pub tlb: TlbGeometry,
    pub tagging: Tagging,
    /// Includes nested paging.
    pub walk: Time,
    pub interrupt_send: Time,
    pub interrupt_delivery: Time,
    pub interrupt_entry: Time,
    /// Includes the lines that the interrupted program must fetch again.
    pub interrupt_exit: Time,
    pub idle_wake: Time,
    pub l1_lines: usize,
    pub l2_lines: usize,
    pub llc_lines: usize,
    pub protocol: Protocol,
    /// The clauses that the policy gives up.
    pub lost: Vec<Clause>,
    lists: LockCost,
    zone: LockCost,
    file: LockCost,
}

impl Costs {
    /// Converts the costs of a machine file.
    pub fn new(file: &MachineFile) -> Self {
        let lines = |size| (file.count(size) / 64).max(1);
        let time = |parameter| file.amount(parameter).round() as Time;
        let scale = file.amount(P::Scale);
        let own = |parameter: P| match parameter {
            // Most of these is no code of the kernel's.
            P::Compress | P::Decompress | P::DeviceRead | P::DeviceWrite => time(parameter),
            _ if parameter.of_kernel() => (file.amount(parameter) * scale).round() as Time,
            _ => time(parameter),
        };
        let lock_scale = file.amount(P::LockScale);
        let held = |hold, lines| LockCost {
            hold: (file.amount(hold) * lock_scale).round() as Time,
            lines: file.count(lines) as f64 * lock_scale,
        };
        let [interrupt_entry, interrupt_exit] = handler(file);
        Costs {
            times: array::from_fn(|index| own(P::ALL[index])),
            amounts: array::from_fn(|index| file.amount(P::ALL[index])),
            architecture: file.architecture(),
            topology: Topology {
                per_core: file.count(P::CpusPerCore),
                per_socket: file.count(P::CpusPerSocket),
            },
            tlb: TlbGeometry::new(file),
            tagging: match file.choice(P::Tags) {
                "pcid" => Tagging::PerCpu { count: 4095 },
                "asid8" => Tagging::Global { bits: 8 },
                "asid16" => Tagging::Global { bits: 16 },
                "none" => Tagging::None,
                other => unreachable!("the tags `{other}` need a line here"),
            },
            walk: (file.amount(P::Walk) * file.amount(P::NestedWalk)).round() as Time,
            interrupt_send: time(P::InterruptSend) + time(P::GuestSend),
            interrupt_delivery: time(P::InterruptDelivery) + time(P::GuestDelivery),
            interrupt_entry,
            interrupt_exit,
            idle_wake: time(P::IdleWake) + time(P::GuestWake),
            l1_lines: lines(P::L1Size),
            l2_lines: lines(P::CacheL2Size),
            llc_lines: lines(P::LlcSize),
            protocol: Protocol::new(file),
            lost: file.lost_clauses(),
            lists: held(P::ListsHold, P::ListsLines),
            zone: held(P::ZoneHold, P::ZoneLines),
            file: held(P::FileHold, P::FileLines),
        }
    }

    /// Returns a time in picoseconds.
    #[inline]
    pub fn time(&self, parameter: P) -> Time {
        self.times[parameter as usize]
    }

    /// Returns an amount in the file's canonical unit.
    #[inline]
    pub fn amount(&self, parameter: P) -> f64 {
        self.amounts[parameter as usize]
    }

    #[inline]
    pub fn count(&self, parameter: P) -> usize {
        self.amount(parameter) as usize
    }

    /// Returns whether a choice between no and yes is yes.
    #[inline]
    pub fn yes(&self, parameter: P) -> bool {
        self.count(parameter) == 1
    }

    /// Returns a rate, in picoseconds a byte.
    pub fn rate(&self, parameter: P) -> f64 {
        1e3 / self.amount(parameter)
    }
}

/// Returns the times to enter and leave the handler of an interrupt.
fn handler(file: &MachineFile) -> [Time; 2] {
    let again = (file.time(P::CacheL2Hit)).saturating_sub(file.time(P::L1Hit));
    let exit = file.time(P::InterruptExit) + file.count(P::Displaced) as Time * again;
    match Protocol::new(file) {
        // A processor that executes requests itself runs no handler.
        Protocol::Rar => [file.time(P::Microcode), 0],
        Protocol::Engine | Protocol::Calls | Protocol::Latr | Protocol::Abis | Protocol::Fpr => {
            [file.time(P::InterruptEntry), exit]
        }
    }
}

/// The use of one of the kernel's locks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LockCost {
    /// The duration if all lines are in the CPU's cache.
    pub hold: Time,
    /// The lines that the last holder wrote, times the scale of locks. Each is transferred from that CPU.
    pub lines: f64,
}

/// Pages that a CPU still has to add to the lists of reclaim.
#[derive(Debug, Default)]
pub struct Collected {
    frames: Vec<Frame>,
    /// One of them was freed in the meantime, so it leaves the lists again.
    freed: bool,
}

impl Collected {
    /// Forgets the pages. Returns the use of the lock for them.
    fn add(&mut self, once: LockCost) -> LockCost {
        self.frames.clear();
        let times = if std::mem::take(&mut self.freed) { 2 } else { 1 };
        LockCost { hold: once.hold * times, lines: once.lines * times as f64 }
    }
}

/// A lock of the kernel, of a node or a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KernelLock {
    /// The lists of pages of a node.
    Lists(usize),
    /// The allocator of a node.
    Zone(usize),
    /// The page cache of a file.
    File(u32),
}

impl Costs {
    /// Returns the features that the engine gets from the machine.
    pub fn features(&self) -> Features {
        Features {
            tagging: self.tagging,
            broadcast: self.yes(P::Broadcast),
            full_above: self.count(P::FullAbove) as u64,
        }
    }

    /// Returns the shortest time in which one CPU can affect another. A CPU may run ahead that far.
    pub fn shortest_influence(&self) -> Time {
        let interrupt = self.interrupt_send + self.interrupt_delivery;
        let broadcast = self.time(P::BroadcastIssue) + self.time(P::BroadcastLatency);
        if self.yes(P::Broadcast) { interrupt.min(broadcast) } else { interrupt }
    }

    /// Returns the time in which a CPU takes a line that another one wrote.
    pub fn transfer(&self, from: usize, to: usize) -> Time {
        let topology = &self.topology;
        self.time(if topology.core(from) == topology.core(to) {
            P::TransferCore
        } else if topology.socket(from) == topology.socket(to) {
            P::TransferSocket
        } else {
            P::TransferRemote
        })
    }

    /// Returns the time of a piece of the manager's work.
    pub fn work(&self, work: Work) -> Time {
        let time = |parameter| self.time(parameter);
        let bytes = |fixed, each: f64, bytes: u64| time(fixed) + (each * bytes as f64) as Time;
        let also = |fixed, more: bool, extra| time(fixed) + if more { time(extra) } else { 0 };
        let device = self.rate(P::DeviceRate);
        match work {
            Work::SystemCall => time(P::SystemCall),
            Work::Fault => time(P::Fault),
            Work::Area => time(P::Area),
            Work::Allocate { refill, .. } => also(P::Allocate, refill, P::Refill),
            Work::Free { spill, .. } => also(P::Free, spill, P::Spill),
            Work::ReverseMap => time(P::ReverseMap),
            Work::List => time(P::List),
            Work::Compress { bytes: out } => bytes(P::Compress, self.amount(P::CompressByte), out),
            Work::Decompress { bytes: len } => {
                bytes(P::Decompress, self.amount(P::DecompressByte), len)
            }
            Work::CacheLookup => time(P::CacheLookup),
            Work::ReadDevice { bytes: len } => bytes(P::DeviceRead, device, len),
            Work::WriteDevice { bytes: len } => bytes(P::DeviceWrite, device, len),
            Work::Schedule => time(P::Schedule),
            Work::Path(path) => time(PATHS[path as usize]),
            Work::Locked(_) => 0,
        }
    }

    /// Returns the lock that a piece of work takes, with its use, if any. `collected` are the pages that this CPU still
    /// has to add to the lists.
    pub fn lock(
        &self,
        used: LockUse,
        map: &MemoryMap,
        collected: &mut Collected,
    ) -> Option<(KernelLock, LockCost)> {
        let (lock, held) = match used {
            LockUse::ListAdd(frame) => {
                collected.frames.push(frame);
                if collected.frames.len() < self.count(P::ListsBatch) {
                    return None;
                }
                (KernelLock::Lists(map.node_of(frame)?), collected.add(self.lists))
            }
            LockUse::ListDrain(_) if !self.yes(P::ListsDrain) || collected.frames.is_empty() => {
                return None;
            }
            LockUse::ListDrain(node) => (KernelLock::Lists(node), collected.add(self.lists)),
            LockUse::ListFree(frame) if collected.frames.contains(&frame) => {
                collected.freed = true;
                return None;
            }
            LockUse::ListFree(frame) => (KernelLock::Lists(map.node_of(frame)?), self.lists),
            LockUse::ListRemove(node) => (KernelLock::Lists(node), self.lists),
            LockUse::Zone { node, frames } => {
                let hold = self.zone.hold * frames;
                (KernelLock::Zone(node), LockCost { hold, ..self.zone })
            }
            LockUse::File(file) => (KernelLock::File(file), self.file),
        };
        (held != LockCost::default()).then_some((lock, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{BUILT_IN, Unit};

    /// Checks every choice that machine files allow. One that this file lacks would panic in a user's run.
    #[test]
    fn every_choice_of_a_machine_file_is_known_here() {
        for &parameter in P::ALL {
            let description = parameter.description();
            let Unit::Choice(words) = description.unit else {
                continue;
            };
            for word in words {
                // Some choices fit only machines of one architecture, so we try every built-in machine as the base.
                let files = BUILT_IN.iter().filter_map(|(base, _)| {
                    let text = format!(
                        "name = \"mine\"\nbased_on = \"{base}\"\n[{}]\n{} = {{ value = \"{word}\", source = \"x\" }}",
                        description.section, description.key
                    );
                    MachineFile::parse("mine.toml", &text).ok()
                });
                let costs: Vec<_> = files.map(|file| Costs::new(&file)).collect();
                assert!(!costs.is_empty(), "{} = {word}: no machine accepts it", parameter.name());
            }
        }
    }
}
