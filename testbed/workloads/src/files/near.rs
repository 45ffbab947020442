//! Suggests the known name nearest to a misspelt one, for example `cpus` for `cpu`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Returns a known name that is close to a misspelt one, or `None`.
pub fn nearest<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    names
        .into_iter()
        .map(|name| (distance(wrong, name), name))
        .filter(|&(distance, name)| distance <= 1 + name.len() / 4)
        .min()
        .map(|(_, name)| name)
}

/// Ends an error message with the nearest name, or returns an empty text.
pub fn hint<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    nearest(wrong, names).map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// Returns the edit distance of two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let insert = row[j].min(row[j + 1]) + 1;
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = insert.min(replace);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_near_and_another_word_is_not() {
        let names = ["send", "exit", "deliver"];
        assert_eq!(nearest("sned", names), Some("send"));
        assert_eq!(nearest("delivery", names), Some("deliver"));
        assert_eq!(nearest("colour", names), None);
        assert_eq!(hint("exti", names), "; did you mean `exit`?");
        assert_eq!(hint("colour", names), "");
    }
}
