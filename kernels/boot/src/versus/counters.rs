//! Parses Linux's counters.
//!
//! We count sent interrupts: Linux's row `CAL`, plus the engine's count of its own vector. Linux sends a function call
//! only to a CPU whose queue is empty, so each call that was sent arrives once, and the row counts sent calls. We don't
//! use its row `TLB`, which counts functions that flushed: several of them may share an interrupt.
//!
//! `tlb:tlb_flush` fires for more than flushes. Reason 4 is a sent request, before Linux skips CPUs that don't need it,
//! and reason 0 without pages is a switch that kept its entries. We count neither.

use super::plan::Case;
use super::protocol::{Counters, Event, Window};
use super::report::{Outcome, Side};
use std::collections::BTreeMap;

/// The flushes of a window.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Invalidations {
    /// Invalidated pages and full flushes, made by the initiator for itself or by a CPU that switched.
    pub local: u64,
    /// Invalidated pages and full flushes, made for another CPU.
    pub remote: u64,
    /// The number of full flushes among these.
    pub whole: u64,
}

/// Returns the sum over all CPUs of a row of `/proc/interrupts`, if the row exists.
fn interrupts(text: &str, row: &str) -> Option<u64> {
    let rest =
        text.lines().find_map(|line| line.trim_start().strip_prefix(row)?.strip_prefix(':'))?;
    rest.split_whitespace()
        .map_while(|word| word.parse::<u64>().ok())
        .try_fold(0u64, u64::checked_add)
}

/// Returns the engine's counter `sent`, which is 0 without an engine.
fn sent(text: &str) -> Option<u64> {
    match text.trim() {
        "" => Some(0),
        line => line.strip_prefix("sent ")?.trim().parse().ok(),
    }
}

/// Returns the time that the first CPU was idle, in nanoseconds, from the rows of `/proc/timer_list`.
fn idle(text: &str) -> Option<u64> {
    let row = text.lines().next()?.split_once(':')?.1;
    row.trim().strip_suffix("nsecs")?.trim().parse().ok()
}

/// Returns the rows of `/proc/vmstat`.
fn memory(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name, count.trim().parse().ok()?))
        })
        .collect()
}

