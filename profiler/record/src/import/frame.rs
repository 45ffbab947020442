//! Parses stacks as `perf script`, `trace-cmd report` and the kernel's own `trace` file print them.

use std::sync::Arc;

use crate::perf::{Frame, NameTable};

/// The module of kernel frames.
pub const KERNEL: &str = "[kernel]";

/// Parses a stack line of `perf script` without its leading blanks: `address symbol+0x12 (module)`.
pub fn of_perf(line: &str, names: &mut NameTable) -> Option<Frame> {
    let (address, rest) = line.split_once(' ').unwrap_or((line, ""));
    let address = u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim();
    let (symbol, module) = match rest.strip_suffix(')') {
        Some(inner) => match module_at(inner) {
            Some(at) => (&inner[..at], &inner[at + 2..]),
            // With some options `perf` prints only the module.
            None => ("", inner.strip_prefix('(').unwrap_or(inner)),
        },
        None => (rest, ""),
    };
    // A kernel address is in the upper half. The module's name doesn't matter.
    let kernel = address >= 1 << 63 || module.starts_with("[kernel");
    Some(frame(address, kernel, symbol, module, names))
}

/// Finds the ` (` at which the module begins. Symbols contain blanks and parentheses of their own, and so may paths.
fn module_at(text: &str) -> Option<usize> {
    let marks = [" (/", " ([", " (inlined"];
    let last = marks.iter().filter_map(|mark| text.rfind(mark)).max();
    last.or_else(|| text.rfind(" ("))
}

/// Parses the part behind `=>` of a frame by `trace-cmd report` or the kernel.
///
/// The forms are `symbol (address)`, `symbol`, ` <00007f238148bb07>`, `/path/to/file[+0x4f]` and `0x5587606b62c3`.
/// Returns `None` for a frame without information.
pub fn of_trace(text: &str, kernel: bool, names: &mut NameTable) -> Option<Frame> {
    let text = text.trim();
    if kernel {
        let (symbol, address) = match text.strip_suffix(')').and_then(|t| t.rsplit_once(" (")) {
            Some((symbol, address)) => (symbol, u64::from_str_radix(address, 16).unwrap_or(0)),
            None => (text, 0),
        };
        return (!symbol.is_empty()).then(|| frame(address, true, symbol, "", names));
    }
    let (module, rest) = match text.split_once('<') {
        Some((module, rest)) => (module.trim(), rest.trim_end_matches('>')),
        None => ("", text),
    };
    let digits = rest.trim_start_matches("0x");
    if let Ok(address) = u64::from_str_radix(digits, 16) {
        let module = module.split("[+").next().unwrap_or(module);
        return (address != 0).then(|| frame(address, false, "", module, names));
    }
    let (module, offset) = text.split_once("[+0x")?;
    let address = u64::from_str_radix(offset.trim_end_matches(']'), 16).unwrap_or(0);
    Some(frame(address, false, "", module, names))
}

fn frame(address: u64, kernel: bool, symbol: &str, module: &str, names: &mut NameTable) -> Frame {
    let symbol = match symbol.rsplit_once("+0x") {
        Some((name, offset)) if offset.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => symbol,
    };
    let known = |text: &str| !matches!(text, "" | "[unknown]");
    let module: Option<Arc<str>> = match module {
        _ if kernel => Some(names.get(KERNEL)),
        module if known(module) => Some(names.get(module)),
        _ => None,
    };
    Frame { address, kernel, symbol: known(symbol).then(|| names.get(symbol)), module }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(address: u64, kernel: bool, symbol: &str, module: &str) -> Option<Frame> {
        let known = |text: &str| (!text.is_empty()).then(|| text.into());
        Some(Frame { address, kernel, symbol: known(symbol), module: known(module) })
    }

    #[test]
    fn symbols_lose_their_offset_and_keep_their_blanks() {
        let call = "core::ops::call<fn() -> (u8, u8), ()>";
        for (line, expected) in [
            (
                "132e core::ops::call<fn() -> (u8, u8), ()>+0x8c (/opt/a b (1)/churn)",
                frame(0x132e, false, call, "/opt/a b (1)/churn"),
            ),
            (
                "ffffffff81344e73 flush_tlb_mm_range+0x1c3 ([kernel.kallsyms])",
                frame(0xffff_ffff_8134_4e73, true, "flush_tlb_mm_range", KERNEL),
            ),
            ("7ffa88400000 [unknown] ([unknown])", frame(0x7ffa_8840_0000, false, "", "")),
            ("=> nothing", None),
        ] {
            assert_eq!(of_perf(line, &mut NameTable::default()), expected, "{line}");
        }
    }

    #[test]
    fn both_spellings_of_the_kernels_own_stacks_are_read() {
        for (text, kernel, expected) in [
            (
                " flush_tlb_func (ffffffff813446ac)",
                true,
                frame(0xffff_ffff_8134_46ac, true, "flush_tlb_func", KERNEL),
            ),
            ("  <00007f238148bb07>", false, frame(0x7f23_8148_bb07, false, "", "")),
            (
                "/usr/bin/x[+0x4f] <00005585039e632e>",
                false,
                frame(0x5585_039e_632e, false, "", "/usr/bin/x"),
            ),
            ("0x0", false, None),
        ] {
            assert_eq!(of_trace(text, kernel, &mut NameTable::default()), expected, "{text}");
        }
    }
}
