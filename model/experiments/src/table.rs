//! Tables that are laid out for the terminal.
//!
//! A column contains words or numbers. Words continue on the next line but are never split; numbers are aligned to the
//! right and stay with their unit. A table is as wide as the terminal. A pipe has no width, so each row is one line
//! there. If the terminal is too narrow even for the longest word of every column, we leave out columns marked as spare
//! and name them below the table. If that isn't enough, each row becomes a paragraph.
//!
//! We don't use a library for tables, because those that we know split words before they leave a column out.

use std::fmt;

use console::{measure_text_width as length, style};
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::charts::PageTable;
use crate::output;

/// The greatest length of the rule below the headings.
const RULE: usize = 240;

/// The number of blanks between two columns.
const GAP: usize = 2;

/// A colour for good and bad news, on terminals that have colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tone {
    Plain,
    Good,
    Bad,
}

/// The text of a cell and its tone.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell {
            // A cell is one line, whatever a program calls itself.
            text: output::visible(&text.into(), false).replace(char::is_control, "\u{fffd}"),
            tone: Tone::Plain,
        }
    }
}

/// Creates a cell with good or bad news.
pub fn verdict(good: bool, text: impl Into<String>) -> Cell {
    Cell { text: text.into(), tone: if good { Tone::Good } else { Tone::Bad } }
}

/// Formats a value; `-` without one.
pub(crate) fn or_dash(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

/// A column: its heading, whether it contains numbers, and whether it may be left out.
#[derive(Clone, Debug)]
pub struct Column {
    heading: String,
    number: bool,
    spare: bool,
}

/// Creates a column of words.
pub fn words(heading: impl Into<String>) -> Column {
    Column { heading: heading.into(), number: false, spare: false }
}

/// Creates a column of numbers. Their unit is in the heading or in the cells.
pub fn number(heading: impl Into<String>) -> Column {
    Column { number: true, ..words(heading) }
}

impl Column {
    /// Marks the column as one to leave out if the terminal is too narrow.
    pub fn spare(self) -> Self {
        Column { spare: true, ..self }
    }
}

/// A table: its columns and rows.
#[derive(Clone, Default, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A table with a row for each item, to which columns are added.
pub struct TableOf<'i, T> {
    items: &'i [T],
    table: Table,
}

impl<'i, T> TableOf<'i, T> {
    /// Adds a column; `cell` returns an item's cell.
    pub fn column<C: Into<Cell>>(mut self, column: Column, cell: impl Fn(&'i T) -> C) -> Self {
        self.table.columns.push(column);
        for (row, item) in self.table.rows.iter_mut().zip(self.items) {
            row.push(cell(item).into());
        }
        self
    }

    /// Returns the table.
    pub fn done(self) -> Table {
        self.table
    }
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(length).max().unwrap_or(0)
}

fn longest_line(text: &str) -> usize {
    text.lines().map(length).max().unwrap_or(0)
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let options = Options::new(width.max(1))
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(|line| line.into_owned()).collect()
}

impl Table {
    /// Creates a table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row, one cell for each column.
    ///
    /// # Panics
    /// If there are more or fewer cells than columns.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// Begins a table with a row for each item.
    pub fn of<T>(items: &[T]) -> TableOf<'_, T> {
        TableOf { items, table: Table { columns: Vec::new(), rows: vec![Vec::new(); items.len()] } }
    }

    /// Returns the table as text, at most `width` characters wide if there is a width.
    pub fn render(&self, width: Option<usize>, colour: bool) -> String {
        self.pieces(width, colour).concat()
    }

