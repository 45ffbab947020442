//! What somebody may have meant who misspelt a name.

/// A known name close to a misspelt one.
pub(super) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    names
        .map(|name| (distance(wrong, name), name))
        .filter(|&(distance, name)| distance <= 1 + name.len() / 4)
        .min()
        .map(|(_, name)| name)
}

/// The edit distance of two words.
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
