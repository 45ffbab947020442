//! Parses the text that an event prints into fields.
//!
//! Each event prints in a format of its own, but nearly all print `name=value` or `name: value`, one after the other.
//! We read that form, and handle the few others by their names. A line in neither form yields an event without fields,
//! never an error, because a later kernel may print more than this one.

use std::sync::Arc;

use crate::perf::{NameTable, Value};

/// The fields of an event, as [`crate::perf::Sample`] keeps them.
pub type Fields = Vec<(Arc<str>, Value)>;

/// Parses `text`, which the event `name` printed.
pub fn of(name: &str, text: &str, names: &mut NameTable) -> Fields {
    let text = text.trim();
    let event = name.rsplit(':').next().unwrap_or(name);
    match event {
        "sched_switch" => switch(text, names),
        _ if event.starts_with("sys_exit_") => returned(text, names),
        _ => pairs(text, names),
    }
}

/// Parses `0x0`, or `madvise(…) = 0` and `-> 0x0` as other printers write it.
fn returned(text: &str, names: &mut NameTable) -> Fields {
    let last = text.rsplit(['=', '>', ' ']).next().unwrap_or(text);
    match number(last) {
        Some(Value::Unsigned(bits)) => vec![(names.get("ret"), Value::Signed(bits.cast_signed()))],
        Some(value) => vec![(names.get("ret"), value)],
        None => Vec::new(),
    }
}

/// Parses `prev_comm=… prev_pid=1 … ==> next_comm=… next_pid=2 …`, or `a:1 [120] S ==> b:2 [120]`. Names may contain
/// any character.
fn switch(text: &str, names: &mut NameTable) -> Fields {
    let Some((from, to)) = text.split_once(" ==> ") else {
        return pairs(text, names);
    };
    let named = |half: &str, side: &str| {
        let (comm, rest) =
            half.strip_prefix(&format!("{side}_comm="))?.rsplit_once(&format!(" {side}_pid="))?;
        Some((comm.to_owned(), first_number(rest)?))
    };
    let short = |half: &str| {
        let (task, _) = half.split_once(" [")?;
        let (comm, tid) = task.rsplit_once(':')?;
        Some((comm.to_owned(), tid.parse().ok()?))
    };
    let mut fields = Vec::with_capacity(5);
    for (half, side) in [(from, "prev"), (to, "next")] {
        let Some((comm, tid)) = named(half, side).or_else(|| short(half)) else {
            continue;
        };
        fields.push((names.get(&format!("{side}_comm")), Value::Text(names.get(&comm))));
        fields.push((names.get(&format!("{side}_pid")), Value::Signed(tid)));
    }
    fields
}

fn first_number(text: &str) -> Option<i64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Parses `name=value` and `name: value`, in any mixture, separated by blanks or commas.
fn pairs(text: &str, names: &mut NameTable) -> Fields {
    let mut keys: Vec<(usize, usize, usize)> = Vec::with_capacity(8);
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let begins = at == 0 || matches!(bytes[at - 1], b' ' | b',' | b'(');
        if !begins || !(bytes[at].is_ascii_alphabetic() || bytes[at] == b'_') {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_') {
            at += 1;
        }
        // Skips the `::` of a path.
        let sign = bytes.get(at).is_some_and(|&b| b == b'=' || b == b':');
        if sign && bytes.get(at + 1) != Some(&b':') {
            keys.push((start, at, at + 1));
            at += 1;
        }
    }
    let ends = keys.iter().skip(1).map(|key| key.0).chain([text.len()]);
    let ends: Vec<usize> = ends.collect();
    let filled = keys.iter().zip(ends).filter_map(|(&(start, end, begin), stop)| {
        let value = text[begin..stop].trim_matches([' ', ',']);
        (!value.is_empty()).then(|| {
            let name = &text[start..end];
            (names.get(name), value_of(name, value, names))
        })
    });
    filled.collect()
}

