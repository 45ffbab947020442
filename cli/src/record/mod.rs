//! `quell record`: measures the cost of TLB shootdowns for programs, on this host or from a recording of another.

pub mod advise;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod attempt;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod live;
mod read;
mod replay;
mod show;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod top;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use quell_clock::MachineFile;
use quell_host::predict::recorded::replay_busiest;
use quell_record::attribute::Attribution;
use quell_record::perf::Source;
use quell_record::report::Report;
use quell_record::show::folded::WeightKind;
use quell_record::show::perfetto::Perfetto;
use quell_record::show::timeline::Timeline;
use quell_record::show::{folded, page};
use quell_workloads::files::hint;

use crate::destination;
use quell_model::output::{Destination, INTERRUPTED, note};
use quell_model::usage::usage;
use read::{analysed, open};

/// Record a program's shootdowns: calls that cause them, threads that pay, changes that help
///
/// Records as root or with CAP_PERFMON: `quell record -- COMMAND`, `-p PID`, `-a`. Without these rights it names the
/// missing one and shows the kernel's counters of the whole machine. `--import` reads a recording made with `-o`, or the
/// text of `perf script` or `trace-cmd report` from a host without quell (docs/record.md).
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Read a recording, or the text of `perf script` or `trace-cmd report`; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "live")]
    import: Option<PathBuf>,
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[command(flatten)]
    live: live::LiveArgs,
    #[command(flatten)]
    show: ShowArgs,
}

/// The ways to show a recording.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Show only sites and advice of this program
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Print one JSON object instead of tables (keys: docs/guide/record.md)
    #[arg(long, conflicts_with = "folded")]
    json: bool,
    /// Print folded stacks for flame graphs instead, with this weight
    #[arg(long, value_name = "WEIGHT", num_args = 0..=1, default_missing_value = "interrupts", require_equals = true)]
    folded: Option<FlameWeight>,
    /// Write a trace for Perfetto, with CPUs as rows
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Write a page with flame graph, timeline, matrix and advice
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the calls of the busiest process (of --program) as a workload, for `quell run FILE`
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    #[command(flatten)]
    replay: replay::ReplayArgs,
}

/// The weight of a call stack, which is the width of its flame.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum FlameWeight {
    /// Interrupts sent
    Interrupts,
    /// Nanoseconds that targets lost
    Stolen,
    /// Nanoseconds that initiators waited
    Waited,
}

pub fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    args.refuse_equal()?;
    if let Some(path) = &args.import {
        let (mut source, name) = open(path)?;
        return args.show.of(&mut *source, &name, args.show.places()?);
    }
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    if args.live.any() {
        // We check this first, because a recording that can't be shown is useless.
        let places = args.show.places()?;
        return match args.live.record(args.show.json, args.show.folded.is_some())? {
            live::Outcome::Recorded(mut recording, name, failed) => {
                let shown = args.show.of(&mut *recording, &name, places)?;
                Ok(failed.unwrap_or(shown))
            }
            live::Outcome::Counted => Ok(ExitCode::FAILURE),
            live::Outcome::Interrupted => Ok(INTERRUPTED.into()),
        };
    }
    Err(usage(
        "nothing to record: give a COMMAND after `--`, a process with -p, -a for all processes, or a recording with --import",
    ))
}

impl RecordArgs {
    /// Refuses two names of one file: what is written last would destroy the rest.
    fn refuse_equal(&self) -> anyhow::Result<()> {
        let files = [
            ("--import", self.import.as_ref()),
            #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
            ("--output", self.live.output.as_ref()),
            ("--html", self.show.html.as_ref()),
            ("--perfetto", self.show.perfetto.as_ref()),
            ("--workload", self.show.workload.as_ref()),
        ];
        let mut seen: Vec<(&str, PathBuf)> = Vec::new();
        for (option, path) in files {
            let Some(path) = path.filter(|path| !is_device(path)) else {
                continue;
            };
            let name = resolved(path);
            if let Some((other, _)) = seen.iter().find(|(_, seen)| *seen == name) {
                let path = path.display();
                return Err(usage(format_args!(
                    "{option} {path}: {other} names the same file; name another one"
                )));
            }
            seen.push((option, name));
        }
        Ok(())
    }
}

