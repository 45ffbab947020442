//! The machine file's figures, converted to the machine's units.

use crate::architecture::Architecture;
use crate::file::{MachineFile, Parameter as P, Time};
use crate::flushes::{FlushCosts, Protocol};
use crate::tlb::array::Replacement;
use quell::{Features, Frame, Tagging};
use quell_vm::contract::Clause;
use quell_vm::{LockUse, MemoryMap, Path, Work};

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

/// All costs of operations, in picoseconds; rates are picoseconds a byte.
#[derive(Clone, Debug)]
pub struct Costs {
    pub architecture: Architecture,
    pub hardware_dirty: bool,
    pub topology: Topology,
    pub tlb: TlbGeometry,
    pub tagging: Tagging,
    pub full_above: u64,
    pub ranges: usize,
    pub masked_locks: bool,

    pub pause: Time,
    pub fence: Time,
    pub atomic: Time,
    pub mask: Time,

    pub l2_hit: Time,
    /// Includes nested paging.
    pub walk: Time,
    pub nested_walk: f64,

    pub invalidate_page: Time,
    pub invalidate_tag: Time,
    pub invalidate_all: Time,
    pub root_keep: Time,
    pub root_flush: Time,

    pub broadcast: bool,
    pub broadcast_issue: Time,
    pub broadcast_latency: Time,
    pub broadcast_drain: Time,
    pub broadcast_occupancy: Time,
    pub broadcast_disturb: Time,

    pub interrupt_send: Time,
    pub interrupt_cluster: usize,
    pub interrupt_delivery: Time,
    pub interrupt_remote: Time,
    pub interrupt_link: Time,
    pub interrupt_entry: Time,
    /// Includes the lines that the interrupted program must fetch again.
    pub interrupt_exit: Time,
    pub idle_wake: Time,

    pub l1_line: Time,
    pub l2_line: Time,
    pub llc_line: Time,
    pub memory_line: Time,
    pub l1_lines: usize,
    pub l2_lines: usize,
    pub llc_lines: usize,
    pub transfer_core: Time,
    pub transfer_socket: Time,
    pub transfer_remote: Time,

    pub stream: f64,
    pub slow_stream: f64,
    pub node_stream: f64,
    pub slow_node_stream: f64,
    pub copy: f64,
    pub remote_latency: Time,
    pub slow_latency: Time,

    pub zero_start: Time,
    pub zero_jump: Time,
    pub string: f64,
    pub stores: f64,
    pub bypass: f64,
    pub clzero: f64,
    pub bypass_drain: Time,
    pub elide_from: u64,
    pub elide_gain: f64,

    /// The protocol of a policy file.
    pub flushes: FlushCosts,
    /// The clauses that it gives up.
    pub lost: Vec<Clause>,
    pub user_access: Time,
    pub sharing: f64,
    kernel: Kernel,
}

