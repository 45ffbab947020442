//! Lines of a terminal: what there is to say, in as many columns as there are.
//!
//! A line begins with a label, in a column of its own, and goes on with text, names and remarks. Where it would become
//! too long, remarks are left out, the last one first, as long as names had to be shorter than what most names take;
//! then names are shortened in the middle, because their beginnings and their ends tell most; and at last the line is
//! cut. Tables, `--json` and the page have names whole.

use unicode_width::UnicodeWidthStr;

use crate::figures::uncut;

/// How many columns a line of the answer has at most.
pub const COLUMNS: usize = 80;

/// How many of them the label takes, with the blanks behind it.
pub const LABEL: usize = 11;

/// What most names take. No name is made shorter than this for the sake of a remark.
const NAME: usize = 16;

/// What a name takes at least, whatever else is in the line.
const LEAST: usize = 5;

/// What stands in place of what was left out.
const LEFT_OUT: char = '…';

/// A piece of a line.
#[derive(Clone, Debug)]
enum Part {
    /// What has to be said.
    Text(String),
    /// The name of a program, of a call or of a place.
    Name(String),
    /// A remark, which may be left out.
    Remark(String),
}

impl Part {
    fn text(&self) -> &str {
        let (Part::Text(text) | Part::Name(text) | Part::Remark(text)) = self;
        text
    }
}

/// A line in the making.
#[derive(Clone, Debug)]
pub struct Line {
    label: &'static str,
    parts: Vec<Part>,
}

impl Line {
    /// One that begins with this label, or goes on with what the line before says if that is empty.
    pub fn new(label: &'static str) -> Self {
        debug_assert!(label.len() < LABEL, "{label}");
        let parts = Vec::new();
        Line { label, parts }
    }

    /// Goes on with what has to be said.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.part(Part::Text(text.into()))
    }

    /// Goes on with a name.
    pub fn name(self, name: &str) -> Self {
        self.part(Part::Name(name.into()))
    }

    /// Goes on with what may be left out.
    pub fn remark(self, text: impl Into<String>) -> Self {
        self.part(Part::Remark(text.into()))
    }

    /// Goes on with all that another line says, but not with its label.
    pub fn then(mut self, other: Line) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// This line, if there is room for all that has to be said in it and names need not be shorter than most are; else the
    /// other.
    pub fn or(self, other: Line) -> Line {
        let needed = |part: &&Part| !matches!(part, Part::Remark(_));
        let taken: usize = self.parts.iter().filter(needed).map(least).sum();
        match taken <= COLUMNS - LABEL {
            true => self,
            false => other,
        }
    }

    fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// What its parts take, each by itself.
    fn taken(&self) -> usize {
        self.parts.iter().map(|part| part.text().width()).sum()
    }

    /// Whether what it says begins so.
    pub fn begins(&self, words: &str) -> bool {
        self.said().starts_with(words)
    }

    /// What all of them say.
    fn said(&self) -> String {
        self.parts.iter().map(Part::text).collect()
    }

    /// Takes out what has no room, until names would have what most names take.
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

    /// Makes names shorter, the longest first, down to `least` columns each.
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

/// The line, in [`COLUMNS`] columns at most; what is no character of a line is none.
impl From<Line> for String {
    fn from(mut line: Line) -> String {
        let room = COLUMNS - LABEL;
        if line.taken() > room {
            for part in &mut line.parts {
                if let Part::Name(name) = part
                    && let Some(uncut) = uncut(name)
                {
                    *name = uncut;
                }
            }
        }
        line.leave_out(room);
        // What characters of two parts take beside one another, names must leave.
        let beside = line.said().width().saturating_sub(line.taken());
        let room = room.saturating_sub(beside);
        line.shorten(room, NAME);
        line.shorten(room, LEAST);
        let text = format!("{:LABEL$}{}", line.label, line.said());
        let text = text.replace(char::is_control, "\u{fffd}");
        let text = text.trim_end();
        match text.width() > COLUMNS {
            true => cut(text, COLUMNS),
            false => text.to_owned(),
        }
    }
}

/// A line's label, and what it says; of one that goes on with what the line before says, the label is empty.
pub fn parted(line: &str) -> (&str, &str) {
    let (label, said) = line.split_at_checked(LABEL).unwrap_or((line, ""));
    (label.trim_end(), said)
}

/// What a part takes where names are as short as most are.
fn least(part: &Part) -> usize {
    match part {
        Part::Name(name) => name.width().min(NAME),
        Part::Text(text) | Part::Remark(text) => text.width(),
    }
}

/// The beginning and the end of a name, in so many columns.
fn middle(name: &str, columns: usize) -> String {
    if name.width() <= columns {
        return name.to_owned();
    }
    let kept = columns.saturating_sub(1);
    let head = beginning(name, kept.div_ceil(2));
    format!("{head}{LEFT_OUT}{}", ending(name, kept / 2))
}

/// The beginning of a line, in so many columns, and a mark that it goes on.
fn cut(text: &str, columns: usize) -> String {
    format!("{}{LEFT_OUT}", beginning(text, columns.saturating_sub(1)))
}

/// As much of the beginning as so many columns have room for. Some characters take more, or less, beside others: so it is
/// the text that is measured, and not each of them.
fn beginning(text: &str, columns: usize) -> &str {
    let ends = text.char_indices().map(|(at, one)| at + one.len_utf8());
    let fitting = ends.take_while(|&end| text[..end].width() <= columns);
    &text[..fitting.last().unwrap_or(0)]
}

/// The same of the end.
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
        assert_eq!(
            line("a_server_of_many_names"),
            "From       a_server_of_many_names sent many"
        );
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
        /// Whatever it says: no line has more columns than there are, and text stands as long as it has room.
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
            // Characters of two parts may take one column more beside one another.
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
