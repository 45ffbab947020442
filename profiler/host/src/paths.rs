//! Measures the cost of the running kernel's own code, and makes a kernel file for the model.
//!
//! We time each operation on this host, alone and while a second thread of the process repeats it on memory of its own.
//! Then the model performs the same operation. The difference is the cost of the code that the model lacks. We add it
//! to the model before we compare the next operation, so no cost is counted twice.
//!
//! Operations on pages go through 64 MB once, so the kernel's records of pages and the entries of its tables come from
//! memory. With 2 MB they stay in the caches, and removing a page takes a fifth less. There are few areas, as in most
//! programs.
//!
//! If two threads slow each other down, they share a lock or a core. The file has no figures for the locks that a
//! kernel holds with interrupts off: two CPUs are too few to measure them.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use quell_clock::{KernelFile, MachineFile, Parameter as P};
use quell_model::jobs::Job;
use quell_model::kernels;
use quell_threads::cores;
use quell_workloads::Workload;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::Advice;
use serde::Serialize;

use crate::live::machine_file::nearest_built_in;
use crate::memory::{Mapping, page_size};
use crate::predict::kernel::Kernel;
use crate::process::{OwnProcess, null_call, release};
use crate::processor::Processor;

/// The number of pages of a region: more than the caches hold.
const PAGES: usize = 16_384;
/// The number of pages of a page table, and of ranges in one call.
const TABLE: usize = 512;
/// The number of separate regions.
const REGIONS: usize = 64;

/// An operation, on this host and in the model.
struct Operation {
    cost: P,
    what: &'static str,
    /// Performs it many times on fresh memory. Returns the time of one.
    host: fn() -> io::Result<Duration>,
    /// Statements of a workload: the preparation, and the timed part.
    model: [&'static str; 2],
    /// The number of operations in the timed part.
    count: usize,
}

/// A measured operation.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredOperation {
    /// The parameter of the kernel file.
    pub parameter: String,
    /// The operation in words.
    pub what: &'static str,
    /// The least time of one operation, in nanoseconds.
    pub alone_ns: f64,
    /// The same while another thread repeats the operation; absent on one CPU.
    pub pair_ns: Option<f64>,
    /// The model's time without this cost.
    pub model_ns: f64,
    /// The difference: the kernel's own code.
    pub cost_ns: f64,
}

/// A measured kernel.
#[derive(Debug, Serialize)]
pub struct Profile {
    /// The kernel's release.
    pub release: String,
    /// The machine on which the model performed the operations.
    pub machine: String,
    /// The cost of each operation.
    pub costs: Vec<MeasuredOperation>,
    /// The content of the kernel file.
    pub text: String,
}

fn time(count: usize, body: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let begin = Instant::now();
    body()?;
    Ok(begin.elapsed() / count as u32)
}

/// Maps memory and makes each page present.
fn written() -> io::Result<Mapping> {
    let map = Mapping::base_pages(PAGES)?;
    map.touch(page_size(), 1);
    Ok(map)
}

/// Times the first write of each page. The page tables exist already.
fn first_writes(map: &Mapping) -> io::Result<Duration> {
    map.touch(TABLE * page_size(), 1);
    time(PAGES, || {
        map.touch(page_size(), 1);
        Ok(())
    })
}

/// Times a read of each page.
fn reads(map: &Mapping) -> io::Result<Duration> {
    time(PAGES, || {
        map.read(page_size());
        Ok(())
    })
}

fn each_page(mut body: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
    (0..PAGES).try_for_each(|page| body(page * page_size()))
}

