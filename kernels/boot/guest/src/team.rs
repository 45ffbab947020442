//! Starts a job's processes and threads, and collects their results.

use crate::control::{Control, pin};
use crate::counters::Recorder;
use crate::linux::Linux;
use crate::pingpong::{self, Ring};
use crate::protocol::{Job, Window};
use crate::setup;
use anyhow::{Context, anyhow, bail};
use quell_workloads::{Failure, Workload};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, read_to_string};
use std::io::{Read, Write};
use std::ops::Range;

/// The file of this process's mappings.
const MAPS: &str = "/proc/self/maps";
/// The seed of a workload's random choices.
const SEED: u64 = 1;

/// Performs a job.
pub fn perform(job: &Job) -> anyhow::Result<Window> {
    let mut workload = match &job.file {
        Some(text) => Workload::parse(&job.workload, text).map_err(|wrong| anyhow!("{wrong}"))?,
        None => Workload::from_name(&job.workload)
            .with_context(|| format!("no workload {}", job.workload))?,
    };
    for pair in &job.parameters {
        workload.set(pair)?;
    }
    workload.check(job.team).map_err(|needs| anyhow!("needs {needs}"))?;
    setup::clean()?;
    let control = Control::new()?;
    if job.file.is_none() && workload.name() == "pingpong" {
        let count = workload.get("processes").unwrap_or(1) as usize;
        let ring = Ring::new(job.handover, count)?;
        return processes(count, &|process| {
            pingpong::run(&workload, job.traced, &ring, control, process)
        });
    }
    let count = workload.processes();
    let memory = workload.memory(job.team);
    // If memory must run short, this is all memory: here ordinary and slow memory are the same.
    let all = memory.nodes * memory.node + memory.slow.unwrap_or(0);
    let limit = memory.ahead.map(|_| all);
    if let Some(bytes) = limit {
        setup::limit(bytes)?;
    }
    processes(count, &|process| {
        if limit.is_some() {
            setup::join_group()?;
        }
        self::process(&workload, job, control, process, job.team / count)
    })
}

/// Runs `body` on a thread for each of these CPUs: this thread for the first, new ones for the others. Returns their
/// results in order.
pub fn threads<T: Send>(
    mut cpus: Range<usize>,
    body: impl Fn(usize) -> anyhow::Result<T> + Copy + Send,
) -> Vec<anyhow::Result<T>> {
    let first = cpus.next();
    std::thread::scope(|scope| {
        let others: Vec<_> = cpus.map(|cpu| scope.spawn(move || body(cpu))).collect();
        let panicked = |_| Err(anyhow!("a thread panicked"));
        let mut results: Vec<_> = first.map(body).into_iter().collect();
        results.extend(others.into_iter().map(|other| other.join().unwrap_or_else(panicked)));
        results
    })
}

/// Runs the threads of one process. Returns the window, for the first thread of the first process.
fn process(
    workload: &Workload,
    job: &Job,
    control: &'static Control,
    process: usize,
    count: usize,
) -> anyhow::Result<Option<Window>> {
    let run = |cpu: usize| -> anyhow::Result<Recorder> {
        pin(cpu)?;
        let user = Linux::new(control, cpu, job.team, process, job.traced);
        workload.run(&user, SEED)?;
        Ok(user.recorder.into_inner())
    };
    let results = threads(process * count..(process + 1) * count, run);
    // We prefer the error of a thread that failed by itself to those of threads that ended because of it.
    let elsewhere =
        |error: &anyhow::Error| matches!(error.downcast_ref(), Some(Failure::Elsewhere));
    let (mut recorders, mut failure) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(recorder) => recorders.push(recorder),
            Err(error) if failure.as_ref().is_none_or(elsewhere) => failure = Some(error),
            Err(_) => {}
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    if process != 0 {
        return Ok(None);
    }
    let words =
        std::array::from_fn(|index| control.words[index].load(std::sync::atomic::Ordering::SeqCst));
    let window =
        quell_workloads::Window::of(&words).context("the workload did not get to its end")?;
    recorders.swap_remove(0).window(window.done, window.nanoseconds).map(Some)
}

/// A process of a job, and the file that contains its result.
struct Child {
    id: Pid,
    result: File,
}

/// Runs `body` in this many processes. Returns the result of the process that measured.
pub fn processes<T: Serialize + DeserializeOwned>(
    count: usize,
    body: &dyn Fn(usize) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let mut children = Vec::new();
    for process in 0..count {
        match start(process, body) {
            Ok(child) => children.push(child),
            Err(error) => {
                end(&children);
                return Err(error);
            }
        }
    }
    let (mut failure, mut running) = (None, count);
    while running > 0 {
        let ended = wait(WaitOptions::empty()).context("waiting for a process")?;
        let Some((id, status)) = ended else { continue };
        // If a process of the job has created another, a signal ends that one with its parent, and it arrives here as
        // an orphan.
        if !children.iter().any(|child| child.id == id) {
            continue;
        }
        running -= 1;
        if let (Some(signal), None) = (status.terminating_signal(), &failure) {
            failure = Some(anyhow!("process {id} was ended by signal {signal}"));
            // The others would wait for this one.
            end(&children);
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut measured: Option<T> = None;
    for mut child in children {
        let mut text = String::new();
        child.result.read_to_string(&mut text).context("a process's result")?;
        let result: Result<Option<T>, String> =
            serde_json::from_str(&text).context("a process's result")?;
        measured = measured.or(result.map_err(|why| anyhow!(why))?);
    }
    measured.context("no process measured")
}

fn end(children: &[Child]) {
    for child in children {
        // A process that has already ended needs no signal.
        let _ = kill_process(child.id, Signal::KILL);
    }
}

fn start<T: Serialize>(
    process: usize,
    body: &dyn Fn(usize) -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Child> {
    let (result, say) = pipe_with(PipeFlags::CLOEXEC).context("a pipe")?;
    let (result, mut say) = (File::from(result), File::from(say));
    // SAFETY: this process has one thread, so its copy finds every lock free. rustix has no call that creates a
    // process.
    let id = unsafe { libc::fork() };
    if id < 0 {
        bail!("a process: {}", std::io::Error::last_os_error());
    }
    match Pid::from_raw(id) {
        None => {
            let result = own_memory().and_then(|()| body(process));
            let result = result.map_err(|error| format!("{error:#}"));
            let text = serde_json::to_string(&result).unwrap_or_default();
            let _ = say.write_all(text.as_bytes());
            // SAFETY: ends this copy without running exit handlers of the original; rustix has no such call.
            unsafe { libc::_exit(0) }
        }
        Some(id) => Ok(Child { id, result }),
    }
}

/// Writes to each page that this process, still single-threaded, shares with its parent since `fork`, without changing
/// the content. Inside a window, the first write to such a page would copy it and flush the old one, with as many
/// interrupts as threads.
fn own_memory() -> anyhow::Result<()> {
    let maps = read_to_string(MAPS).context(MAPS)?;
    let writable = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        rest.starts_with("rw-p").then(|| range.split_once('-'))?
    });
    for (from, to) in writable {
        let address = |text| usize::from_str_radix(text, 16).context(MAPS);
        for page in (address(from)?..address(to)?).step_by(4096) {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(page);
            // SAFETY: the page is mapped, readable and writable, and nothing else runs in this process.
            unsafe { byte.write_volatile(byte.read_volatile()) };
        }
    }
    Ok(())
}