/// The costs of the kernel's own code.
#[derive(Clone, Debug)]
struct Kernel {
    /// The times in its files, times the scale of its own code, by parameter.
    times: Vec<Time>,
    compress_byte: f64,
    decompress_byte: f64,
    device_byte: f64,
    lists: LockCost,
    lists_batch: usize,
    lists_drain: bool,
    zone: LockCost,
    file: LockCost,
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
        let times = if std::mem::take(&mut self.freed) {
            2
        } else {
            1
        };
        LockCost {
            hold: once.hold * times,
            lines: once.lines * times as f64,
        }
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
    /// Converts the costs of a machine file.
    pub fn new(file: &MachineFile) -> Self {
        let time = |parameter| file.time(parameter);
        let per_byte = |parameter| 1e3 / file.amount(parameter);
        let lines = |parameter| (file.count(parameter) / 64).max(1);
        let guest = |native, extra| file.time(native) + file.time(extra);
        let again = time(P::CacheL2Hit).saturating_sub(time(P::L1Hit));
        let displaced = file.count(P::Displaced) as Time * again;
        let scale = file.amount(P::Scale);
        let own = |parameter: P| match parameter {
            // Most of these is no code of the kernel's.
            P::Compress | P::Decompress | P::DeviceRead | P::DeviceWrite => {
                file.amount(parameter).round() as Time
            }
            _ => (file.amount(parameter) * scale).round() as Time,
        };
        let lock_scale = file.amount(P::LockScale);
        let held = |hold, lines| LockCost {
            hold: (file.amount(hold) * lock_scale).round() as Time,
            lines: file.count(lines) as f64 * lock_scale,
        };
        let flushes = FlushCosts::new(file);
        // A processor that executes requests itself runs no handler.
        let [interrupt_entry, interrupt_exit] = match flushes.protocol {
            Protocol::Rar => [flushes.microcode, 0],
            Protocol::Engine | Protocol::Calls | Protocol::Latr | Protocol::Abis => {
                [time(P::InterruptEntry), time(P::InterruptExit) + displaced]
            }
        };
        let pair = |entries, ways| (file.count(entries), file.count(ways));
        Costs {
            architecture: file.architecture(),
            hardware_dirty: file.choice(P::HardwareDirty) == "yes",
            topology: Topology {
                per_core: file.count(P::CpusPerCore),
                per_socket: file.count(P::CpusPerSocket),
            },
            tlb: TlbGeometry {
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
            },
            tagging: match file.choice(P::Tags) {
                "pcid" => Tagging::PerCpu { count: 4095 },
                "asid8" => Tagging::Global { bits: 8 },
                "asid16" => Tagging::Global { bits: 16 },
                "none" => Tagging::None,
                other => unreachable!("the tags `{other}` need a line here"),
            },
            full_above: file.count(P::FullAbove) as u64,
            ranges: file.count(P::Ranges),
            masked_locks: file.choice(P::MaskedLocks) == "yes",
            pause: time(P::Pause),
            fence: time(P::Fence),
            atomic: time(P::Atomic),
            mask: time(P::Mask),
            l2_hit: time(P::L2Hit),
            walk: (file.amount(P::Walk) * file.amount(P::NestedWalk)).round() as Time,
            nested_walk: file.amount(P::NestedWalk),
            invalidate_page: time(P::InvalidatePage),
            invalidate_tag: time(P::InvalidateTag),
            invalidate_all: time(P::InvalidateAll),
            root_keep: time(P::RootKeep),
            root_flush: time(P::RootFlush),
            broadcast: file.choice(P::Broadcast) == "yes",
            broadcast_issue: time(P::BroadcastIssue),
            broadcast_latency: time(P::BroadcastLatency),
            broadcast_drain: time(P::BroadcastDrain),
            broadcast_occupancy: time(P::BroadcastOccupancy),
            broadcast_disturb: time(P::BroadcastDisturb),
            interrupt_send: guest(P::InterruptSend, P::GuestSend),
            interrupt_cluster: file.count(P::InterruptCluster),
            interrupt_delivery: guest(P::InterruptDelivery, P::GuestDelivery),
            interrupt_remote: time(P::InterruptRemote),
            interrupt_link: time(P::InterruptLink),
            interrupt_entry,
            interrupt_exit,
            idle_wake: guest(P::IdleWake, P::GuestWake),
            l1_line: time(P::L1Hit),
            l2_line: time(P::CacheL2Hit),
            llc_line: time(P::LlcHit),
            memory_line: time(P::MemoryLatency),
            l1_lines: lines(P::L1Size),
            l2_lines: lines(P::CacheL2Size),
            llc_lines: lines(P::LlcSize),
            transfer_core: time(P::TransferCore),
            transfer_socket: time(P::TransferSocket),
            transfer_remote: time(P::TransferRemote),
            stream: per_byte(P::StreamRate),
            slow_stream: per_byte(P::SlowRate),
            node_stream: per_byte(P::NodeRate),
            slow_node_stream: per_byte(P::SlowNodeRate),
            copy: per_byte(P::CopyRate),
            remote_latency: time(P::RemoteLatency),
            slow_latency: time(P::SlowLatency),
            zero_start: time(P::ZeroStart),
            zero_jump: time(P::ZeroJump),
            string: per_byte(P::StringRate),
            stores: per_byte(P::StoreRate),
            bypass: per_byte(P::BypassRate),
            clzero: per_byte(P::ClzeroRate),
            bypass_drain: time(P::BypassDrain),
            elide_from: file.count(P::ElideFrom) as u64,
            elide_gain: file.amount(P::ElideGain),
            flushes,
            lost: file.lost_clauses(),
            user_access: time(P::UserAccess),
            sharing: file.amount(P::Sharing),
            kernel: Kernel {
                times: P::ALL.iter().copied().map(own).collect(),
                compress_byte: file.amount(P::CompressByte),
                decompress_byte: file.amount(P::DecompressByte),
                device_byte: per_byte(P::DeviceRate),
                lists: held(P::ListsHold, P::ListsLines),
                lists_batch: file.count(P::ListsBatch),
                lists_drain: file.choice(P::ListsDrain) == "yes",
                zone: held(P::ZoneHold, P::ZoneLines),
                file: held(P::FileHold, P::FileLines),
            },
        }
    }

