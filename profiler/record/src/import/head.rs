//! Parses the line with which each event begins: thread, CPU, time and event.
//!
//! `perf script` prints `comm tid [cpu] time: group:event: text`. With an option it prints `pid/tid`, and it omits the
//! CPU if that wasn't recorded. `trace-cmd report` prints `comm-tid [cpu] time: event: text`. The kernel's own `trace`
//! file has a column of flags before the time, and may have the process in parentheses. Thread names may contain any
//! character, including blanks and dashes. So we find the time first, because its form is unique. Then we read the part
//! before it backwards from its end.

/// The parts of a line before the event's own text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head<'a> {
    pub comm: &'a str,
    /// The process, if the line has it.
    pub pid: Option<u32>,
    pub tid: u32,
    /// The CPU, if the line has it.
    pub cpu: Option<u32>,
    pub time_ns: u64,
    /// The event, with its group if the line has it.
    pub event: &'a str,
    /// The event's own text.
    pub text: &'a str,
    /// Whether the line is from `trace-cmd` or the kernel. Otherwise it's from `perf`.
    pub trace: bool,
}

/// Parses `line`. Returns `None` if it begins no event.
pub fn parse(line: &str) -> Option<Head<'_>> {
    let mut from = 0;
    // A thread's name may look like a time, so the text after it must be an event, too.
    while let Some((begin, end, time_ns)) = time(line, from) {
        if let Some(head) = around(line, begin, end, time_ns) {
            return Some(head);
        }
        from = end;
    }
    None
}

/// Finds the first `123.456789:` after `from`. Returns its start, its end, and its nanoseconds.
fn time(line: &str, from: usize) -> Option<(usize, usize, u64)> {
    let ns = |token: &str| {
        let (seconds, fraction) = token.strip_suffix(':')?.split_once('.')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (digits(seconds) && digits(fraction)).then_some(())?;
        let unit = 10u64.pow(9u32.checked_sub(fraction.len() as u32)?);
        let whole = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
        whole.checked_add(fraction.parse::<u64>().ok()? * unit)
    };
    let mut begin = from;
    for token in line[from..].split(' ') {
        let end = begin + token.len();
        if let Some(ns) = ns(token) {
            return Some((begin, end, ns));
        }
        begin = end + 1;
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
    Some(Head { comm, pid, tid, cpu, time_ns, event, text, trace })
}

/// Parses `… [003]`, or `… [003] d..1.`.
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

/// Parses `comm 12`, `comm 11/12`, `comm-12`, or `comm-12 (  11)`.
fn task(text: &str) -> Option<(&str, Option<u32>, u32, bool)> {
    // perf prints -1 if the task no longer exists.
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

/// Parses the part behind the time: the event and its text.
fn event(text: &str, trace: bool) -> Option<(&str, &str)> {
    // `perf` prints a count before events other than tracepoints.
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
    // The kernel prints system calls as `sys_madvise(start: …)` and `sys_madvise -> 0x0`.
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
    fn each_form_of_a_line_is_read() {
        let head = |comm, pid, tid, cpu, time_ns, event, text, trace| {
            Some(Head { comm, pid, tid, cpu, time_ns, event, text, trace })
        };
        let ns = 38_095_349_911_000;
        for (line, expected) in [
            (
                "churn 166 [001] 38095.349911:  tlb:tlb_flush: pages:1 reason:x (3)",
                head(
                    "churn",
                    None,
                    166,
                    Some(1),
                    ns,
                    "tlb:tlb_flush",
                    "pages:1 reason:x (3)",
                    false,
                ),
            ),
            (
                "  my prog [7] 1.5: x  11/12 [000]  1.000000001:   8 page-faults:  7f",
                head(
                    "my prog [7] 1.5: x",
                    Some(11),
                    12,
                    Some(0),
                    1_000_000_001,
                    "page-faults",
                    " 7f",
                    false,
                ),
            ),
            ("sh 12  4.5:  a:b: c", head("sh", None, 12, None, 4_500_000_000, "a:b", "c", false)),
            (
                "   a-b c-28301 [000] 38095.349911: sys_enter_madvise: start: 0x7f",
                head("a-b c", None, 28301, Some(0), ns, "sys_enter_madvise", "start: 0x7f", true),
            ),
            (
                "  churn-28301   (  28300) [000] d..1. 38095.349911: sys_madvise -> 0x0",
                head("churn", Some(28300), 28301, Some(0), ns, "sys_madvise", "-> 0x0", true),
            ),
            (
                "churn-1 [000] ..... 38095.349911: sys_madvise(start: 7f, len_in: 10)",
                head("churn", None, 1, Some(0), ns, "sys_madvise", "(start: 7f, len_in: 10)", true),
            ),
            (
                "churn-1 [000] ..... 38095.349911: <stack trace>",
                head("churn", None, 1, Some(0), ns, "<stack trace>", "", true),
            ),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
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
