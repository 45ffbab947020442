//! Parses kernel output that neither `procfs` nor `quell_record::perf` reads. No input makes these functions panic.

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

    #[test]
    fn lists_and_choices() {
        assert_eq!(number_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert!(number_list("").is_empty());
        assert!(number_list("0-99999999999,1-3").len() <= 4096);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(?s).{0,400}|([0-9]{1,22}|[,\\-\\[\\] \n]){0,60}") {
            prop_assert!(number_list(&text).len() <= 4096);
            let _ = chosen(&text);
        }
    }
}
