//! Flushes added up in the kernel, by process and place, with nothing lost and nothing scaled.
//!
//! Four small programs for the kernel's BPF machine run at the tracepoints of a shootdown ([`programs`]). They are written in
//! Rust with [`asm`], so that neither a compiler for BPF nor an object file is needed, and the kernel's verifier reads them each
//! time they are loaded. They say exactly how many flushes, pages, interrupts and nanoseconds each place in a program costs. A
//! place is the system call and the two innermost addresses of the program; whole stacks are left to recorded events.
//!
//! It needs x86-64, `CAP_BPF` and `CAP_PERFMON`, and a kernel with BPF and the names of its functions. Where one is
//! missing, [`Sums::open`] says which.

mod asm;
mod kernel;
mod programs;

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use crate::perf::sample::Flushes;
use kernel::{Kind, Map, Program};
use programs::{place, site, slot, victim};

/// How many places, and how many processes, are kept apart.
const PLACES: usize = 16 << 10;
const PROCESSES: usize = 16 << 10;
/// Functions that are no flushes, by process.
const OTHERS: usize = 4 << 10;

/// The kernel's sums of all flushes since it was opened.
#[derive(Debug)]
pub struct Sums {
    maps: Maps,
    cpus: usize,
    flush: Program,
    /// What counts flushes, while it does.
    flushes: Option<OwnedFd>,
    /// What counts interrupts and times, each with its tracepoint, and while it does.
    targets: [(&'static CStr, Program); 3],
    timed: Vec<OwnedFd>,
    /// A second copy of what counts flushes, which nobody reads.
    copy: (Maps, Program),
    copied: Option<OwnedFd>,
}

/// What the programs share.
#[derive(Debug)]
struct Maps {
    slots: Map,
    sites: Map,
    victims: Map,
    others: Map,
    queued: Map,
}

impl Maps {
    fn new(cpus: usize, places: usize) -> io::Result<Self> {
        Ok(Self {
            slots: Map::new(Kind::Array, 4, slot::BYTES, cpus, cpus)?,
            sites: Map::new(Kind::EachCpuHash, place::BYTES, site::BYTES, places, cpus)?,
            victims: Map::new(Kind::EachCpuHash, 8, victim::BYTES, PROCESSES, cpus)?,
            others: Map::new(Kind::EachCpuHash, 16, 8, OTHERS, cpus)?,
            // Each CPU has one piece of work for each other.
            queued: Map::new(Kind::Hash, 8, 8, cpus * cpus, cpus)?,
        })
    }

    fn numbers(&self, flush: u64) -> programs::Maps {
        programs::Maps {
            slots: self.slots.number(),
            sites: self.sites.number(),
            queued: self.queued.number(),
            victims: self.victims.number(),
            others: self.others.number(),
            flush,
        }
    }
}

/// From where flushes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// The process; 0 is the idle task.
    pub pid: u32,
    /// The number of the system call; `None` in a page fault, or in a thread of the kernel.
    pub call: Option<u32>,
    /// The instruction behind the call.
    pub after: u64,
    /// The instruction to which the function around the call returns, if that has no frame of its own.
    pub return_to: u64,
}

/// What the sums are at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Flushes by their place.
    pub sites: Vec<(Caller, Flushes)>,
    /// By process: how many interrupts it took for flushes of others, and for how many nanoseconds.
    pub victims: Vec<(u32, u64, u64)>,
    /// Other work that was queued for a CPU: the address of its function, the process, how often.
    pub others: Vec<(u64, u32, u64)>,
    /// Flushes whose place found no room.
    pub lost: u64,
}

