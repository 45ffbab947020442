//! A report in a terminal: the answer, then tables.

use quell_record::advise::Advice;
use quell_record::figures::{Range, count, percents, short, time, times};
use quell_record::line::{COLUMNS, LABEL, parted};
use quell_record::report::Report;

use quell_model::output::{filled, paragraph, say, width};
use quell_model::table::{Table, number, words};

/// The largest number of rows of a table in a terminal. Files and `--json` have all rows.
const ROWS: usize = 12;

/// The largest number of pieces of advice among other tables.
const MOST_ADVICE: usize = 6;

pub fn report(report: &Report) {
    answer(report);
    let shown = report.sites.iter().filter(|site| site.interrupts > 0).count();
    if shown > 0 {
        say!("\nCall sites");
        say!("{}", sites(report));
        if shown > ROWS {
            say!("{} more sites: see --json or --html", shown - ROWS);
        }
    }
    if !report.programs.is_empty() {
        say!("\nCost for each program");
        say!("{}", programs(report));
    }
    if !report.matrix.is_empty() {
        say!("\nSenders and targets");
        say!("{}", matrix(report));
    }
    if !report.others.is_empty() {
        say!("\nOther interrupts");
        say!("{}", others(report));
    }
    if !report.advice.is_empty() {
        say!("\nAdvice");
        advice(report.advice.iter().take(MOST_ADVICE));
    }
    if !report.notes.is_empty() {
        say!("\nNotes");
        for note in &report.notes {
            paragraph(format!("- {note}"));
        }
    }
}

/// Prints the lines of the answer. In a narrow terminal they continue below their own text, to the right of the label.
pub fn answer(report: &Report) {
    match width().filter(|width| (2 * LABEL..COLUMNS).contains(width)) {
        None => report.answer.iter().for_each(|line| say!("{line}")),
        Some(width) => {
            for (label, said) in report.answer.iter().map(|line| parted(line)) {
                let mut label = label;
                for part in filled(said, Some(width - LABEL)).lines() {
                    say!("{label:LABEL$}{part}");
                    label = "";
                }
            }
        }
    }
}

/// Prints each piece of advice as a paragraph.
pub fn advice<'a>(all: impl Iterator<Item = &'a Advice>) {
    for advice in all {
        let next = advice.next.as_ref();
        let next = next.map_or_else(String::new, |next| format!(" Next limit: {next}."));
        paragraph(format!("- {}{next}", advice.text));
    }
}

/// Returns a table of the interrupts before and after each change.
pub fn before_and_after(report: &Report) -> Table {
    let mut table = Table::new([
        words("site"),
        words("change"),
        number("interrupts"),
        number("after"),
        number("CPU time saved"),
    ]);
    for advice in &report.advice {
        let (least, most) = advice.left;
        table.row([
            format!("{}: {}", advice.program, short(&advice.place)),
            advice.kind.into(),
            count(advice.interrupts),
            match least == most {
                true => count(most),
                false => format!("{} to {}", count(least), count(most)),
            },
            advice.share.map_or_else(|| "–".into(), percents),
        ]);
    }
    table
}

/// Returns a table of the sites that interrupted other CPUs.
pub fn sites(report: &Report) -> Table {
    let mut table = Table::new([
        words("site"),
        words("call"),
        number("interrupts"),
        number("flushes").spare(),
        number("pages").spare(),
        number("wait per flush"),
        number("lost per target").spare(),
        number("refilled").spare(),
    ]);
    for site in report.sites.iter().filter(|site| site.interrupts > 0).take(ROWS) {
        let known = |range: Range, of: u64| match range.most > 0.0 {
            true => times(range.times(1.0 / of.max(1) as f64)),
            false => "–".into(),
        };
        let thread = site.thread.as_ref();
        let thread = thread.map_or_else(String::new, |thread| format!(" ({thread})"));
        table.row([
            format!("{}{thread}: {}", site.program, short(site.place())),
            site.call.clone(),
            count(site.interrupts),
            count(site.requests),
            count(site.pages),
            known(site.initiator, site.remote),
            known(site.stolen, site.interrupts),
            count(site.refaults),
        ]);
    }
    table
}

pub fn programs(report: &Report) -> Table {
    let mut table = Table::new([
        words("program"),
        number("sent"),
        number("taken"),
        number("CPU time").spare(),
        number("waited").spare(),
        number("lost").spare(),
        number("share"),
    ]);
    for program in report.programs.iter().take(ROWS) {
        table.row([
            program.name.clone(),
            count(program.sent),
            count(program.taken),
            program.cpu_ns.map_or_else(|| "–".into(), time),
            times(program.waited),
            times(program.stolen),
            program.share.map_or_else(|| "–".into(), percents),
        ]);
    }
    table
}

/// Returns a table of the number of interrupts from each sender to each target.
pub fn matrix(report: &Report) -> Table {
    let mut table = Table::new([words("sender"), words("target"), number("interrupts")]);
    for (sender, target, interrupts) in report.matrix.iter().take(ROWS) {
        table.row([sender.clone(), target.clone(), count(*interrupts)]);
    }
    table
}

/// Returns a table of other interrupts that call functions.
pub fn others(report: &Report) -> Table {
    let mut table = Table::new([
        words("cause"),
        number("count"),
        number("time"),
        number("callers' wait").spare(),
        words("functions"),
    ]);
    for other in report.others.iter().take(ROWS) {
        let functions = other.functions.iter().take(3).map(|(name, _)| name.as_str());
        table.row([
            other.cause.to_owned(),
            count(other.count),
            other.ns.map_or_else(|| "–".into(), time),
            other.caller_ns.map_or_else(|| "–".into(), time),
            functions.collect::<Vec<_>>().join(", "),
        ]);
    }
    table
}