/// Returns the invalidations of a histogram, or `None` if events were lost. Its lines are, for example,
/// `{ reason: 3, pages: 1 } hitcount: 17`.
fn invalidations(text: &str) -> Option<Invalidations> {
    let field = |line: &str, name: &str| -> Option<u64> {
        let rest = line[line.find(name)? + name.len()..].trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    if text.lines().find_map(|line| field(line, "Dropped:")) != Some(0) {
        return None;
    }
    let mut sum = Invalidations::default();
    for line in text.lines() {
        let fields = ["reason:", "pages:", "hitcount:"].map(|name| field(line, name));
        let [Some(reason), Some(pages), Some(count)] = fields else {
            continue;
        };
        // All pages are -1, which Linux prints without its sign.
        let pages = Some(pages).filter(|&pages| pages < 1 << 52);
        let all = count.saturating_mul(pages.unwrap_or(1));
        match reason {
            // Reason 4 is a sent request.
            4 => continue,
            1 => sum.remote = sum.remote.saturating_add(all),
            _ => sum.local = sum.local.saturating_add(all),
        }
        if pages.is_none() {
            sum.whole = sum.whole.saturating_add(count);
        }
    }
    Some(sum)
}

/// Returns the outcome of each case on Linux. The run may have ended early, with `failure` as the reason.
pub fn outcomes(cases: &[Case], events: &[Event], failure: Option<&str>) -> Vec<Outcome> {
    let missing = || failure.unwrap_or("the guest reported nothing").to_string();
    cases
        .iter()
        .enumerate()
        .map(|(index, case)| {
            let event = |wanted: usize| {
                events.iter().find(|event| {
                    matches!(event, Event::Done { job, .. } | Event::Failed { job, .. }
                        if *job == wanted)
                })
            };
            let timed = window(event(2 * index).ok_or_else(missing)?)?;
            let traced = window(event(2 * index + 1).ok_or_else(missing)?)?;
            side(case, timed, traced)
        })
        .collect()
}

fn window(event: &Event) -> Result<&Window, String> {
    match event {
        Event::Done { window, .. } => Ok(window),
        Event::Failed { why, .. } => Err(why.clone()),
        _ => Err("not the result of a job".to_string()),
    }
}

/// Creates a side of a row from the timed and the traced job.
fn side(case: &Case, timed: &Window, traced: &Window) -> Outcome {
    let all = |counters: &Counters| {
        let calls =
            interrupts(&counters.interrupts, "CAL").ok_or("no row CAL in /proc/interrupts")?;
        let engine = sent(&counters.engine).ok_or("the engine's counter `sent` is not a number")?;
        Ok::<_, &str>(calls + engine)
    };
    let sent = all(&timed.after)?.saturating_sub(all(&timed.before)?);
    let Some(flushes) = invalidations(&traced.flushes) else {
        return Err("the histogram of flushes is incomplete".to_string());
    };
    let operations = case.workload.operations(timed.done);
    let traced_operations = case.workload.operations(traced.done);
    if operations == 0 || traced_operations == 0 {
        return Err("no operation was done".to_string());
    }
    // While every CPU sleeps, the clock advances but executes nothing. If only the first CPU works, we subtract the
    // time that it sleeps, in which other CPUs at most spin.
    let slept = if case.workload.first_cpu_works() {
        let slept = |counters: &Counters| {
            idle(&counters.idle).ok_or("no row .idle_sleeptime in /proc/timer_list")
        };
        slept(&timed.after)?.saturating_sub(slept(&timed.before)?)
    } else {
        0
    };
    let per = |count: u64, operations: u64| count as f64 / operations as f64;
    let mut side = Side {
        operations,
        interrupts: per(sent, operations),
        invalidations: per(flushes.local + flushes.remote, traced_operations),
        local_invalidations: Some(per(flushes.local, traced_operations)),
        remote_invalidations: Some(per(flushes.remote, traced_operations)),
        whole_flushes: per(flushes.whole, traced_operations),
        instructions: per(timed.ticks.saturating_sub(slept), operations),
        remark: None,
        spread: None,
    };
    side.remark = doubt(case, operations, timed);
    Ok(side)
}

/// Returns evidence that Linux did not do the row's work.
fn doubt(case: &Case, operations: u64, timed: &Window) -> Option<String> {
    let (before, after) = (memory(&timed.before.memory), memory(&timed.after.memory));
    let grown = |prefix: &str| -> u64 {
        let rows = after.iter().filter(|(name, _)| name.starts_with(prefix));
        rows.map(|(name, now)| now.saturating_sub(before.get(name).copied().unwrap_or(0))).sum()
    };
    let is = |parameter: &str, value: u64| case.workload.get(parameter) == Some(value);
    let (what, count) = match case.workload.name() {
        // This counter is in KB. A page that wasn't read in had not been evicted.
        "swap" if is("clean", 1) => ("pages read", grown("pgpgin") / 4),
        "swap" => ("pages swapped out", grown("pswpout")),
        "migrate" => ("pages moved", grown("pgmigrate_success")),
        // For these workloads, we check no counter of Linux.
        _ => return None,
    };
    // The last pages may still be in progress.
    (count < operations - operations / 50)
        .then(|| format!("{count} {what} in {operations} operations"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versus::plan;
    use proptest::prelude::*;

    const INTERRUPTS: &str = "CAL:        390        711   Function call interrupts\n\
                              \x20TLB:          1        300   TLB shootdowns";
    const HISTOGRAM: &str = "# event histogram\n#\n\
        # trigger info: hist:keys=reason,pages:vals=hitcount:sort=hitcount:size=2048 [active]\n#\n\n\
        { reason:          0, pages:                    0 } hitcount:          9\n\
        { reason:          1, pages: 18446744073709551615 } hitcount:        100\n\
        { reason:          4, pages:                    1 } hitcount:        300\n\
        { reason:          3, pages:                    2 } hitcount:        300\n\n\
        Totals:\n    Hits: 709\n    Entries: 4\n    Dropped: 0\n";

    #[test]
    fn a_row_of_interrupts_is_summed() {
        assert_eq!(interrupts(INTERRUPTS, "TLB"), Some(301));
        assert_eq!(interrupts(INTERRUPTS, "CAL"), Some(1101));
        assert_eq!(interrupts(INTERRUPTS, "TL"), None);
        assert_eq!(interrupts("", "TLB"), None);
    }

    #[test]
    fn flushes_are_told_apart_from_requests_and_none_may_be_lost() {
        let expected = Invalidations { local: 600, remote: 100, whole: 100 };
        assert_eq!(invalidations(HISTOGRAM), Some(expected));
        assert_eq!(invalidations(&HISTOGRAM.replace("Dropped: 0", "Dropped: 3")), None);
        assert_eq!(invalidations(""), None);
    }

    fn done(job: usize, ticks: u64, flushes: &str) -> Event {
        let counters = |taken| Counters {
            interrupts: format!("CAL: {taken} 0 Function call interrupts"),
            engine: format!("sent {taken}"),
            memory: String::new(),
            idle: format!("  .idle_sleeptime : {taken} nsecs\n  .idle_sleeptime : 9 nsecs"),
        };
        let (before, after, flushes) = (counters(7), counters(207), flushes.to_string());
        Event::Done { job, window: Window { done: 100, ticks, before, after, flushes } }
    }

    #[test]
    fn time_comes_from_the_timed_job_and_flushes_from_the_traced_one() {
        let cases = plan::of("dontneed", 1);
        // The first CPU slept for 200 of the ticks.
        let events = [done(0, 5_200, ""), done(1, 9_000, HISTOGRAM)];
        let outcomes = outcomes(&cases, &events, None);
        let side = outcomes[0].as_ref().unwrap();
        assert_eq!((side.instructions, side.interrupts), (50.0, 4.0));
        assert_eq!((side.invalidations, side.whole_flushes), (7.0, 1.0));
        assert_eq!(side.local_invalidations, Some(6.0));
    }

    #[test]
    fn a_case_without_result_says_why() {
        let cases = plan::of("dontneed", 2);
        let failed = Event::Failed { job: 1, why: "no tracefs".to_string() };
        let outcomes = outcomes(&cases, &[done(0, 5_000, ""), failed], Some("no end after 3 s"));
        assert_eq!(outcomes[0], Err("no tracefs".to_string()));
        assert_eq!(outcomes[1], Err("no end after 3 s".to_string()));
    }

    #[test]
    fn work_that_was_not_done_is_remarked() {
        let cases = plan::of("swap", 1);
        let events = [done(0, 5_000, ""), done(1, 9_000, HISTOGRAM)];
        let outcomes = outcomes(&cases[..1], &events, None);
        let remark = outcomes[0].as_ref().unwrap().remark.clone();
        assert_eq!(remark.as_deref(), Some("0 pages swapped out in 25600 operations"));
    }

    proptest! {
        #[test]
        fn no_text_makes_them_panic(text in r"(\PC|\n)*", number in any::<u64>()) {
            let _ = (interrupts(&text, "CAL"), sent(&text), memory(&text), invalidations(&text), idle(&text));
            let line = format!("{{ reason: {number}, pages: {number} }} hitcount: {number}\nDropped: 0");
            prop_assert!(invalidations(&line).is_some());
        }
    }
}