/// Creates a file in memory whose pages exist.
fn in_memory() -> io::Result<File> {
    let file = File::from(memfd_create(c"quell", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, (PAGES * page_size()) as u64)?;
    Mapping::file(&file, PAGES * page_size(), true)?.touch(page_size(), 1);
    Ok(file)
}

/// Maps pages with alternating rights, so that the kernel merges no two of them into one area.
fn regions() -> io::Result<Vec<Mapping>> {
    let one = |index: usize| {
        let map = Mapping::anonymous(page_size())?;
        map.protect(0, page_size(), index.is_multiple_of(2))?;
        Ok(map)
    };
    (0..REGIONS).map(one).collect()
}

/// Creates a file on a disk that consists of a hole, and maps it.
fn holes() -> io::Result<(File, Mapping)> {
    let file = tempfile::tempfile()?;
    ftruncate(&file, (PAGES * page_size()) as u64)?;
    let map = Mapping::file(&file, PAGES * page_size(), false)?;
    // The model reads nothing ahead, so it has no large pages of files.
    map.advise(0, map.len(), Advice::Random)?;
    Ok((file, map))
}

const WRITTEN: &str = r#"{ map = "area", bytes = "64M" }, { write = "area", bytes = "64M" }"#;
const FILE: &str = r#"{ create = "file", bytes = "64M" },
                      { map = "area", bytes = "64M", shared = "file" },
                      { write = "area", bytes = "64M" }, { unmap = "area", bytes = "64M" }, "#;

/// The operations, in an order in which none needs the cost of a later one.
const OPERATIONS: &[Operation] = &[
    Operation {
        cost: P::SystemCall,
        what: "a call that does nothing",
        host: || {
            time(PAGES, || {
                (0..PAGES).for_each(|_| null_call());
                Ok(())
            })
        },
        model: ["", "{ repeat = 16384, do = [ { nothing = true } ] }"],
        count: PAGES,
    },
    Operation {
        cost: P::Fault,
        what: "first read of a page whose table exists",
        host: || {
            let map = Mapping::base_pages(PAGES)?;
            map.touch(TABLE * page_size(), 1);
            reads(&map)
        },
        // Linux maps its page of zeros. In the model a page of a file has the same effect: it's mapped without zeroing.
        model: [
            r#"{ use = "file" }, { map = "area", bytes = "64M", shared = "file" },
               { read = "area", bytes = "64M", stride = "2M" }"#,
            r#"{ read = "area", bytes = "64M" }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::FaultAnonymous,
        what: "first write of a page whose table exists",
        host: || {
            let map = Mapping::base_pages(PAGES)?;
            first_writes(&map)
        },
        model: [
            r#"{ map = "area", bytes = "64M" }, { write = "area", bytes = "64M", stride = "2M" }"#,
            r#"{ write = "area", bytes = "64M" }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::Zap,
        what: "a page of 16 384 that are discarded together",
        host: || {
            let map = written()?;
            time(PAGES, || map.advise(0, map.len(), Advice::LinuxDontNeed))
        },
        model: [WRITTEN, r#"{ discard = "area", bytes = "64M" }"#],
        count: PAGES,
    },
    Operation {
        cost: P::AdviseArea,
        what: "one of 512 ranges of a page that are discarded together",
        host: || {
            let map = written()?;
            let ranges: Vec<_> =
                (0..PAGES).map(|page| map.range(page * page_size(), page_size())).collect();
            let process = OwnProcess::open()?;
            let mut calls = ranges.chunks(TABLE);
            time(PAGES, || calls.try_for_each(|some| process.advise(some, Advice::LinuxDontNeed)))
        },
        // A different largest page size keeps the areas separate.
        model: [
            r#"{ map = "area", bytes = "64M" }, { for = "at", below = "64M", by = "8K", do = [
               { map = "page", bytes = "4K", at = "area + at", page = "2M" } ] },
               { write = "area", bytes = "64M" }"#,
            r#"{ for = "at", below = "64M", by = "2M", do = [
               { discard = "area + at", bytes = "2M" } ] }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::AdviseCall,
        what: "a page discarded alone",
        host: || {
            let map = written()?;
            time(PAGES, || each_page(|at| map.advise(at, page_size(), Advice::LinuxDontNeed)))
        },
        model: [
            WRITTEN,
            r#"{ for = "at", below = "64M", by = "4K", do = [
               { discard = "area + at", bytes = "4K" } ] }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::MapCall,
        what: "mapping a page",
        host: || {
            let begin = Instant::now();
            let all = (0..REGIONS).map(|_| Mapping::anonymous(page_size()));
            let all = all.collect::<io::Result<Vec<_>>>()?;
            let took = begin.elapsed() / REGIONS as u32;
            drop(all);
            Ok(took)
        },
        model: ["", r#"{ repeat = 64, do = [ { map = "area", bytes = "4K" } ] }"#],
        count: REGIONS,
    },
    Operation {
        cost: P::ProtectCall,
        what: "changing the rights of a page in the middle of an area",
        host: || {
            let map = Mapping::base_pages(3)?;
            map.touch(page_size(), 1);
            let change = |turn| map.protect(page_size(), page_size(), turn % 2 == 1);
            time(REGIONS, || (0..REGIONS).try_for_each(change))
        },
        model: [
            r#"{ map = "area", bytes = "12K" }, { write = "area", bytes = "12K" }"#,
            r#"{ repeat = 32, do = [ { protect = "area + 4K", bytes = "4K", protection = "r" },
               { protect = "area + 4K", bytes = "4K", protection = "rw" } ] }"#,
        ],
        count: REGIONS,
    },
    Operation {
        cost: P::Change,
        what: "a page of 16 384 whose rights change together",
        host: || {
            let map = written()?;
            time(2 * PAGES, || {
                map.protect(0, map.len(), false)?;
                map.protect(0, map.len(), true)
            })
        },
        model: [
            WRITTEN,
            r#"{ protect = "area", bytes = "64M", protection = "r" },
               { protect = "area", bytes = "64M", protection = "rw" }"#,
        ],
        count: 2 * PAGES,
    },
    Operation {
        cost: P::UnmapCall,
        what: "unmapping a written page",
        host: || {
            let all = regions()?;
            all.iter().step_by(2).for_each(|map| map.touch(page_size(), 1));
            let kept: Vec<_> = all.into_iter().enumerate().collect();
            let (written, others): (Vec<_>, Vec<_>) =
                kept.into_iter().partition(|(index, _)| index.is_multiple_of(2));
            let took = time(REGIONS / 2, || {
                drop(written);
                Ok(())
            })?;
            drop(others);
            Ok(took)
        },
        model: [
            WRITTEN,
            r#"{ for = "at", below = "512K", by = "8K", do = [
               { unmap = "area + at", bytes = "4K" } ] }"#,
        ],
        count: REGIONS,
    },
    Operation {
        cost: P::Table,
        what: "first write of a page that needs a table",
        host: || {
            let map = Mapping::base_pages(REGIONS * TABLE)?;
            time(REGIONS, || {
                map.touch(TABLE * page_size(), 1);
                Ok(())
            })
        },
        model: [
            r#"{ map = "area", bytes = "64 * 2M" }"#,
            r#"{ write = "area", bytes = "64 * 2M", stride = "2M" }"#,
        ],
        count: REGIONS,
    },
    Operation {
        cost: P::FaultFile,
        what: "first write of a page of a shared file in memory",
        host: || {
            let file = in_memory()?;
            let map = Mapping::file(&file, PAGES * page_size(), true)?;
            first_writes(&map)
        },
        model: [
            r#"{ use = "file" }, { map = "area", bytes = "64M", shared = "file" },
               { write = "area", bytes = "64M", stride = "2M" }"#,
            r#"{ write = "area", bytes = "64M" }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::FaultCopy,
        what: "first write of a page of a private file in memory",
        host: || {
            let file = in_memory()?;
            let map = Mapping::private(&file, PAGES * page_size())?;
            first_writes(&map)
        },
        model: [
            r#"{ use = "file" }, { map = "area", bytes = "64M", private = "file" },
               { write = "area", bytes = "64M", stride = "2M" }"#,
            r#"{ write = "area", bytes = "64M" }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::CacheInsert,
        what: "first read of a page of a file without content",
        host: || {
            let (_file, map) = holes()?;
            reads(&map)
        },
        model: [
            r#"{ create = "file", bytes = "64M" },
               { map = "area", bytes = "64M", shared = "file" }"#,
            r#"{ read = "area", bytes = "64M" }"#,
        ],
        count: PAGES,
    },
    Operation {
        cost: P::Evict,
        what: "a page of a file without content, reclaimed",
        host: || {
            let (file, map) = holes()?;
            map.read(page_size());
            let took = time(PAGES, || map.advise(0, map.len(), Advice::LinuxPageOut))?;
            // Whatever stayed in the cache goes, too.
            file.sync_data()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(took)
        },
        model: [
            r#"{ create = "file", bytes = "64M" },
               { map = "area", bytes = "64M", shared = "file" }, { read = "area", bytes = "64M" }"#,
            r#"{ page_out = "area", bytes = "64M" }"#,
        ],
        count: PAGES,
    },
];

impl Operation {
    /// Returns the least time of one operation on this host, in nanoseconds. Repeats it for `budget`, and at least 3
    /// times.
    fn alone(&self, budget: Duration) -> io::Result<f64> {
        let end = Instant::now() + budget;
        let mut least = Duration::MAX;
        let mut rounds = 0;
        while rounds < 3 || Instant::now() < end {
            least = least.min((self.host)()?);
            rounds += 1;
        }
        Ok(least.as_secs_f64() * 1e9)
    }

    /// Returns the same while another thread of this process repeats the operation. `None` on one CPU.
    fn paired(&self, cpus: &[usize], budget: Duration) -> io::Result<Option<f64>> {
        let &[_, other, ..] = cpus else {
            return Ok(None);
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let repeat = scope.spawn(|| {
                let _ = cores::pin(&[other]);
                while !over.load(Ordering::Relaxed) {
                    (self.host)()?;
                }
                io::Result::Ok(())
            });
            let found = self.alone(budget);
            over.store(true, Ordering::Relaxed);
            let repeated = repeat.join();
            repeated.unwrap_or_else(|panicked| resume_unwind(panicked))?;
            found.map(Some)
        })
    }

    /// Returns the model's time of one operation, in nanoseconds.
    fn modelled(&self, machine: &MachineFile) -> anyhow::Result<f64> {
        let [before, timed] = self.model;
        let before = before.replace("{ use = \"file\" }, ", FILE);
        let text = format!(
            "name = \"path\"\ntitle = \"{}\"\nmechanism = \"S4\"\n[memory]\ntouched = \"256M\"\n\
             [figure]\nsays = \"ns\"\nvalue = \"done / {}\"\n[operation]\nis = \"operation\"\n\
             [[threads]]\nprogram = [ {before}{} {{ begin = true }}, {{ let = \"start\", be = \"now\" }}, {timed}, \
             {{ done = \"now - start\" }}, {{ end = true }} ]\n",
            self.what,
            self.count,
            if before.is_empty() || before.ends_with(", ") { "" } else { "," },
        );
        let workload = Workload::parse("path.toml", &text).with_context(|| self.what)?;
        let policy = Kernel::running().map_or_else(|_| quell::Policy::default(), |one| one.policy);
        Ok(Job::new(machine.clone().into(), workload, policy, 1).run()?.measure.value)
    }
}