impl Sums {
    /// Begins to add up. `flush` is the address of the kernel's function `flush_tlb_func`.
    ///
    /// # Errors
    ///
    /// This kernel or this process cannot.
    pub fn open(flush: u64) -> io::Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "flushes send no interrupts on this architecture",
            ));
        }
        let cpus = possible_cpus()?;
        let maps = Maps::new(cpus, PLACES)?;
        let numbers = maps.numbers(flush);
        let load = |code: Vec<u64>| Program::load(&code);
        // An end is timed from its begin, and is looked for once it was queued.
        let targets = [
            (c"csd_function_entry", load(programs::entry(&numbers))?),
            (c"csd_function_exit", load(programs::exit(&numbers))?),
            (c"csd_queue_cpu", load(programs::queue(&numbers))?),
        ];
        let spare = Maps::new(cpus, PLACES)?;
        let copy = load(programs::flush(&spare.numbers(flush)))?;
        let mut sums = Self {
            cpus,
            flush: load(programs::flush(&numbers))?,
            maps,
            flushes: None,
            targets,
            timed: Vec::new(),
            copy: (spare, copy),
            copied: None,
        };
        sums.set(true, true, false)?;
        Ok(sums)
    }

    /// Counts flushes from now on, or not; and their interrupts with what they cost; and flushes a second time, which costs as much
    /// again and tells nothing else.
    ///
    /// # Errors
    ///
    /// The kernel has no more room for programs.
    pub fn set(&mut self, flushes: bool, timed: bool, twice: bool) -> io::Result<()> {
        const FLUSH: &CStr = c"tlb_flush";
        match (flushes, &self.flushes) {
            (true, None) => self.flushes = Some(self.flush.attach(FLUSH)?),
            (false, Some(_)) => self.flushes = None,
            _ => {}
        }
        match (timed, self.timed.is_empty()) {
            (true, true) => {
                for (tracepoint, program) in &self.targets {
                    self.timed.push(program.attach(tracepoint)?);
                }
            }
            // What was queued last is not looked for any more.
            (false, false) => while self.timed.pop().is_some() {},
            _ => {}
        }
        match (twice, &self.copied) {
            (true, None) => self.copied = Some(self.copy.1.attach(FLUSH)?),
            (false, Some(_)) => self.copied = None,
            _ => {}
        }
        Ok(())
    }

    /// Forgets a place.
    pub fn forget(&self, caller: &Caller) {
        let call = caller.call.unwrap_or(place::NO_CALL.cast_unsigned());
        let mut key = Vec::with_capacity(place::BYTES);
        key.extend(caller.pid.to_ne_bytes());
        key.extend(call.to_ne_bytes());
        key.extend(caller.after.to_ne_bytes());
        key.extend(caller.return_to.to_ne_bytes());
        self.maps.sites.remove(&key);
        self.copy.0.sites.remove(&key);
    }

    /// What was added up until now.
    ///
    /// # Errors
    ///
    /// The kernel does not hand its maps out.
    pub fn read(&self) -> io::Result<Snapshot> {
        /// What a CPU adds to the sums meanwhile would be missed, or taken twice.
        const TRIES: u32 = 4;
        for _ in 1..TRIES {
            let before = self.slots()?;
            let snapshot = self.snapshot(&before)?;
            let added = |slots: &[Vec<u64>]| -> u64 {
                let added = slots.iter().map(|slot| slot[slot::ADDED as usize / 8]);
                added.sum()
            };
            if added(&before) == added(&self.slots()?) {
                return Ok(snapshot);
            }
        }
        self.snapshot(&self.slots()?)
    }

    /// What is known of each CPU.
    fn slots(&self) -> io::Result<Vec<Vec<u64>>> {
        let slot = |cpu: usize| {
            let values = self.maps.slots.get(&(cpu as u32).to_ne_bytes())?;
            Ok(values.unwrap_or_else(|| vec![0; slot::BYTES / 8]))
        };
        (0..self.cpus).map(slot).collect()
    }

    /// The sums of all CPUs, with what these slots have.
    fn snapshot(&self, slots: &[Vec<u64>]) -> io::Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        for (key, values) in self.maps.sites.all()? {
            let flushes = flushes(|offset| added(&values, site::BYTES, offset));
            snapshot.sites.push((caller(&key), flushes));
        }
        for (key, values) in self.maps.victims.all()? {
            let of = |offset: i16| added(&values, victim::BYTES, offset);
            let pid = word(&key, 0) as u32;
            let victim = (pid, of(victim::INTERRUPTS), of(victim::WORK));
            snapshot.victims.push(victim);
        }
        for (key, values) in self.maps.others.all()? {
            let other = (word(&key, 0), word(&key, 8) as u32, values.iter().sum());
            snapshot.others.push(other);
        }
        slots.iter().for_each(|slot| snapshot.last(slot));
        snapshot.sites.sort_unstable_by_key(|(caller, _)| *caller);
        snapshot.victims.sort_unstable();
        snapshot.others.sort_unstable();
        Ok(snapshot)
    }
}

