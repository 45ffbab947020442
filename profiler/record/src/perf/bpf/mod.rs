//! Adds up all flushes in the kernel by process and place, without recording each.
//!
//! Four small BPF programs run at the tracepoints of a shootdown ([`programs`]). We write them in Rust with [`asm`], so
//! we need neither a BPF compiler nor an object file. The kernel's verifier checks them each time they're loaded. The
//! sums contain the exact numbers of flushes, pages, interrupts and nanoseconds for each place in a program, apart from
//! rare losses (see [`Sums::take`] and [`SumReading::lost`]). A place is the system call and the two innermost addresses of
//! the program. Recorded events have the whole stacks.
//!
//! The programs need x86-64, `CAP_BPF` and `CAP_PERFMON`, and a kernel with BPF and the names of its functions. If one
//! is missing, [`Sums::open`] reports it.

mod asm;
mod kernel;
mod programs;

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use crate::perf::sample::Flushes;
use kernel::{Buffer, Program};
use programs::{Maps, place, site, slot, victim};

/// The kernel's sums of all flushes since it was opened.
#[derive(Debug)]
pub struct Sums {
    cpus: usize,
    programs: ProgramSet,
    buffer: Buffer,
}

#[derive(Debug)]
struct ProgramSet {
    maps: Maps,
    programs: [(&'static CStr, Program); 4],
    /// Descriptors that keep the programs attached.
    attached: Vec<OwnedFd>,
}

impl ProgramSet {
    fn load(cpus: usize, flush: u64) -> io::Result<Self> {
        let maps = Maps::new(cpus, flush)?;
        let load = |program: fn(&Maps) -> Vec<u64>| Program::load(&program(&maps));
        Ok(Self {
            // We attach in this order, and detach in the opposite one. `exit` needs the time of `entry`, and queued work
            // needs `exit`. A request must not be queued while `flush` doesn't see the next one, which ends it: its
            // wait would last until summing goes on.
            programs: [
                (c"csd_function_entry", load(programs::entry)?),
                (c"csd_function_exit", load(programs::exit)?),
                (c"tlb_flush", load(programs::flush)?),
                (c"csd_queue_cpu", load(programs::queue)?),
            ],
            maps,
            attached: Vec::new(),
        })
    }

    /// Attaches or detaches the programs.
    fn set(&mut self, run: bool) -> io::Result<()> {
        match (run, self.attached.is_empty()) {
            (true, true) => {
                for (tracepoint, program) in &self.programs {
                    self.attached.push(program.attach(tracepoint)?);
                }
            }
            (false, false) => while self.attached.pop().is_some() {},
            _ => {}
        }
        Ok(())
    }
}

/// The place that flushes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The process. 0 is the idle task.
    pub pid: u32,
    /// The number of the system call. `None` in a page fault, or in a kernel thread.
    pub call: Option<u32>,
    /// The instruction after the call.
    pub after: u64,
    /// The return address of the function around the call, if it has no frame.
    pub return_to: u64,
}

/// What flushes or interrupts are summed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SumOf {
    /// Flushes from a place.
    Place(Caller),
    /// Interrupts that a process took for flushes of others, and their work.
    Taken(u32),
    /// Interrupts for another function, by its address.
    Queued(u64),
}

/// A sum, and a thread that made flushes of other CPUs, or 0.
pub type Sum = (SumOf, Flushes, u32);

/// The sums since the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SumReading {
    /// The sums.
    pub sums: Vec<Sum>,
    /// Flushes that CPUs still hold for the place that flushed last.
    ///
    /// The next reading contains them again, here or in `sums`.
    pub held: Vec<Sum>,
    /// Flushes since the start that were lost because there was no room for their place.
    pub lost: u64,
}

