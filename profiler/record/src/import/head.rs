//! The line with which each event begins: who, where, when, what.
//!
//! `perf script` prints `comm tid [cpu] time: group:event: text`, with `pid/tid` if asked to and without the CPU if it
//! was not recorded. `trace-cmd report` prints `comm-tid [cpu] time: event: text`; the kernel's own `trace` file has a
//! column of flags before the time, and may have the process in parentheses. Names of threads hold anything, blanks
//! and dashes included; so the time is looked for first, which looks like nothing else, and what stands before it is
//! read from its end.

/// What a line says before the event's own text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head<'a> {
    pub comm: &'a str,
    /// The process, if the line tells it.
    pub pid: Option<u32>,
    pub tid: u32,
    /// The CPU, if the line tells it.
    pub cpu: Option<u32>,
    pub time_ns: u64,
    /// The event, with its group if the line has it.
    pub event: &'a str,
    /// What the event says.
    pub text: &'a str,
    /// Whether the line is as `trace-cmd` and the kernel write it, not as `perf` does.
    pub trace: bool,
}

/// What `line` says; `None` if it begins no event.
pub fn parse(line: &str) -> Option<Head<'_>> {
    let mut from = 0;
    // A name of a thread may look like a time; what follows it decides.
    while let Some((begin, end, time_ns)) = time(line, from) {
        if let Some(head) = around(line, begin, end, time_ns) {
            return Some(head);
        }
        from = end;
    }
    None
}

/// The first `123.456789:` behind `from`: where it begins, where it ends, its nanoseconds.
fn time(line: &str, from: usize) -> Option<(usize, usize, u64)> {
    let mut at = from;
    for token in line[from..].split(' ') {
        let (begin, end) = (at, at + token.len());
        at = end + 1;
        let Some((seconds, fraction)) = token
            .strip_suffix(':')
            .and_then(|token| token.split_once('.'))
        else {
            continue;
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
            continue;
        }
        let (Ok(seconds), Ok(parts)) = (seconds.parse::<u64>(), fraction.parse::<u64>()) else {
            continue;
        };
        let unit = 10u64.pow(9 - u32::try_from(fraction.len()).unwrap_or(9));
        let Some(whole) = seconds.checked_mul(1_000_000_000) else {
            continue;
        };
        return Some((begin, end, whole.checked_add(parts * unit)?));
    }
    None
}

fn around(line: &str, begin: usize, end: usize, time_ns: u64) -> Option<Head<'_>> {
    let before = line[..begin].trim_end();
    let (who, cpu) = match cpu(before) {
        Some((who, cpu)) => (who, Some(cpu)),
        None => (before, None),
    };
    let (comm, pid, tid, trace) = task(who.trim())?;
    let (event, text) = event(line[end..].trim_start(), trace)?;
    Some(Head {
        comm,
        pid,
        tid,
        cpu,
        time_ns,
        event,
        text,
        trace,
    })
}

/// `… [003]`, or `… [003] d..1.`.
fn cpu(text: &str) -> Option<(&str, u32)> {
    let (rest, last) = text.rsplit_once(' ')?;
    let number = |token: &str| {
        let inner = token.strip_prefix('[')?.strip_suffix(']')?;
        inner.parse().ok()
    };
    if let Some(cpu) = number(last) {
        return Some((rest, cpu));
    }
    let (rest, last) = rest.trim_end().rsplit_once(' ')?;
    Some((rest, number(last)?))
}

