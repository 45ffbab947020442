//! Values with their places, and the mistakes found so far.

use super::{FileError, Mistake, hint};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of the file, with its place.
pub type Item<'t> = Spanned<DeValue<'t>>;

/// The most mistakes that a reader keeps. A file with more is probably not of this kind.
pub const MOST_MISTAKES: usize = 20;

/// Reads the values of one file and collects its mistakes.
///
/// Places are byte offsets into the text, as in `toml`: `item.span().start`. A method that returns `None` has recorded
/// the mistake.
#[derive(Debug)]
pub struct Reader<'t> {
    text: &'t str,
    mistakes: Vec<Mistake>,
}

impl<'t> Reader<'t> {
    /// Creates a reader of this text, without mistakes.
    pub fn new(text: &'t str) -> Self {
        Reader { text, mistakes: Vec::new() }
    }

    /// Returns the text.
    pub fn source(&self) -> &'t str {
        self.text
    }

    /// Returns the text as TOML. If it doesn't parse, records the first error as one mistake.
    pub fn document(&mut self) -> Option<Spanned<DeTable<'t>>> {
        match DeTable::parse(self.text) {
            Ok(document) => Some(document),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                self.refuse(at, "", format!("not TOML: {}", error.message()));
                None
            }
        }
    }

    /// Returns the line of a place, from 1.
    pub fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|&&byte| byte == b'\n').count()
    }

    /// Returns the number of mistakes so far.
    pub fn mistakes(&self) -> usize {
        self.mistakes.len()
    }

    /// Removes all mistakes but the first `count`; the following code reports them again.
    pub fn forget_after(&mut self, count: usize) {
        self.mistakes.truncate(count);
    }

    /// Records a mistake at a place.
    pub fn refuse(&mut self, offset: usize, key: &str, message: impl Into<String>) {
        // Finding a line takes time proportional to the file, so we skip it for mistakes that we drop.
        if self.mistakes.len() < MOST_MISTAKES {
            let line = self.line(offset);
            self.refuse_line(line, key, message);
        }
    }

    /// Records that something is missing. Such a mistake has no line.
    pub fn missing(&mut self, key: &str, message: impl Into<String>) {
        self.refuse_line(0, key, format!("missing: {}", message.into()));
    }

    /// Records a mistake in a line. Line 0 means that it is in none.
    pub fn refuse_line(&mut self, line: usize, key: &str, message: impl Into<String>) {
        if self.mistakes.len() < MOST_MISTAKES {
            self.mistakes.push(Mistake { line, key: key.into(), message: message.into() });
        }
    }

    /// Returns `read` if the file has no mistake.
    ///
    /// # Errors
    /// All mistakes in the order of lines. If `read` is `None` although no mistake was recorded, which is a bug of the
    /// caller, the message is general.
    pub fn finish<T>(self, path: &str, read: Option<T>) -> Result<T, FileError> {
        let mut mistakes = self.mistakes;
        match read {
            Some(read) if mistakes.is_empty() => return Ok(read),
            None if mistakes.is_empty() => {
                mistakes = vec![Mistake {
                    line: 0,
                    key: String::new(),
                    message: "is not such a file".into(),
                }];
            }
            _ => mistakes.sort_by_key(|mistake| (mistake.line == 0, mistake.line)),
        }
        Err(FileError { path: path.into(), mistakes })
    }

    /// Returns the value as a table. Refuses keys that aren't `known`.
    pub fn table<'v, 'd>(
        &mut self,
        key: &str,
        item: &'v Item<'d>,
        known: &[&str],
    ) -> Option<&'v DeTable<'d>> {
        let Some(table) = item.get_ref().as_table() else {
            let found = found(item.get_ref());
            self.refuse(item.span().start, key, format!("expected a table, found {found}"));
            return None;
        };
        self.check_keys(key, table, known);
        Some(table)
    }

    /// Refuses each key of a table that is not among the known ones.
    ///
    /// `key` is the table's own key; it's empty for the whole file.
    pub fn check_keys(&mut self, key: &str, table: &DeTable<'_>, known: &[&str]) {
        for (inner, _) in table {
            // Looking for the nearest name takes long, and further mistakes are dropped.
            if self.mistakes.len() == MOST_MISTAKES {
                return;
            }
            let word = inner.get_ref().as_ref();
            if !known.contains(&word) {
                let whole = match key {
                    "" => word.to_owned(),
                    key => format!("{key}.{word}"),
                };
                self.refuse(
                    inner.span().start,
                    &whole,
                    format!(
                        "unknown{}; expected one of {}",
                        hint(word, known.iter().copied()),
                        known.join(", ")
                    ),
                );
            }
        }
    }

    /// Returns the value as a text.
    pub fn text(&mut self, key: &str, item: &Item<'_>) -> Option<String> {
        match item.get_ref().as_str() {
            Some(text) => Some(text.to_owned()),
            None => {
                let found = found(item.get_ref());
                self.refuse(
                    item.span().start,
                    key,
                    format!("expected a text in quotes, found {found}"),
                );
                None
            }
        }
    }

    /// Returns the value as a boolean, or `false` if it is absent.
    ///
    /// If the value has another type, records a mistake and returns `false`.
    pub fn truth(&mut self, key: &str, item: Option<&Item<'_>>) -> bool {
        let Some(item) = item else { return false };
        item.get_ref().as_bool().unwrap_or_else(|| {
            self.refuse(item.span().start, key, "expected true or false");
            false
        })
    }
}

