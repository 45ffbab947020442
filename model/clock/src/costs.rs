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

/// Defines [`Costs`]: fields that are one parameter of a file each, and others with their values.
macro_rules! costs {
    ($file:ident
     times { $($time:ident: $time_of:ident,)+ }
     rates { $($rate:ident: $rate_of:ident,)+ }
     $($(#[$doc:meta])* $name:ident: $type:ty = $value:expr,)+) => {
        /// All costs of operations, in picoseconds; rates are picoseconds a byte.
        #[derive(Clone, Debug)]
        pub struct Costs {
            $(pub $time: Time,)+
            $(pub $rate: f64,)+
            $($(#[$doc])* pub $name: $type,)+
        }

        impl Costs {
            /// Converts the costs of a machine file.
            pub fn new($file: &MachineFile) -> Self {
                Costs {
                    $($time: $file.time(P::$time_of),)+
                    $($rate: 1e3 / $file.amount(P::$rate_of),)+
                    $($name: $value,)+
                }
            }
        }
    };
}

costs! {
    file
    times {
        pause: Pause,
        fence: Fence,
        atomic: Atomic,
        mask: Mask,
        l2_hit: L2Hit,
        invalidate_page: InvalidatePage,
        invalidate_tag: InvalidateTag,
        invalidate_all: InvalidateAll,
        root_keep: RootKeep,
        root_flush: RootFlush,
        broadcast_issue: BroadcastIssue,
        broadcast_latency: BroadcastLatency,
        broadcast_drain: BroadcastDrain,
        broadcast_occupancy: BroadcastOccupancy,
        broadcast_disturb: BroadcastDisturb,
        interrupt_remote: InterruptRemote,
        interrupt_link: InterruptLink,
        l1_line: L1Hit,
        l2_line: CacheL2Hit,
        llc_line: LlcHit,
        memory_line: MemoryLatency,
        transfer_core: TransferCore,
        transfer_socket: TransferSocket,
        transfer_remote: TransferRemote,
        remote_latency: RemoteLatency,
        zero_start: ZeroStart,
        zero_jump: ZeroJump,
        bypass_drain: BypassDrain,
        user_access: UserAccess,
    }
    rates {
        stream: StreamRate,
        slow_stream: SlowRate,
        node_stream: NodeRate,
        slow_node_stream: SlowNodeRate,
        copy: CopyRate,
        string: StringRate,
        stores: StoreRate,
        bypass: BypassRate,
        clzero: ClzeroRate,
    }
    architecture: Architecture = file.architecture(),
    hardware_dirty: bool = file.choice(P::HardwareDirty) == "yes",
    topology: Topology = Topology {
        per_core: file.count(P::CpusPerCore),
        per_socket: file.count(P::CpusPerSocket),
    },
    tlb: TlbGeometry = TlbGeometry::new(file),
    tagging: Tagging = match file.choice(P::Tags) {
        "pcid" => Tagging::PerCpu { count: 4095 },
        "asid8" => Tagging::Global { bits: 8 },
        "asid16" => Tagging::Global { bits: 16 },
        "none" => Tagging::None,
        other => unreachable!("the tags `{other}` need a line here"),
    },
    full_above: u64 = file.count(P::FullAbove) as u64,
    ranges: usize = file.count(P::Ranges),
    masked_locks: bool = file.choice(P::MaskedLocks) == "yes",
    /// Includes nested paging.
    walk: Time = (file.amount(P::Walk) * file.amount(P::NestedWalk)).round() as Time,
    nested_walk: f64 = file.amount(P::NestedWalk),
    broadcast: bool = file.choice(P::Broadcast) == "yes",
    interrupt_send: Time = file.time(P::InterruptSend) + file.time(P::GuestSend),
    interrupt_cluster: usize = file.count(P::InterruptCluster),
    interrupt_delivery: Time = file.time(P::InterruptDelivery) + file.time(P::GuestDelivery),
    interrupt_entry: Time = handler(file)[0],
    /// Includes the lines that the interrupted program must fetch again.
    interrupt_exit: Time = handler(file)[1],
    idle_wake: Time = file.time(P::IdleWake) + file.time(P::GuestWake),
    l1_lines: usize = (file.count(P::L1Size) / 64).max(1),
    l2_lines: usize = (file.count(P::CacheL2Size) / 64).max(1),
    llc_lines: usize = (file.count(P::LlcSize) / 64).max(1),
    elide_from: u64 = file.count(P::ElideFrom) as u64,
    elide_gain: f64 = file.amount(P::ElideGain),
    /// The protocol of a policy file.
    flushes: FlushCosts = FlushCosts::new(file),
    /// The clauses that it gives up.
    lost: Vec<Clause> = file.lost_clauses(),
    sharing: f64 = file.amount(P::Sharing),
    kernel: Kernel = Kernel::new(file),
}

/// Returns the times to enter and leave the handler of an interrupt.
fn handler(file: &MachineFile) -> [Time; 2] {
    let flushes = FlushCosts::new(file);
    let again = (file.time(P::CacheL2Hit)).saturating_sub(file.time(P::L1Hit));
    let exit = file.time(P::InterruptExit) + file.count(P::Displaced) as Time * again;
    match flushes.protocol {
        // A processor that executes requests itself runs no handler.
        Protocol::Rar => [flushes.microcode, 0],
        Protocol::Engine | Protocol::Calls | Protocol::Latr | Protocol::Abis => {
            [file.time(P::InterruptEntry), exit]
        }
    }
}

/// The costs of the kernel's own code.
#[derive(Clone, Debug)]
pub struct Kernel {
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

impl Kernel {
    fn new(file: &MachineFile) -> Self {
        let scale = file.amount(P::Scale);
        let own = |parameter: P| match parameter {
            // Most of these is no code of the kernel's.
            P::Compress | P::Decompress | P::DeviceRead | P::DeviceWrite => file.time(parameter),
            _ => (file.amount(parameter) * scale).round() as Time,
        };
        let lock_scale = file.amount(P::LockScale);
        let held = |hold, lines| LockCost {
            hold: (file.amount(hold) * lock_scale).round() as Time,
            lines: file.count(lines) as f64 * lock_scale,
        };
        Kernel {
            times: P::ALL.iter().copied().map(own).collect(),
            compress_byte: file.amount(P::CompressByte),
            decompress_byte: file.amount(P::DecompressByte),
            device_byte: 1e3 / file.amount(P::DeviceRate),
            lists: held(P::ListsHold, P::ListsLines),
            lists_batch: file.count(P::ListsBatch),
            lists_drain: file.choice(P::ListsDrain) == "yes",
            zone: held(P::ZoneHold, P::ZoneLines),
            file: held(P::FileHold, P::FileLines),
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
        Features { tagging: self.tagging, broadcast: self.broadcast, full_above: self.full_above }
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
                (KernelLock::Lists(map.node_of(frame)?), collected.add(kernel.lists))
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
                (KernelLock::Zone(node), LockCost { hold, ..kernel.zone })
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
                assert!(!costs.is_empty(), "{} = {word}: no machine accepts it", parameter.name());
            }
        }
    }
}