/// Returns whether a file that exists is neither a regular file nor a directory: `/dev/null` may be named twice.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// Returns the absolute path of a file, which may not exist yet, without links.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder.join(path.file_name().unwrap_or_default())
}

/// Prints a note if the recording has no program of this name. That's no error, because a recording can't be repeated.
fn note_unknown(program: Option<&str>, all: &Attribution) {
    let Some(wanted) = program else { return };
    let names = || all.programs.iter().map(|program| &*program.name);
    if names().all(|name| name != wanted) {
        note!("--program {wanted}: the recording has no such program{}", hint(wanted, names()));
    }
}

/// The machine and the files that the options name, checked before recording.
struct OutputPlaces {
    machine: Option<MachineFile>,
    html: Option<Destination>,
    trace: Option<Destination>,
    workload: Option<Destination>,
}

impl ShowArgs {
    /// Checks that the machine can be read and the files can be written. We report errors before a recording, because
    /// it can't be repeated.
    fn places(&self) -> anyhow::Result<OutputPlaces> {
        Ok(OutputPlaces {
            machine: self.replay.machine()?,
            html: destination("--html", self.html.as_deref())?,
            trace: destination("--perfetto", self.perfetto.as_deref())?,
            workload: destination("--workload", self.workload.as_deref())?,
        })
    }

    /// Reads a recording to its end and shows the results.
    fn of(
        &self,
        source: &mut dyn Source,
        name: &str,
        OutputPlaces { machine, html, trace, workload }: OutputPlaces,
    ) -> anyhow::Result<ExitCode> {
        let perfetto = match &self.perfetto {
            Some(path) => {
                let file = File::create(path).with_context(|| path.display().to_string())?;
                Some(Perfetto::new(BufWriter::new(file)))
            }
            None => None,
        };
        let timeline = html.is_some().then(Timeline::default);
        let mut observer = (perfetto, timeline);
        let (all, calls) = analysed(source, &mut observer)?;
        let (perfetto, timeline) = observer;
        let host = all.host.clone();
        note_unknown(self.program.as_deref(), &all);
        let report = Report::new(all, self.program.as_deref());
        if let Some(workload) = &workload {
            let busiest = calls.busiest(self.program.as_deref());
            let busiest = busiest.with_context(|| format!("--workload: {name}"))?;
            workload.write(&busiest.workload().text)?;
        }
        if let Some(perfetto) = perfetto {
            perfetto.finish().with_context(|| {
                format!(
                    "--perfetto {}",
                    trace.as_ref().map_or_else(String::new, Destination::shown)
                )
            })?;
        }
        let only = self.program.as_deref();
        let replayed =
            machine.map(|machine| replay_busiest(&calls, only, &machine, host.as_ref(), &report));
        if let Some(html) = &html {
            let title = format!("TLB shootdowns: {name}");
            let slices = timeline.map(Timeline::finish).unwrap_or_default();
            let told = replayed.as_ref().map(|replayed| match replayed {
                Ok(replayed) => replayed.told(),
                Err(why) => page::Findings {
                    before: vec![replay::nothing(why)],
                    ..page::Findings::default()
                },
            });
            html.write(&page::page(&report, &slices, told.as_ref(), &title))?;
        }
        if self.json {
            replay::print_json(report.json(), replayed.as_ref())?;
        } else if let Some(weigh) = self.folded {
            let by = match weigh {
                FlameWeight::Interrupts => WeightKind::Interrupts,
                FlameWeight::Stolen => WeightKind::Stolen,
                FlameWeight::Waited => WeightKind::Waited,
            };
            let mut text = Vec::new();
            folded::write(&report, by, &mut text)?;
            quell_model::output::write(&String::from_utf8_lossy(&text));
        } else {
            show::report(&report);
            replay::print(replayed.as_ref());
            for (what, place) in [("page", html), ("trace", trace), ("workload", workload)] {
                if let Some(place) = place {
                    quell_model::output::say!("Wrote the {what} to {}.", place.shown());
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