fn value_of(name: &str, text: &str, names: &mut NameTable) -> Value {
    // The kernel's own `trace` file hides addresses: it prints sixteen digits in their place.
    if text.len() == 16
        && matches!(name, "csd" | "mm")
        && let Ok(address) = u64::from_str_radix(text, 16)
    {
        return Value::Unsigned(address);
    }
    if let Some(number) = number(text) {
        return number;
    }
    // In `remote shootdown (1)`, only the number is the same in all kernels.
    if name == "reason" {
        let inner = text.strip_suffix(')').and_then(|text| text.rsplit_once('('));
        if let Some(number) = inner.and_then(|(_, digits)| digits.parse().ok()) {
            return Value::Signed(number);
        }
    }
    Value::Text(names.get(text))
}

/// Parses a number as `printf` writes it: decimal, `0x…`, or `(nil)`.
fn number(text: &str) -> Option<Value> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(Value::Unsigned);
    }
    match text {
        "(nil)" => Some(Value::Unsigned(0)),
        _ if text.starts_with('-') => text.parse().ok().map(Value::Signed),
        _ => text.parse().ok().map(Value::Unsigned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(event: &str, text: &str) -> Vec<(String, Value)> {
        let fields = of(event, text, &mut NameTable::default());
        let fields = fields.into_iter();
        fields.map(|(name, value)| (name.to_string(), value)).collect()
    }

    #[test]
    fn a_flush_says_its_pages_and_its_reason() {
        let fields = read("tlb:tlb_flush", "pages:-1 reason:remote IPI send (4)");
        assert_eq!(
            fields,
            [("pages".into(), Value::Signed(-1)), ("reason".into(), Value::Signed(4))]
        );
    }

    #[test]
    fn functions_stay_text_and_addresses_become_numbers() {
        let fields = read(
            "csd:csd_queue_cpu",
            "cpu=1 callsite=on_each_cpu_cond_mask+0x20 func=flush_tlb_func csd=0xffff888627d2e420",
        );
        assert_eq!(fields[0].1, Value::Unsigned(1));
        assert_eq!(fields[2], ("func".into(), Value::Text("flush_tlb_func".into())));
        assert_eq!(fields[3].1, Value::Unsigned(0xffff_8886_27d2_e420));
        let entry = read("csd:csd_function_entry", "func=flush_tlb_func, csd=(nil)");
        assert_eq!(entry[1], ("csd".into(), Value::Unsigned(0)));
        let hashed = read("csd:csd_function_entry", "func=flush_tlb_func, csd=0000000012345678");
        assert_eq!(hashed[1], ("csd".into(), Value::Unsigned(0x1234_5678)));
    }

    #[test]
    fn calls_say_their_arguments_and_what_they_returned() {
        let fields = read(
            "syscalls:sys_enter_madvise",
            "start: 0x7f9421ff0000, len_in: 0x00001000, behavior: 0x00000004",
        );
        assert_eq!(fields[1], ("len_in".into(), Value::Unsigned(4096)));
        assert_eq!(fields[2], ("behavior".into(), Value::Unsigned(4)));
        let exit = read("syscalls:sys_exit_madvise", "0xffffffffffffffea");
        assert_eq!(exit, [("ret".into(), Value::Signed(-22))]);
    }

    #[test]
    fn names_of_threads_may_hold_anything() {
        let text = "prev_comm=a prev_pid=9 b prev_pid=17 prev_prio=120 prev_state=S ==> next_comm=x ==> y next_pid=18 next_prio=120";
        let fields = read("sched:sched_switch", text);
        assert_eq!(fields[0].1, Value::Text("a prev_pid=9 b".into()));
        assert_eq!(fields[1].1, Value::Signed(17));
        assert_eq!(fields[3].1, Value::Signed(18));
        let short = read("sched_switch", "ba:sh:28296 [120] S ==> bash:28301 [120]");
        assert_eq!(short[0].1, Value::Text("ba:sh".into()));
        assert_eq!(short[3].1, Value::Signed(28301));
    }
}
