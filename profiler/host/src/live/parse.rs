//! Parses kernel output that neither `procfs` nor `quell_record::perf` reads. No input makes these functions panic.

use std::collections::BTreeMap;

/// Parses the names and numbers of a tracepoint's symbolic field from its `format` file.
///
/// These are the pairs of the last `__print_symbolic` in `print fmt`. Names are in lower case, because kernels have
/// changed their spelling.
pub fn symbolic_values(format: &str) -> BTreeMap<String, i64> {
    let mut values = BTreeMap::new();
    let Some((_, list)) = format.rsplit_once("__print_symbolic(") else {
        return values;
    };
    for pair in list.split('{').skip(1) {
        let Some((pair, _)) = pair.split_once('}') else {
            continue;
        };
        let Some((number, name)) = pair.split_once(',') else {
            continue;
        };
        if let Ok(number) = number.trim().parse() {
            values.insert(name.trim().trim_matches('"').to_lowercase(), number);
        }
    }
    values
}

/// Parses a list such as `0-3,8` as numbers. Returns at most 4096, and skips parts that aren't numbers.
pub fn number_list(text: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        {
            numbers.extend((first..=last).take(4096 - numbers.len()));
        }
    }
    numbers
}

/// Parses the bracketed choice of a sysfs file such as `always [madvise] never`.
pub fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(choice, _)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FORMAT: &str = "name: tlb_flush\nID: 188\nformat:\n\
        \tfield:int reason;\toffset:8;\tsize:4;\tsigned:1;\n\n\
        print fmt: \"pages:%ld reason:%s (%d)\", REC->pages, __print_symbolic(REC->reason, \
        { 0, \"flush on task switch\" }, { 1, \"remote shootdown\" }, { 2, \"local shootdown\" }, \
        { 3, \"local MM shootdown\" }, { 4, \"remote IPI send\" }, { 5, \"remote wrong CPU\" }), REC->reason\n";

    #[test]
    fn reasons_of_the_tracepoint() {
        let reasons = symbolic_values(FORMAT);
        assert_eq!(reasons.len(), 6);
        assert_eq!(reasons["remote ipi send"], 4);
        assert_eq!(reasons["flush on task switch"], 0);
        assert!(symbolic_values("print fmt: \"%d\", REC->reason").is_empty());
    }

    #[test]
    fn lists_and_choices() {
        assert_eq!(number_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(number_list("").is_empty());
        assert!(number_list("0-99999999999,1-3").len() <= 4096);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(?s).{0,400}") {
            let _ = symbolic_values(&text);
            let _ = number_list(&text);
            let _ = chosen(&text);
        }

        #[test]
        fn no_almost_right_text_makes_a_parser_panic(text in "(CPU[0-9]{1,22}|cpu |[0-9]{1,22}|[A-Z]{3}:|__print_symbolic\\(|[{},\\-\\[\\]:\" \n]){0,60}") {
            let _ = symbolic_values(&text);
            prop_assert!(number_list(&text).len() <= 4096);
            let _ = chosen(&text);
        }
    }
}