    /// Returns the table in pieces: headings, each row, the note about left-out columns. Filling in a cell changes no
    /// other row as long as the cell is no wider than its heading.
    pub fn pieces(&self, width: Option<usize>, colour: bool) -> Vec<String> {
        let width = width.unwrap_or(usize::MAX);
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            if let Some(widths) = self.widths(&shown, width) {
                return self.lines(&shown, &widths, width, colour);
            }
            match shown.iter().rposition(|&column| self.columns[column].spare) {
                Some(spared) => {
                    shown.remove(spared);
                }
                None => return self.paragraphs(width, colour),
            }
        }
    }

    /// Returns the table in Markdown, with `spare` including the columns that may be left out.
    pub fn markdown(&self, spare: bool) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&column| spare || !self.columns[column].spare)
            .collect();
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let headings = shown.iter().map(|&column| self.columns[column].heading.as_str());
        let rules = shown.iter().map(|&column| match self.columns[column].number {
            true => "---:",
            false => "---",
        });
        let mut out = line(headings.collect()) + &line(rules.collect());
        for row in &self.rows {
            let cells: Vec<String> =
                shown.iter().map(|&column| row[column].text.replace('|', "\\|")).collect();
            out += &line(cells.iter().map(String::as_str).collect());
        }
        out
    }

    /// Returns the table for an HTML page, below this heading.
    pub fn for_page(self, heading: String) -> PageTable {
        let texts = |row: Vec<Cell>| row.into_iter().map(|cell| cell.text).collect();
        let columns = self.columns.into_iter();
        PageTable {
            heading,
            columns: columns.map(|column| (column.heading, column.number)).collect(),
            rows: self.rows.into_iter().map(texts).collect(),
        }
    }

    /// Returns the least width of a column, and the width that needs no wrapping.
    fn bounds(&self, column: usize) -> (usize, usize) {
        let Column { heading, number, .. } = &self.columns[column];
        let cells = || self.rows.iter().map(|row| row[column].text.as_str());
        let widest = cells().map(longest_line).max().unwrap_or(0);
        let narrowest = match number {
            true => widest,
            false => cells().map(longest_word).max().unwrap_or(0),
        };
        let least = narrowest.max(longest_word(heading));
        (least, widest.max(longest_line(heading)))
    }

    /// Returns the widths of these columns, or `None` if they don't fit.
    fn widths(&self, shown: &[usize], width: usize) -> Option<Vec<usize>> {
        let gaps = GAP * shown.len().saturating_sub(1);
        let bounds: Vec<_> = shown.iter().map(|&column| self.bounds(column)).collect();
        let mut widths: Vec<usize> = bounds.iter().map(|&(_, most)| most).collect();
        if widths.iter().sum::<usize>() + gaps <= width {
            return Some(widths);
        }
        widths = bounds.iter().map(|&(least, _)| least).collect();
        let mut left = width.checked_sub(gaps + widths.iter().sum::<usize>())?;
        // We give each spare character to the column whose tallest cell has the most lines.
        while left > 0 {
            let wants = |index: &usize| widths[*index] < bounds[*index].1;
            let tallness = |index: &usize| {
                let width = widths[*index].max(1);
                let cells = self.rows.iter().map(|row| &row[shown[*index]].text);
                let most = cells.map(|text| length(text).div_ceil(width)).max();
                (most.unwrap_or(0), bounds[*index].1)
            };
            let tallest = (0..shown.len()).filter(wants).max_by_key(tallness)?;
            widths[tallest] += 1;
            left -= 1;
        }
        Some(widths)
    }

    fn lines(&self, shown: &[usize], widths: &[usize], limit: usize, colour: bool) -> Vec<String> {
        let mut pieces = Vec::with_capacity(self.rows.len() + 2);
        let mut out = String::new();
        let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let headings: Vec<Cell> =
            shown.iter().map(|&column| self.columns[column].heading.as_str().into()).collect();
        self.line(&mut out, shown, widths, &headings.iter().collect::<Vec<_>>(), false);
        // A pipe has no width, and its rule needn't be as long as its rows.
        out.push_str(&"─".repeat(total.min(RULE)));
        out.push('\n');
        pieces.push(std::mem::take(&mut out));
        for row in &self.rows {
            let cells: Vec<&Cell> = shown.iter().map(|&column| &row[column]).collect();
            self.line(&mut out, shown, widths, &cells, colour);
            pieces.push(std::mem::take(&mut out));
        }
        let left_out: Vec<&str> = (0..self.columns.len())
            .filter(|column| !shown.contains(column))
            .map(|column| self.columns[column].heading.as_str())
            .collect();
        if !left_out.is_empty() {
            let note = format!(
                "Not shown for lack of width: {}. Use a wider terminal, a pipe or --json to see them.",
                left_out.join("; ")
            );
            for line in wrap(&note, limit) {
                out.push_str(&line);
                out.push('\n');
            }
        }
        pieces.push(out);
        pieces
    }

    /// Appends a row to `out`, in as many lines as its tallest cell takes.
    fn line(
        &self,
        out: &mut String,
        shown: &[usize],
        widths: &[usize],
        cells: &[&Cell],
        colour: bool,
    ) {
        let parts: Vec<Vec<String>> =
            cells.iter().zip(widths).map(|(cell, &width)| wrap(&cell.text, width)).collect();
        let height = parts.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let mut line = String::new();
            for (index, part) in parts.iter().enumerate() {
                let text = part.get(at).map_or("", String::as_str);
                let blanks = " ".repeat(widths[index].saturating_sub(length(text)));
                let text = toned(text, cells[index].tone, colour);
                let (before, after) = match self.columns[shown[index]].number {
                    true => (blanks.as_str(), ""),
                    false => ("", blanks.as_str()),
                };
                if index > 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                line.extend([before, &text, after]);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }

    /// Returns each row as a paragraph, with each cell on its own lines.
    fn paragraphs(&self, width: usize, colour: bool) -> Vec<String> {
        let mut pieces = vec![String::new()];
        for (index, row) in self.rows.iter().enumerate() {
            let mut out = String::new();
            if index > 0 {
                out.push('\n');
            }
            let filled = row.iter().zip(&self.columns);
            let filled = filled.filter(|(cell, _)| !cell.text.is_empty());
            for (at, (cell, column)) in filled.enumerate() {
                let indent = if at == 0 { "" } else { "  " };
                let room = width.saturating_sub(indent.len());
                let text = match column.heading.as_str() {
                    "" => cell.text.clone(),
                    heading => format!("{heading}: {}", cell.text),
                };
                let lines = match column.number && length(&text) > room {
                    // A number stays with its unit.
                    true => {
                        let mut lines = wrap(&format!("{}:", column.heading), room);
                        lines.push(cell.text.clone());
                        lines
                    }
                    false => wrap(&text, room),
                };
                for line in lines {
                    out.push_str(indent);
                    out.push_str(&toned(&line, cell.tone, colour));
                    out.push('\n');
                }
            }
            pieces.push(out);
        }
        pieces.push(String::new());
        pieces
    }
}