/// Measures the running kernel for about `seconds`, and returns its kernel file.
///
/// # Errors
/// If memory or a temporary file is lacking, or the model fails.
pub fn measure(seconds: f64) -> anyhow::Result<Profile> {
    let cpus = cores::allowed().context("cannot read the CPU affinity")?;
    let share = Duration::from_secs_f64(seconds / OPERATIONS.len() as f64 / 2.0);
    let mut machine =
        nearest_built_in()?.with_kernel(&kernels::find("quell-vm").map_err(anyhow::Error::msg)?);
    if let Some(mhz) = Processor::of_this_host().megahertz {
        machine = machine.with_text("/proc/cpuinfo", &[format!("cpu.frequency={mhz}MHz")])?;
    }
    // The kernel reads pages without content from no device.
    machine =
        machine.with_text("holes", &["kernel.device_read=0ns", "kernel.device_rate=1000GB/s"])?;
    let gigahertz = machine.amount(P::Frequency);
    let release = release();
    let numbers = release.split(['-', '+']).next().unwrap_or_default();
    let number: Vec<_> = numbers.split('.').take(2).collect();
    let mut text = format!(
        "# Written by `quell measure paths`.\nname = \"linux-{}\"\ntitle = \"Linux {release}, as measured on {}\"\n\
         based_on = \"quell-vm\"\n\n[kernel]\n",
        number.join("."),
        Processor::of_this_host().model.unwrap_or_else(|| "this host".into()),
    );
    let mut costs = Vec::new();
    std::thread::scope(|scope| {
        // We measure on a new thread, so that the caller's CPU affinity stays as it is.
        let work = scope.spawn(|| -> anyhow::Result<()> {
            let _ = cores::pin(&cpus[..1]);
            for operation in OPERATIONS {
                let alone_ns = operation.alone(share).context(operation.what)?;
                let pair_ns = operation.paired(&cpus, share).context(operation.what)?;
                machine = machine.with(operation.cost, 0.0)?;
                let model_ns = operation.modelled(&machine)?;
                let cost_ns = (alone_ns - model_ns).max(0.0);
                machine = machine.with(operation.cost, cost_ns * 1e3)?;
                let name = operation.cost.description().key;
                writeln!(
                    text,
                    "{name} = {{ value = {:.0}, unit = \"cycles\", source = \"quell measure paths: {}, {alone_ns:.0} ns, \
                     minus the model's {model_ns:.0} ns\" }}",
                    cost_ns * gigahertz,
                    operation.what
                )?;
                costs.push(MeasuredOperation {
                    parameter: operation.cost.name(),
                    what: operation.what,
                    alone_ns,
                    pair_ns,
                    model_ns,
                    cost_ns,
                });
            }
            Ok(())
        });
        // The panic tells the command whether the system refused a thread.
        work.join().unwrap_or_else(|panicked| resume_unwind(panicked))
    })?;
    KernelFile::parse("the measured kernel", &text)?;
    Ok(Profile { release, machine: machine.name().into(), costs, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each operation runs on the host and in the model, and adding a cost to the model makes it slower by that much.
    #[test]
    fn every_cost_is_seen_by_its_operation() {
        let machine = nearest_built_in().unwrap();
        let machine = machine.with_kernel(&kernels::find("quell-vm").unwrap());
        for operation in OPERATIONS {
            assert!((operation.host)().unwrap() > Duration::ZERO, "{}", operation.what);
            let without = machine.with(operation.cost, 0.0).unwrap();
            let with = machine.with(operation.cost, 1e6).unwrap();
            let [without, with] = [without, with].map(|one| operation.modelled(&one).unwrap());
            let more = with - without;
            assert!((900.0..1150.0).contains(&more), "{}: {more} ns", operation.what);
        }
    }
}
