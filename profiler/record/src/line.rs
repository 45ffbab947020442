//! Fits a line of the answer into the columns of a terminal.
//!
//! A line has a label in a column of its own, then text, names and remarks. A line that's too long is shortened in
//! three steps:
//!
//! 1. We drop remarks, the last one first, as long as names would be cut below the width of most names.
//! 2. We shorten names in the middle, because their beginnings and ends distinguish them best.
//! 3. We cut the line.
//!
//! Tables, `--json` and the page print whole names.

use unicode_width::UnicodeWidthStr;

use crate::figures::uncut;

/// The largest width of an answer's line, in columns.
pub const COLUMNS: usize = 80;

/// The width of the label, with the blanks after it.
pub const LABEL: usize = 11;

/// The width of most names. We don't cut a name below this to keep a remark.
const NAME: usize = 16;

/// The least width of a name, however long the line is.
const LEAST: usize = 5;

/// The mark in place of dropped characters.
const LEFT_OUT: char = '…';

/// A piece of a line.
#[derive(Clone, Debug)]
enum Part {
    Text(String),
    /// The name of a program, a call or a place.
    Name(String),
    /// Text that we can drop.
    Remark(String),
}

impl Part {
    fn text(&self) -> &str {
        let (Part::Text(text) | Part::Name(text) | Part::Remark(text)) = self;
        text
    }
}

/// A line under construction.
#[derive(Clone, Debug, Default)]
pub struct Line {
    label: &'static str,
    parts: Vec<Part>,
}

impl Line {
    /// Creates a line with this label. With an empty label it continues the line before.
    pub fn new(label: &'static str) -> Self {
        debug_assert!(label.len() < LABEL, "{label}");
        let parts = Vec::new();
        Line { label, parts }
    }

    /// Appends necessary text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.part(Part::Text(text.into()))
    }

    /// Appends a name.
    pub fn name(self, name: &str) -> Self {
        self.part(Part::Name(name.into()))
    }

    /// Appends text that may be dropped.
    pub fn remark(self, text: impl Into<String>) -> Self {
        self.part(Part::Remark(text.into()))
    }

    /// Appends the parts of another line, but not its label.
    pub fn then(mut self, other: Line) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// Returns this line if it fits, otherwise the other one.
    ///
    /// It fits if names needn't be cut below the width of most names.
    pub fn or(self, other: Line) -> Line {
        let needed = |part: &&Part| !matches!(part, Part::Remark(_));
        let taken: usize = self.parts.iter().filter(needed).map(least).sum();
        if taken <= COLUMNS - LABEL { self } else { other }
    }

    fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Returns the sum of the parts' widths.
    fn taken(&self) -> usize {
        self.parts.iter().map(|part| part.text().width()).sum()
    }

    /// Returns whether the text after the label begins with `words`.
    pub fn begins(&self, words: &str) -> bool {
        self.whole().starts_with(words)
    }

    /// Returns the text of all parts, however long it is.
    pub fn whole(&self) -> String {
        self.parts.iter().map(Part::text).collect()
    }

    /// Drops remarks until names would have at least the width of most names.
    fn leave_out(&mut self, room: usize) {
        loop {
            let taken: usize = self.parts.iter().map(least).sum();
            let is_remark = |part: &Part| matches!(part, Part::Remark(_));
            match self.parts.iter().rposition(is_remark) {
                Some(last) if taken > room => {
                    self.parts.remove(last);
                }
                _ => return,
            }
        }
    }

    /// Shortens names to `least` columns each, the longest first, until the line fits.
    fn shorten(&mut self, room: usize, least: usize) {
        let mut taken = self.taken();
        let mut names: Vec<&mut String> = Vec::new();
        for part in &mut self.parts {
            if let Part::Name(name) = part {
                names.push(name);
            }
        }
        names.sort_by_key(|name| std::cmp::Reverse(name.width()));
        for name in names {
            let width = name.width();
            let over = taken.saturating_sub(room);
            if over == 0 {
                return;
            }
            *name = middle(name, width.saturating_sub(over).max(least));
            taken = taken + name.width() - width;
        }
    }
}

/// Formats the line in at most [`COLUMNS`] columns. Replaces control characters, because they'd move the cursor.
impl From<Line> for String {
    fn from(mut line: Line) -> String {
        let room = COLUMNS - LABEL;
        if line.taken() > room {
            for part in &mut line.parts {
                // Programs have shorter names.
                if let Part::Name(name) = part
                    && name.len() > NAME
                    && let Some(uncut) = uncut(name)
                {
                    *name = uncut;
                }
            }
        }
        line.leave_out(room);
        // Some characters are wider beside those of the next part. Names must leave room for that.
        let beside = line.whole().width().saturating_sub(line.taken());
        let room = room.saturating_sub(beside);
        line.shorten(room, NAME);
        line.shorten(room, LEAST);
        let text = format!("{:LABEL$}{}", line.label, line.whole());
        let text = text.replace(char::is_control, "\u{fffd}");
        let text = text.trim_end();
        if text.width() > COLUMNS { cut(text, COLUMNS) } else { text.to_owned() }
    }
}