impl Snapshot {
    /// Adds what a CPU has not added to the sums of all.
    fn last(&mut self, slot: &[u64]) {
        let of = |offset: i16| slot[offset as usize / 8];
        let bytes = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        self.lost += of(slot::LOST);
        let mut remote = flushes(|offset| of(slot::SITE + offset));
        // Its last request is not ended yet.
        if let targets @ 1.. = of(slot::TARGETS) {
            remote.remote += 1;
            remote.interrupts += targets;
            remote.waited_ns += of(slot::LAST).saturating_sub(of(slot::FIRST));
        }
        let local = Flushes {
            flushes: of(slot::LOCAL_SITE + site::FLUSHES),
            full: of(slot::LOCAL_SITE + site::FULL),
            pages: of(slot::LOCAL_SITE + site::PAGES),
            ..Flushes::default()
        };
        let place = caller(&bytes(&slot[..place::BYTES / 8]));
        let call = caller(&bytes(&[of(slot::LOCAL), 0, 0]));
        for (caller, flushes) in [(place, remote), (call, local)] {
            if flushes == Flushes::default() {
                continue;
            }
            match self.sites.iter_mut().find(|(known, _)| *known == caller) {
                Some((_, known)) => known.add(&flushes),
                None => self.sites.push((caller, flushes)),
            }
        }
    }

    /// What was added up since an earlier one.
    #[must_use]
    pub fn since(&self, before: &Snapshot) -> Snapshot {
        let site = |(caller, now): &(Caller, Flushes)| {
            let known = before.sites.binary_search_by_key(caller, |(of, _)| *of);
            let was = known.map_or(Flushes::default(), |at| before.sites[at].1);
            let flushes = now.since(&was);
            (*caller, flushes)
        };
        let site = |of: &(Caller, Flushes)| Some(site(of)).filter(|of| of.1 != Flushes::default());
        let victim = |&(pid, taken, ns): &(u32, u64, u64)| {
            let known = before.victims.iter().find(|of| of.0 == pid);
            let (_, taken_before, ns_before) = known.copied().unwrap_or_default();
            (
                pid,
                taken.saturating_sub(taken_before),
                ns.saturating_sub(ns_before),
            )
        };
        let other = |&(function, pid, count): &(u64, u32, u64)| {
            let known = before
                .others
                .iter()
                .find(|of| (of.0, of.1) == (function, pid));
            (
                function,
                pid,
                count.saturating_sub(known.map_or(0, |of| of.2)),
            )
        };
        Snapshot {
            sites: self.sites.iter().filter_map(site).collect(),
            victims: self
                .victims
                .iter()
                .map(victim)
                .filter(|of| of.1 > 0)
                .collect(),
            others: self
                .others
                .iter()
                .map(other)
                .filter(|of| of.2 > 0)
                .collect(),
            lost: self.lost.saturating_sub(before.lost),
        }
    }
}

/// The sums of a place, each by its offset.
fn flushes(of: impl Fn(i16) -> u64) -> Flushes {
    Flushes {
        flushes: of(site::FLUSHES),
        full: of(site::FULL),
        pages: of(site::PAGES),
        remote: of(site::REMOTE),
        interrupts: of(site::INTERRUPTS),
        waited_ns: of(site::WAITED),
        work_ns: of(site::WORK),
    }
}

/// The sum over all CPUs of what lies at an offset of each one's value.
fn added(values: &[u64], bytes: usize, offset: i16) -> u64 {
    values
        .chunks_exact(bytes / 8)
        .map(|of| of[offset as usize / 8])
        .sum()
}

fn word(key: &[u8], at: usize) -> u64 {
    key[at..]
        .first_chunk()
        .map_or(0, |b| u64::from_ne_bytes(*b))
}

fn caller(key: &[u8]) -> Caller {
    let first = word(key, 0);
    let call = (first >> 32) as u32;
    Caller {
        pid: first as u32,
        call: (call != place::NO_CALL.cast_unsigned()).then_some(call),
        after: word(key, place::AFTER as usize),
        return_to: word(key, place::RETURN as usize),
    }
}

/// How many CPUs there can be: as many values the kernel keeps for each key.
fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit([',', '-']).next().unwrap_or("0");
    let last: usize = last.parse().map_err(io::Error::other)?;
    Ok(last + 1)
}
