//! Parses the text that an event prints into fields.
//!
//! Each event prints in a format of its own, but nearly all print `name=value` or `name: value`, one after the other.
//! We read that form, and the results of system calls. A line in neither form yields an event without fields, never an
//! error, because a later kernel may print more than this one.

use std::sync::Arc;

use crate::perf::{NameTable, Value};

/// The fields of an event, as [`crate::perf::Sample`] keeps them.
pub type Fields = Vec<(Arc<str>, Value)>;

/// Parses `text`, which the event `name` printed.
pub fn of(name: &str, text: &str, names: &mut NameTable) -> Fields {
    let text = text.trim();
    let event = name.rsplit(':').next().unwrap_or(name);
    match event.starts_with("sys_exit_") {
        true => returned(text, names),
        false => pairs(text, names),
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

    #[test]
    fn the_text_of_each_event_becomes_fields() {
        let (signed, unsigned) = (Value::Signed, Value::Unsigned);
        let text = |text: &str| Value::Text(text.into());
        let csd = "csd:csd_function_entry";
        let madvise = "start: 0x7f9421ff0000, len_in: 0x00001000, behavior: 0x00000004";
        for (event, printed, expected) in [
            (
                "tlb:tlb_flush",
                "pages:-1 reason:remote IPI send (4)",
                &[("pages", signed(-1)), ("reason", signed(4))][..],
            ),
            (
                "csd:csd_queue_cpu",
                "cpu=1 callsite=on_each_cpu+0x20 func=flush_tlb_func csd=0xffff888627d2e420",
                &[
                    ("cpu", unsigned(1)),
                    ("callsite", text("on_each_cpu+0x20")),
                    ("func", text("flush_tlb_func")),
                    ("csd", unsigned(0xffff_8886_27d2_e420)),
                ],
            ),
            (csd, "func=f, csd=(nil)", &[("func", text("f")), ("csd", unsigned(0))]),
            // A hashed address.
            (
                csd,
                "func=f, csd=0000000012345678",
                &[("func", text("f")), ("csd", unsigned(0x1234_5678))],
            ),
            (
                "syscalls:sys_enter_madvise",
                madvise,
                &[
                    ("start", unsigned(0x7f94_21ff_0000)),
                    ("len_in", unsigned(4096)),
                    ("behavior", unsigned(4)),
                ],
            ),
            ("syscalls:sys_exit_madvise", "0xffffffffffffffea", &[("ret", signed(-22))]),
        ] {
            let fields = of(event, printed, &mut NameTable::default());
            let expected = expected.iter().map(|(name, value)| ((*name).into(), value.clone()));
            assert_eq!(fields, expected.collect::<Fields>(), "{printed}");
        }
    }
}