    /// Returns the features that the engine gets from the machine.
    pub fn features(&self) -> Features {
        Features {
            tagging: self.tagging,
            broadcast: self.broadcast,
            full_above: self.full_above,
        }
    }

    /// Returns the shortest time in which one CPU can affect another. A CPU may run ahead that far.
    pub fn shortest_influence(&self) -> Time {
        let interrupt = self.interrupt_send + self.interrupt_delivery;
        if self.broadcast {
            interrupt.min(self.broadcast_issue + self.broadcast_latency)
        } else {
            interrupt
        }
    }

    /// Returns the time in which a CPU takes a line that another one wrote.
    pub fn transfer(&self, from: usize, to: usize) -> Time {
        let topology = &self.topology;
        if topology.core(from) == topology.core(to) {
            self.transfer_core
        } else if topology.socket(from) == topology.socket(to) {
            self.transfer_socket
        } else {
            self.transfer_remote
        }
    }

    /// Returns the time of a piece of the manager's work.
    pub fn work(&self, work: Work) -> Time {
        let kernel = &self.kernel;
        let bytes = |fixed: Time, each: f64, bytes: u64| fixed + (each * bytes as f64) as Time;
        let also = |fixed: Time, more: bool, extra: Time| if more { fixed + extra } else { fixed };
        let own = |parameter: P| kernel.times[parameter as usize];
        match work {
            Work::SystemCall => own(P::SystemCall),
            Work::Fault => own(P::Fault),
            Work::Area => own(P::Area),
            Work::Allocate { refill, .. } => also(own(P::Allocate), refill, own(P::Refill)),
            Work::Free { spill, .. } => also(own(P::Free), spill, own(P::Spill)),
            Work::ReverseMap => own(P::ReverseMap),
            Work::List => own(P::List),
            Work::Compress { bytes: out } => bytes(own(P::Compress), kernel.compress_byte, out),
            Work::Decompress { bytes: len } => {
                bytes(own(P::Decompress), kernel.decompress_byte, len)
            }
            Work::CacheLookup => own(P::CacheLookup),
            Work::ReadDevice { bytes: len } => bytes(own(P::DeviceRead), kernel.device_byte, len),
            Work::WriteDevice { bytes: len } => bytes(own(P::DeviceWrite), kernel.device_byte, len),
            Work::Schedule => own(P::Schedule),
            Work::Path(path) => own(PATHS[path as usize]),
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
        let kernel = &self.kernel;
        let (lock, held) = match used {
            LockUse::ListAdd(frame) => {
                collected.frames.push(frame);
                if collected.frames.len() < kernel.lists_batch {
                    return None;
                }
                (
                    KernelLock::Lists(map.node_of(frame)?),
                    collected.add(kernel.lists),
                )
            }
            LockUse::ListDrain(_) if !kernel.lists_drain || collected.frames.is_empty() => {
                return None;
            }
            LockUse::ListDrain(node) => (KernelLock::Lists(node), collected.add(kernel.lists)),
            LockUse::ListFree(frame) if collected.frames.contains(&frame) => {
                collected.freed = true;
                return None;
            }
            LockUse::ListFree(frame) => (KernelLock::Lists(map.node_of(frame)?), kernel.lists),
            LockUse::ListRemove(node) => (KernelLock::Lists(node), kernel.lists),
            LockUse::Zone { node, frames } => {
                let hold = kernel.zone.hold * frames;
                (
                    KernelLock::Zone(node),
                    LockCost {
                        hold,
                        ..kernel.zone
                    },
                )
            }
            LockUse::File(file) => (KernelLock::File(file), kernel.file),
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
                assert!(
                    !costs.is_empty(),
                    "{} = {word}: no machine accepts it",
                    parameter.name()
                );
            }
        }
    }
}
