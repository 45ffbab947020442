//! `quell top`: shows the cost of shootdowns for each process, second by second.

use std::cell::Cell;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use console::Term;
use quell_record::figures::{count, counted, percent, percents};
use quell_record::perf::live::{
    Options, RecordError, Recorder, Scope, SumMode, is_running, no_process,
};
use quell_record::top::{Row, Top, TopSecond};

use super::live::{end_requested, percent as percentage, seconds};
use quell_model::output::{self, note, say};
use quell_model::table::{Table, number, words};

/// Show the cost of shootdowns live: a line per process, refreshed each second
///
/// Needs x86-64, and root or CAP_BPF and CAP_PERFMON. Shows all processes until Ctrl-C. Costs are shares of one CPU:
/// the time that the process waited for other CPUs to flush, and the time that others' flushes took from it. `quell
/// record -p PID` shows the call sites.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show only this process; may be repeated
    #[arg(short, long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// End after this many seconds
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Limit the cost to this share of the busy CPU time, in percent. If it would cost more, only a part of each
    /// second is recorded and scaled up
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, allow_negative_numbers = true, value_parser = percentage)]
    overhead: f64,
    /// Print one line of JSON each second
    #[arg(long)]
    json: bool,
}

/// Shows each second. It ends with a signal, with its time, or with the chosen processes.
pub fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let over = end_requested()?;
    let options = Options {
        wanted: Vec::new(),
        overhead: args.overhead / 100.0,
        sums: SumMode::Alone,
        outlives: false,
    };
    let absent = |pid: &u32| Some((*pid, no_process(*pid)?));
    if let Some((pid, why)) = args.pids.iter().find_map(absent) {
        return Err(quell_model::usage::usage(format_args!("--pid {pid}: {why}")));
    }
    // An interrupt begins in one process and ends in another. So we record all processes, whichever are shown.
    let recorder = match Recorder::open(options, Scope::Everything) {
        Ok(recorder) => recorder,
        Err(refused @ (RecordError::Missing(_) | RecordError::Event { .. })) => {
            note!("cannot record: {refused}");
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    let shown = Cell::new(0_u64);
    let top = Top::new(|mut second: TopSecond| {
        shown.set(shown.get() + 1);
        if !args.pids.is_empty() {
            second.processes.retain(|row| args.pids.contains(&row.pid));
        }
        show(&second, args.json)
    });
    recorder.run(top, |progress| {
        let limit = args.seconds;
        over.load(Ordering::Relaxed)
            || limit.is_some_and(|limit| {
                let is_shown = shown.get() >= limit.as_secs();
                progress.elapsed >= limit + if is_shown { Duration::ZERO } else { GRACE }
            })
            || !args.pids.is_empty() && !args.pids.iter().any(|pid| is_running(*pid))
    })?;
    if shown.get() == 0 {
        note!("ended before the first second was over: nothing to show");
    }
    Ok(ExitCode::SUCCESS)
}

/// We wait up to this long for the last second, because each second is reported a little after its end.
const GRACE: Duration = Duration::from_millis(500);

/// Lines below the table: one for the number of processes left out, and one for the cursor.
const BELOW: usize = 2;

fn show(second: &TopSecond, json: bool) -> io::Result<()> {
    if json {
        output::document_line(second)?;
        return Ok(());
    }
    let terminal = Term::stdout();
    let attended = output::width().is_some();
    let height = match attended {
        true => usize::from(terminal.size().0),
        false => usize::MAX,
    };
    let heading = output::filled(&heading(second), output::width());
    let lines = height.saturating_sub(heading.lines().count() + BELOW);
    let (rows, table) = fitting(second, output::width(), lines);
    if attended {
        terminal.clear_screen()?;
    }
    say!("{heading}");
    if !second.processes.is_empty() {
        say!("{}", table.trim_end());
    }
    let left = second.processes.len().saturating_sub(rows);
    if left > 0 {
        say!("and {left} more processes");
    } else if !attended {
        say!("");
    }
    Ok(())
}

/// Returns the number of processes that fit into `lines` lines, and their table. A row may take several lines, and the
/// headings and the note about columns left out take some, too.
fn fitting(second: &TopSecond, width: Option<usize>, lines: usize) -> (usize, String) {
    let mut rows = second.processes.len();
    loop {
        let table = first(second, rows).render(width, output::colour());
        let taken = table.lines().count();
        if taken <= lines || rows == 0 {
            return (rows, table);
        }
        let of_each = taken.div_ceil(rows);
        rows -= ((taken - lines) / of_each).clamp(1, rows);
    }
}

/// Returns a table of the first `rows` processes of a second.
fn first(second: &TopSecond, rows: usize) -> Table {
    let mut table = Table::new([
        number("PID"),
        words("program"),
        number("CPU").spare(),
        number("sent/s"),
        number("taken/s"),
        number("waiting").spare(),
        number("lost").spare(),
        words("main call").spare(),
    ]);
    for row in second.processes.iter().take(rows) {
        table.row(cells(row));
    }
    table
}

fn heading(second: &TopSecond) -> String {
    let mut text = format!(
        "after {:.0} s: {} in this second, of {}",
        second.at,
        counted(second.interrupts, "TLB shootdown interrupt"),
        counted(second.processes.len() as u64, "process")
    );
    if second.recorded == 0.0 {
        text += "; flushes were not recorded, because that would cost more than --overhead";
    } else if second.recorded < 0.995 {
        text += &format!("; estimated from {} of it", percent(second.recorded));
    }
    text
}

fn cells(row: &Row) -> [String; 8] {
    const SECOND_NS: f64 = 1e9;
    let cpu = row.cpu_ns.map(|ns| percent(ns as f64 / SECOND_NS));
    let name = if row.program.is_empty() { "(unknown)" } else { &row.program };
    let thread = row.thread.as_ref();
    let thread = thread.map_or_else(String::new, |thread| format!(" ({thread})"));
    [
        row.pid.to_string(),
        name.to_owned() + &thread,
        cpu.unwrap_or_else(|| "ended".into()),
        count(row.sent),
        count(row.taken),
        row.waited_ns.map_or_else(|| "–".into(), |ns| percent(ns / SECOND_NS)),
        percents(row.stolen.times(1.0 / SECOND_NS)),
        row.call.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_record::figures::Range;

    #[test]
    fn a_narrow_and_low_terminal_shows_processes() {
        let row = |pid| Row {
            pid,
            program: format!("a-program-{pid}"),
            thread: Some("worker-*".into()),
            cpu_ns: Some(123_456_789),
            flushes: 99,
            sent: 123_456,
            taken: 54_321,
            waited_ns: Some(1e7),
            stolen: Range { least: 1e6, most: 2e7 },
            call: "madvise".into(),
        };
        let second = TopSecond {
            at: 3.0,
            recorded: 1.0,
            lost: 0,
            interrupts: 123_456,
            processes: (1..=60).map(row).collect(),
        };
        for (width, lines) in [(50, 17), (80, 20), (40, 40), (200, 70)] {
            let (rows, table) = fitting(&second, Some(width), lines);
            assert!(table.contains("a-program-1"), "{table}");
            assert!(table.lines().count() <= lines, "{table}");
            let more = first(&second, rows + 1).render(Some(width), false);
            assert!(rows == 60 || more.lines().count() > lines, "{rows}:\n{table}");
        }
    }
}
