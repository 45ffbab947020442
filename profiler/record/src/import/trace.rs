//! Completes the text of `trace-cmd` and of the kernel's own `trace` file.

use std::borrow::Cow;

use crate::perf::Value;

use super::field::Fields;

/// Converts a call's values from hexadecimal. The kernel's own `trace` file prints them without `0x`.
pub fn hexadecimal(fields: Fields) -> Fields {
    let value = |value: Value| match value {
        Value::Unsigned(_) | Value::Signed(_) => value,
        Value::Text(text) => match u64::from_str_radix(&text, 16) {
            Ok(number) => Value::Unsigned(number),
            Err(_) => Value::Text(text),
        },
    };
    fields.into_iter().map(|(name, of)| (name, value(of))).collect()
}

/// Returns the event's name with its group, which `trace-cmd` and the kernel leave out.
pub fn full_name<'a>(name: &'a str, text: &str) -> Cow<'a, str> {
    let groups = [
        ("tlb_flush", "tlb"),
        ("csd_", "csd"),
        ("call_function_", "irq_vectors"),
        ("sys_enter_", "syscalls"),
        ("sys_exit_", "syscalls"),
        ("page_fault_", "exceptions"),
        ("mmap_lock_", "mmap_lock"),
        ("sched_", "sched"),
        ("mm_vmscan_", "vmscan"),
        ("mm_migrate_", "migrate"),
        ("mm_compaction_", "compaction"),
        ("ksm_", "ksm"),
    ];
    if let Some((_, group)) = groups.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return format!("{group}:{name}").into();
    }
    match name.strip_prefix("sys_") {
        Some(call) if text.starts_with("->") => format!("syscalls:sys_exit_{call}").into(),
        Some(call) => format!("syscalls:sys_enter_{call}").into(),
        None => name.into(),
    }
}