/// Describes a wrong value: a number as it was written, other values by kind.
pub fn found(value: &DeValue<'_>) -> String {
    match (value.as_float(), value.as_integer()) {
        (Some(float), _) => format!("`{}`", float.as_str()),
        (_, Some(integer)) => format!("`{}`", integer.as_str()),
        (None, None) => value.type_str().to_owned(),
    }
}

/// Returns a table's entries in the order of the file, each with its place.
pub fn in_order<'v, 't>(table: &'v DeTable<'t>) -> Vec<(usize, &'v str, &'v Item<'t>)> {
    let mut entries: Vec<_> =
        table.iter().map(|(key, item)| (key.span().start, key.get_ref().as_ref(), item)).collect();
    entries.sort_by_key(|&(at, ..)| at);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn all_mistakes_are_told_in_the_order_of_lines() {
        let mut reader = Reader::new("a = 1\nb = 'x'\nc = []\n");
        let document = reader.document().unwrap();
        let table = document.get_ref();
        reader.missing("d", "a number");
        assert!(!reader.truth("c", table.get("c")));
        assert_eq!(reader.text("a", table.get("a").unwrap()), None);
        assert_eq!(reader.text("b", table.get("b").unwrap()).as_deref(), Some("x"));
        assert!(!reader.truth("e", table.get("e")));
        let error = reader.finish("file", Some(())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "file:1: a: expected a text in quotes, found `1`\n\
             file:3: c: expected true or false\n\
             file: d: missing: a number"
        );
    }

    #[test]
    fn what_is_no_toml_has_a_line() {
        let mut reader = Reader::new("a = 1\nb =\n");
        assert!(reader.document().is_none());
        let error = reader.finish::<()>("file", None).unwrap_err();
        assert!(error.to_string().starts_with("file:2: not TOML: "));
    }

    #[test]
    fn a_file_that_is_wrong_throughout_is_refused_in_few_lines() {
        let mut reader = Reader::new("");
        for line in 1..100 {
            reader.refuse_line(line, "", "wrong");
        }
        assert_eq!(reader.mistakes(), MOST_MISTAKES);
        reader.forget_after(1);
        let error = reader.finish::<()>("file", None).unwrap_err();
        assert_eq!(error.to_string(), "file:1: wrong");
    }

    #[test]
    fn nothing_read_is_never_a_success() {
        let error = Reader::new("").finish::<()>("file", None).unwrap_err();
        assert_eq!(error.to_string(), "file: is not such a file");
        assert_eq!(Reader::new("").finish("file", Some(3)), Ok(3));
    }
}