impl Sums {
    /// Starts to add up flushes. `flush` is the address of the kernel's function `flush_tlb_func`.
    pub fn open(flush: u64) -> io::Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            let why = "flushes send no interrupts on this architecture";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let cpus = possible_cpus()?;
        let mut sums =
            Self { cpus, programs: ProgramSet::load(cpus, flush)?, buffer: Buffer::default() };
        sums.set(true)?;
        Ok(sums)
    }

    /// Attaches or detaches the programs.
    ///
    /// Requests that have not ended are forgotten. Otherwise an interrupt after the pause could end one, and its wait
    /// would contain the pause.
    pub fn set(&mut self, run: bool) -> io::Result<()> {
        self.programs.set(run)?;
        if run { Ok(()) } else { self.programs.maps.queued.take(&mut self.buffer, |_, _| {}) }
    }

    /// Makes the kernel time the programs until the returned descriptor is dropped.
    pub fn time(&self) -> io::Result<OwnedFd> {
        kernel::time_programs()
    }

    /// Returns the time that the programs took while they were timed, in nanoseconds.
    pub fn timed_ns(&self) -> io::Result<u64> {
        let programs = self.programs.programs.iter();
        programs.map(|(_, program)| program.timed_ns()).sum()
    }

    /// Takes the sums since the last reading.
    ///
    /// Flushes are lost if a CPU adds them between the reading of a place and its removal, within nanoseconds. A place
    /// that flushes repeatedly isn't affected, because its CPU holds its sums.
    pub fn take(&mut self) -> io::Result<SumReading> {
        let (maps, buffer) = (&self.programs.maps, &mut self.buffer);
        let mut taken = SumReading::default();
        maps.sites.take(buffer, |key, values| {
            let each = values.chunks_exact(site::BYTES / 8);
            let most = each.max_by_key(|of| of[site::INTERRUPTS as usize / 8]);
            let thread = most.map_or(0, |of| of[site::THREAD as usize / 8] as u32);
            let flushes = flushes(|offset| added(values, site::BYTES, offset));
            taken.sums.push((SumOf::Place(caller(key)), flushes, thread));
        })?;
        maps.victims.take(buffer, |key, values| {
            let of = |offset: i16| added(values, victim::BYTES, offset);
            let (interrupts, work_ns) = (of(victim::INTERRUPTS), of(victim::WORK));
            let sum = Flushes { interrupts, work_ns, ..Flushes::default() };
            taken.sums.push((SumOf::Taken(word(key, 0) as u32), sum, 0));
        })?;
        maps.others.take(buffer, |key, values| {
            let sum = Flushes { interrupts: values.iter().sum(), ..Flushes::default() };
            taken.sums.push((SumOf::Queued(word(key, 0)), sum, 0));
        })?;
        for cpu in 0..self.cpus as u32 {
            taken.hold(&self.programs.maps.slots.get(&cpu.to_ne_bytes())?);
        }
        Ok(taken)
    }
}

impl SumReading {
    /// Adds the sums that a CPU holds.
    fn hold(&mut self, slot: &[u64]) {
        let of = |offset: i16| slot[offset as usize / 8];
        let bytes = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        self.lost += of(slot::LOST);
        let mut remote = flushes(|offset| of(slot::SITE + offset));
        // The slot's last request hasn't ended yet.
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
        let thread = of(slot::SITE + site::THREAD) as u32;
        let held = [(SumOf::Place(place), remote, thread), (SumOf::Place(call), local, 0)];
        self.held.extend(held.into_iter().filter(|(_, of, _)| *of != Flushes::default()));
    }
}

/// Reads the sums of a place, each by its offset.
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

fn added(values: &[u64], bytes: usize, offset: i16) -> u64 {
    values.chunks_exact(bytes / 8).map(|of| of[offset as usize / 8]).sum()
}

fn word(key: &[u8], at: usize) -> u64 {
    key[at..].first_chunk().map_or(0, |b| u64::from_ne_bytes(*b))
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

/// Returns the number of possible CPUs. The kernel keeps as many values for each key.
fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit([',', '-']).next().unwrap_or("0");
    let last: usize = last.parse().map_err(io::Error::other)?;
    Ok(last + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::thread::{CpuSet, sched_setaffinity};

    use super::*;

    #[test]
    fn a_flush_that_nobody_was_seen_to_queue_ends_no_earlier_request() {
        const FLUSH: u64 = 0x1234;
        const WORK: u64 = 0x5678;
        let cpus = possible_cpus().unwrap();
        let programs = match ProgramSet::load(cpus, FLUSH) {
            Ok(programs) => programs,
            Err(refused) => return eprintln!("NOT RUN: {refused}"),
        };
        let mut sums = Sums { cpus, programs, buffer: Buffer::default() };
        // A request and its target share this CPU's slot.
        let mut here = CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        // Whatever is queued while `flush` is detached would wait until it is attached again.
        let order = sums.programs.programs.each_ref().map(|(name, _)| *name);
        assert_eq!(order[2..], [c"tlb_flush", c"csd_queue_cpu"]);
        let asked = |sums: &Sums| {
            let [_, _, flush, queue] = &sums.programs.programs;
            flush.1.run(&[4, 1]).unwrap();
            queue.1.run(&[0, 0, FLUSH, WORK]).unwrap();
        };
        let target = |sums: &Sums| {
            let [entry, exit, ..] = &sums.programs.programs;
            entry.1.run(&[FLUSH, WORK]).unwrap();
            exit.1.run(&[FLUSH, WORK]).unwrap();
        };
        asked(&sums);
        target(&sums);
        std::thread::sleep(Duration::from_millis(50));
        target(&sums);
        // Summing pauses while a target is late. After the pause it flushes for another request.
        asked(&sums);
        sums.set(false).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        target(&sums);
        asked(&sums);
        target(&sums);
        let taken = sums.take().unwrap();
        let mut all = Flushes::default();
        let places = taken.sums.iter().chain(&taken.held);
        let places = places.filter(|(of, ..)| matches!(of, SumOf::Place(_)));
        places.for_each(|(_, flushes, _)| all.add(flushes));
        assert_eq!((all.flushes, all.remote, all.interrupts), (3, 3, 3));
        assert!(all.waited_ns > 0 && all.waited_ns < 40_000_000, "{all:?}");
    }
}
