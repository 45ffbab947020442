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
    cpus: usize,
    programs: Attachable,
    /// A second copy of them, which nobody reads.
    copy: Attachable,
}

/// The programs with what they share.
#[derive(Debug)]
struct Attachable {
    maps: Maps,
    programs: [(&'static CStr, Program); 4],
    /// What runs them, while they run.
    attached: Vec<OwnedFd>,
}

impl Attachable {
    /// Loads them.
    fn load(cpus: usize, flush: u64) -> io::Result<Self> {
        let maps = Maps::new(cpus)?;
        let numbers = maps.numbers(flush);
        let load = |code: Vec<u64>| Program::load(&code);
        Ok(Self {
            // An end is timed from its begin, and is looked for once it was queued.
            programs: [
                (c"csd_function_entry", load(programs::entry(&numbers))?),
                (c"csd_function_exit", load(programs::exit(&numbers))?),
                (c"csd_queue_cpu", load(programs::queue(&numbers))?),
                (c"tlb_flush", load(programs::flush(&numbers))?),
            ],
            maps,
            attached: Vec::new(),
        })
    }

    /// Runs them, or not.
    fn set(&mut self, run: bool) -> io::Result<()> {
        match (run, self.attached.is_empty()) {
            (true, true) => {
                for (tracepoint, program) in &self.programs {
                    self.attached.push(program.attach(tracepoint)?);
                }
            }
            // What was queued last is not looked for any more.
            (false, false) => while self.attached.pop().is_some() {},
            _ => {}
        }
        Ok(())
    }
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
    fn new(cpus: usize) -> io::Result<Self> {
        Ok(Self {
            slots: Map::new(Kind::Array, 4, slot::BYTES, cpus, cpus)?,
            sites: Map::new(Kind::EachCpuHash, place::BYTES, site::BYTES, PLACES, cpus)?,
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

/// What was added up since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Flushes by their place.
    pub sites: Vec<(Caller, Flushes)>,
    /// What CPUs hold back of the place that flushed last: it is there again the next time, as it is then, or among the sites.
    pub held: Vec<(Caller, Flushes)>,
    /// By process: how many interrupts it took for flushes of others, and for how many nanoseconds.
    pub victims: Vec<(u32, u64, u64)>,
    /// Other work that was queued for a CPU: the address of its function, how often.
    pub others: Vec<(u64, u64)>,
    /// Flushes whose place found no room, since the beginning.
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
        let mut sums = Self {
            cpus,
            programs: Attachable::load(cpus, flush)?,
            copy: Attachable::load(cpus, flush)?,
        };
        sums.set(true, false)?;
        Ok(sums)
    }

    /// Adds up from now on, or not; and all of it a second time, which costs as much again and tells nothing else.
    ///
    /// # Errors
    ///
    /// The kernel has no more room for programs.
    pub fn set(&mut self, once: bool, twice: bool) -> io::Result<()> {
        self.programs.set(once)?;
        self.copy.set(twice)
    }

    /// Takes what was added up since the last time. What a CPU adds in the nanoseconds between the reading of a place and its
    /// removal is lost; a place that flushes again and again is not read then, but held back with its CPU.
    ///
    /// # Errors
    ///
    /// The kernel does not hand its maps out.
    pub fn take(&self) -> io::Result<Taken> {
        let maps = &self.programs.maps;
        let sites = maps.sites.take()?.into_iter().map(|(key, values)| {
            let flushes = flushes(|offset| added(&values, site::BYTES, offset));
            (caller(&key), flushes)
        });
        let victims = maps.victims.take()?.into_iter().map(|(key, values)| {
            let of = |offset: i16| added(&values, victim::BYTES, offset);
            (
                word(&key, 0) as u32,
                of(victim::INTERRUPTS),
                of(victim::WORK),
            )
        });
        let others = maps.others.take()?.into_iter();
        let others = others.map(|(key, values)| (word(&key, 0), values.iter().sum()));
        let mut taken = Taken {
            sites: sites.collect(),
            victims: victims.collect(),
            others: others.collect(),
            ..Taken::default()
        };
        for slot in self.slots()? {
            taken.hold(&slot);
        }
        if !self.copy.attached.is_empty() {
            self.copy.maps.sites.take()?;
        }
        Ok(taken)
    }

    /// What is known of each CPU.
    fn slots(&self) -> io::Result<Vec<Vec<u64>>> {
        let slot = |cpu: usize| {
            let values = self.programs.maps.slots.get(&(cpu as u32).to_ne_bytes())?;
            Ok(values.unwrap_or_else(|| vec![0; slot::BYTES / 8]))
        };
        (0..self.cpus).map(slot).collect()
    }
}

impl Taken {
    /// Adds what a CPU holds back.
    fn hold(&mut self, slot: &[u64]) {
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
            if flushes != Flushes::default() {
                self.held.push((caller, flushes));
            }
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