fn toned(text: &str, tone: Tone, colour: bool) -> String {
    let styled = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Good => style(text).green(),
        Tone::Bad => style(text).red().bold(),
    };
    match colour {
        true => styled.force_styling(true).to_string(),
        false => text.to_owned(),
    }
}

/// Formats the table for the terminal of standard output or for a pipe, without a final newline.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.render(output::width(), output::colour());
        f.write_str(text.trim_end_matches('\n'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Table {
        let mut table = Table::new([
            words(""),
            words("experiment"),
            number("change published, %"),
            words("a long remark").spare(),
        ]);
        table.row(["S0", "swap, Kunpeng 920", "-12.5", "which says a lot and is not needed"]);
        table.row(["S4", "dontneed", "+146.9", ""]);
        table
    }

    #[test]
    fn a_name_with_a_new_line_stays_in_its_row() {
        let mut table = Table::new([words("program")]);
        table.row(["e\u{1b}[31mvil\n\tx"]);
        let text = table.render(None, false);
        assert!(text.contains("e\u{fffd}[31mvil\u{fffd}\u{fffd}x"), "{text}");
    }

    #[test]
    fn a_pipe_gets_a_line_for_each_row() {
        let text = example().render(None, false);
        assert!(
            text.contains(
                "S0  swap, Kunpeng 920                -12.5  which says a lot and is not needed\n"
            ),
            "{text}"
        );
        assert!(text.contains("S4  dontneed                        +146.9\n"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_goes_on_in_the_next_line_then_spares_then_stacks() {
        let text = example().render(Some(60), false);
        assert!(text.contains("needed") && !text.contains("Not shown"), "{text}");
        let text = example().render(Some(32), false);
        assert!(text.contains("Not shown for lack of width: a\nlong remark."), "{text}");
        let text = example().render(Some(20), false);
        assert!(text.contains("experiment: swap,\n") && text.contains("%:\n  -12.5"), "{text}");
    }

    #[test]
    fn colour_is_only_where_it_is_wanted() {
        let mut table = Table::new([words("verdict")]);
        table.row([verdict(true, "hit")]);
        assert!(!table.render(None, false).contains('\u{1b}'));
        assert!(table.render(None, true).contains("\u{1b}[32mhit"));
    }

    proptest! {
        /// For any content, no line is too long, no word is split or lost, and numbers stay whole.
        #[test]
        fn nothing_overflows_and_nothing_breaks(
            rows in proptest::collection::vec(("[a-z]{1,9}( [a-z,é]{1,12}){0,6}", "[0-9]{1,6}\\.[0-9] (us|%)", "[A-Z]{0,8}( [a-z]{1,9}){0,20}"), 1..6),
            width in 30usize..160,
        ) {
            let mut table = Table::new([words("what"), number("time and its unit"), words("why it is so")]);
            for (a, b, c) in &rows {
                table.row([a.clone(), b.clone(), c.clone()]);
            }
            let text = table.render(Some(width), false);
            let found: Vec<&str> = text.split_whitespace().collect();
            for line in text.lines() {
                prop_assert!(length(line) <= width, "{}", text);
            }
            for (a, b, c) in &rows {
                for word in a.split_whitespace().chain(c.split_whitespace()) {
                    prop_assert!(found.contains(&word), "{} of\n{}", word, text);
                }
                prop_assert!(text.contains(b.as_str()), "{} of\n{}", b, text);
            }
        }
    }
}
