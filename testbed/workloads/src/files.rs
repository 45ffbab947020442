//! Reads TOML files that people write, and reports all mistakes at once.
//!
//! Machine files and workload files are such files. [`Reader`] collects [`Mistake`]s, each with its line, its key and
//! the expected value. [`Reader::finish`] combines them into the [`FileError`] that the command `quell` prints.
//!
//! ```
//! use quell_workloads::files::Reader;
//!
//! let text = "name = 3\ncolor = 1\n";
//! let mut reader = Reader::new(text);
//! let document = reader.document();
//! let name = document.as_ref().and_then(|document| {
//!     reader.check_keys("", document.get_ref(), &["name"]);
//!     reader.text("name", document.get_ref().get("name")?)
//! });
//! let refused = reader.finish("mine.toml", name).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "mine.toml:1: name: expected a text in quotes, found `3`\n\
//!      mine.toml:2: color: unknown; expected one of name"
//! );
//! ```
//!
//! # Not guaranteed
//!
//! The reader doesn't find every mistake: it skips parts that don't parse, and keeps at most [`MOST_MISTAKES`]. The
//! messages are for people; no program should parse them.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One mistake in a file, or in a value that was set as text.
///
/// It's printed as `key: message`; [`FileError`] puts the file and the line before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The line, from 1. It's 0 if a key is missing or the value did not come from a file.
    pub line: usize,
    /// The key with its section, `section.key`. It's empty if the mistake isn't at a key.
    pub key: String,
    /// A description of the mistake and of the expected value.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl core::error::Error for Mistake {}

/// The reason why a file was refused.
///
/// It's printed as one line for each mistake, `path:line: key: message`, like a compiler's messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// The path of the file, as the caller passed it.
    pub path: String,
    /// The mistakes in the order of their lines; those without a line are last.
    ///
    /// It's never empty if [`Reader::finish`](Reader::finish) returned it.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            f.write_str(&self.path)?;
            if mistake.line > 0 {
                write!(f, ":{}", mistake.line)?;
            }
            write!(f, ": {mistake}")?;
        }
        Ok(())
    }
}

impl core::error::Error for FileError {}

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
                let whole = if key.is_empty() { word.into() } else { format!("{key}.{word}") };
                let hint = hint(word, known.iter().copied());
                let message = format!("unknown{hint}; expected one of {}", known.join(", "));
                self.refuse(inner.span().start, &whole, message);
            }
        }
    }

    /// Returns the value as a text.
    pub fn text(&mut self, key: &str, item: &Item<'_>) -> Option<String> {
        let text = item.get_ref().as_str().map(ToOwned::to_owned);
        if text.is_none() {
            let message = format!("expected a text in quotes, found {}", found(item.get_ref()));
            self.refuse(item.span().start, key, message);
        }
        text
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