/// Splits a line into its label and its text. A line that continues the one before has an empty label.
pub fn parted(line: &str) -> (&str, &str) {
    let (label, said) = line.split_at_checked(LABEL).unwrap_or((line, ""));
    (label.trim_end(), said)
}

/// Returns the width of a part. A name counts at most as wide as most names.
fn least(part: &Part) -> usize {
    match part {
        Part::Name(name) => name.width().min(NAME),
        Part::Text(text) | Part::Remark(text) => text.width(),
    }
}

/// Shortens a name to this many columns. Keeps its beginning and its end.
fn middle(name: &str, columns: usize) -> String {
    if name.width() <= columns {
        return name.to_owned();
    }
    let kept = columns.saturating_sub(1);
    let head = beginning(name, kept.div_ceil(2));
    format!("{head}{LEFT_OUT}{}", ending(name, kept / 2))
}

/// Cuts a line to this many columns, and adds the mark.
fn cut(text: &str, columns: usize) -> String {
    format!("{}{LEFT_OUT}", beginning(text, columns.saturating_sub(1)))
}

/// Returns the longest beginning that fits. Some characters change their width beside others, so we measure the text
/// and don't add up characters.
fn beginning(text: &str, columns: usize) -> &str {
    let ends = text.char_indices().map(|(at, one)| at + one.len_utf8());
    let fitting = ends.take_while(|&end| text[..end].width() <= columns);
    &text[..fitting.last().unwrap_or(0)]
}

/// Returns the longest end that fits.
fn ending(text: &str, columns: usize) -> &str {
    let begins = text.char_indices().rev().map(|(at, _)| at);
    let fitting = begins.take_while(|&begin| text[begin..].width() <= columns);
    &text[fitting.last().unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(line: Line) -> String {
        line.into()
    }

    #[test]
    fn remarks_go_before_names_and_names_lose_their_middle() {
        let line = |name: &str| {
            let line = Line::new("From").name(name).text(" sent many");
            said(line.remark(", all of them by itself and nobody else, as it seems"))
        };
        assert_eq!(
            line("server"),
            "From       server sent many, all of them by itself and nobody else, as it seems"
        );
        assert_eq!(line("a_server_of_many_names"), "From       a_server_of_many_names sent many");
        let name = format!("begin_{}_end", "x".repeat(80));
        let shortened = line(&name);
        assert!(shortened.starts_with("From       begin_xx"), "{shortened}");
        assert!(shortened.ends_with("xx_end sent many"), "{shortened}");
        assert_eq!((shortened.width(), shortened.matches('…').count()), (80, 1));
        assert_eq!(said(Line::new("").text("and on")), "           and on");
        assert_eq!(parted("           and on"), ("", "and on"));
        assert_eq!(parted("Each flush is dear"), ("Each flush", "is dear"));
    }

    #[test]
    fn what_would_move_a_terminals_cursor_is_not_in_a_line() {
        let line = said(Line::new("From").name("a\nb\u{1b}[2Jc\td"));
        assert_eq!(line, "From       a\u{fffd}b\u{fffd}[2Jc\u{fffd}d");
    }

    proptest! {
        /// Checks that no line is too wide. Plain text must be complete if it fits.
        #[test]
        fn no_line_is_too_long(
            parts in prop::collection::vec((0..3u8, prop_oneof!["[a-z: ]{0,30}", ".{0,90}", "[漢字👩‍🚀é☺️\u{301}]{0,60}"]), 0..9),
        ) {
            let mut line = Line::new("Each flush");
            let mut needed = 0;
            for (kind, text) in &parts {
                needed += match kind {
                    0 => text.width(),
                    1 => LEAST,
                    _ => 0,
                };
                line = match kind {
                    0 => line.text(text.as_str()),
                    1 => line.name(text),
                    _ => line.remark(text.as_str()),
                };
            }
            let line = said(line);
            prop_assert!(line.width() <= COLUMNS, "{}: {line}", line.width());
            prop_assert!(!line.chars().any(char::is_control));
            // Characters of two parts may take one more column beside each other.
            if needed + parts.len() <= COLUMNS - LABEL {
                let is_plain = |text: &str| text.is_ascii() && !text.contains(char::is_control);
                let plain = parts.iter().filter(|(kind, text)| *kind == 0 && is_plain(text));
                for (_, text) in plain {
                    prop_assert!(line.contains(text.trim()), "{text} of {line}");
                }
            }
        }
    }
}