/// `comm 12`, `comm 11/12`, `comm-12`, `comm-12 (  11)`.
fn task(text: &str) -> Option<(&str, Option<u32>, u32, bool)> {
    // -1 is what perf shows where there is no such task any more.
    let number = |text: &str| match text {
        "-1" => Some(u32::MAX),
        text => text.parse::<u32>().ok(),
    };
    let perf = text.rsplit_once(' ').and_then(|(comm, last)| {
        let (pid, tid) = match last.split_once('/') {
            Some((pid, tid)) => (Some(number(pid)?), number(tid)?),
            None => (None, number(last)?),
        };
        Some((comm.trim_end(), pid, tid, false))
    });
    perf.or_else(|| {
        let (task, group) = match text.strip_suffix(')').and_then(|t| t.rsplit_once('(')) {
            Some((task, group)) => (task.trim_end(), group.trim().parse().ok()),
            None => (text, None),
        };
        let (comm, tid) = task.rsplit_once('-')?;
        Some((comm, group, tid.parse().ok()?, true))
    })
}

/// What is behind the time.
fn event(text: &str, trace: bool) -> Option<(&str, &str)> {
    // `perf` shows a count before events that are no tracepoints.
    let text = match text.split_once(' ') {
        Some((count, rest)) if !trace && count.bytes().all(|b| b.is_ascii_digit()) => {
            rest.trim_start()
        }
        _ => text,
    };
    if text.starts_with('<') {
        return Some((text, ""));
    }
    let (token, rest) = text.split_once(' ').unwrap_or((text, ""));
    if let Some(name) = token.strip_suffix(':').filter(|name| !name.contains('(')) {
        return (!name.is_empty()).then_some((name, rest));
    }
    // The kernel's own way with system calls: `sys_madvise(start: …)`, `sys_madvise -> 0x0`.
    if trace && token.starts_with("sys_") {
        let name = token.split('(').next().unwrap_or(token);
        return Some((name, text[name.len()..].trim()));
    }
    token.starts_with("PERF_RECORD_").then_some((token, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_with_and_without_processes_and_cpus() {
        let head =
            parse("churn 16659 [001] 37959.139852:  tlb:tlb_flush: pages:1 reason:x (3)").unwrap();
        assert_eq!(
            (head.comm, head.pid, head.tid, head.cpu),
            ("churn", None, 16659, Some(1))
        );
        assert_eq!(head.time_ns, 37_959_139_852_000);
        assert_eq!(
            (head.event, head.text),
            ("tlb:tlb_flush", "pages:1 reason:x (3)")
        );
        let head =
            parse("  my prog [7] 1.5: x  11/12 [000]  1.000000001:   8 page-faults:  7f").unwrap();
        assert_eq!(
            (head.comm, head.pid, head.tid),
            ("my prog [7] 1.5: x", Some(11), 12)
        );
        assert_eq!((head.event, head.time_ns), ("page-faults", 1_000_000_001));
        let head = parse("sh 12  4.5:  a:b: c").unwrap();
        assert_eq!((head.cpu, head.event), (None, "a:b"));
    }

    #[test]
    fn trace_cmd_and_the_kernels_own() {
        let head =
            parse("   a-b c-28301 [000] 38095.349911: sys_enter_madvise:    start: 0x7f").unwrap();
        assert_eq!((head.comm, head.tid, head.trace), ("a-b c", 28301, true));
        assert_eq!(head.event, "sys_enter_madvise");
        let head = parse("  churn-28301   (  28300) [000] d..1. 38095.338141: sys_madvise -> 0x0")
            .unwrap();
        assert_eq!(
            (head.pid, head.tid, head.cpu),
            (Some(28300), 28301, Some(0))
        );
        assert_eq!((head.event, head.text), ("sys_madvise", "-> 0x0"));
        let head = parse("churn-1 [000] ..... 1.5: sys_madvise(start: 7f, len_in: 10)").unwrap();
        assert_eq!(
            (head.event, head.text),
            ("sys_madvise", "(start: 7f, len_in: 10)")
        );
        let head = parse("churn-1 [000] ..... 1.5: <stack trace>").unwrap();
        assert_eq!(head.event, "<stack trace>");
    }

    #[test]
    fn what_begins_no_event_is_none() {
        for line in [
            "",
            "\t 7f main (/x)",
            "churn",
            "churn 1 [000] 1.5",
            "1.5: a:b: c",
            "# os release : 6.1",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
