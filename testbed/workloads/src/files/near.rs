//! Suggests the known name nearest to a misspelt one, for example `cpus` for `cpu`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The fewest letters that stand for a longer name.
const SHORTENED: usize = 3;

/// Returns a known name that is close to a misspelt or shortened one, or `None`.
pub fn nearest<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let near = |name: &'n str| {
        let distances = distances(wrong, name);
        let whole = distances.last().copied().filter(|&whole| whole <= 1 + name.len() / 4);
        let shortened = distances.iter().copied().min();
        let shortened =
            shortened.filter(|&part| wrong.len() >= SHORTENED && part <= wrong.len() / 4);
        Some((whole.into_iter().chain(shortened).min()?, name.len(), name))
    };
    let (_, _, name) = names.into_iter().filter_map(near).min()?;
    Some(name)
}

/// Ends an error message with the nearest name, or returns an empty text.
pub fn hint<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    nearest(wrong, names).map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// Returns the edit distances of a word from the beginnings of another: from none of its letters to all.
fn distances(a: &str, b: &str) -> Vec<usize> {
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
    row
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

    #[test]
    fn the_beginning_of_a_name_is_near() {
        let names = [
            "haswell-server",
            "linux-4.13",
            "linux-6.18",
            "SwitchIgnoresBatch",
            "SwitchIgnoresGeneration",
        ];
        assert_eq!(nearest("haswel", names), Some("haswell-server"));
        assert_eq!(nearest("linx", names), Some("linux-4.13"));
        assert_eq!(nearest("SwitchIgnoresGen", names), Some("SwitchIgnoresGeneration"));
        assert_eq!(nearest("li", names), None);
    }
}
