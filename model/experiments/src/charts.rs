//! Draws pages and inline SVG charts, in the colours of the page's style.

use maud::{Markup, html};
use quell_workloads::pages::{PageStyle, colour};

use crate::numbers::digits;

/// A bar of a group.
pub(crate) struct Bar {
    pub label: &'static str,
    pub value: f64,
    /// One of the style's colours.
    pub color: &'static str,
    /// The scale. Bars of one scale are comparable: the longest of them determines the length of all.
    pub scale: f64,
}

/// A group of bars under a title.
pub(crate) struct Group {
    pub title: String,
    pub bars: Vec<Bar>,
    /// A note at the right of the group.
    pub note: String,
}

const BAR: f64 = 17.0;
const LABEL: f64 = 250.0;
/// The width of every drawing, which is scaled to the page.
pub(crate) const WIDTH: f64 = 1040.0;

/// Builds a page with such charts, without scripts.
pub(crate) fn page(title: &str, content: &Markup) -> Markup {
    quell_workloads::pages::page(title, &LOOK, content, &html! {})
}

/// A table of a page.
pub struct PageTable {
    /// The heading above the table.
    pub heading: String,
    /// The columns: each with its heading, and whether it holds numbers.
    pub columns: Vec<(String, bool)>,
    /// The rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// Builds a page with a chart above tables. A table without columns becomes a paragraph.
pub fn of_tables(title: &str, chart: &Chart<'_>, tables: &[PageTable]) -> String {
    let class = |number: bool| if number { "n" } else { "" };
    let content = html! {
        h1 { (title) }
        figure { (chart.draw()) }
        @for table in tables {
            @if table.columns.is_empty() {
                @for line in table.heading.lines() { p { (line) } }
            } @else {
                h2 { (table.heading) }
                table {
                    thead { tr { @for (name, number) in &table.columns { th class=(class(*number)) { (name) } } } }
                    tbody { @for row in &table.rows { tr {
                        @for (cell, (name, number)) in row.iter().zip(&table.columns) {
                            td class=(class(*number)) data-label=(name) { (cell) }
                        }
                    } } }
                }
            }
        }
    };
    page(title, &content).into_string()
}

/// Builds a drawing of this height.
pub(crate) fn drawing(height: f64, content: &Markup) -> Markup {
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" { (content) }
    }
}

/// Draws horizontal bars in groups.
pub(crate) fn bars(groups: &[Group]) -> Markup {
    let length = WIDTH - LABEL - 330.0;
    let mut y = 0.0;
    let placed: Vec<(f64, &Group)> = groups
        .iter()
        .map(|group| {
            let top = y;
            y += BAR * group.bars.len() as f64 + 20.0;
            (top, group)
        })
        .collect();
    let content = html! {
        @for (top, group) in placed {
            text x="0" y=(top + 13.0) font-weight="600" { (group.title) }
            text .soft x=(WIDTH) y=(top + 13.0) text-anchor="end" { (group.note) }
            @for (index, bar) in group.bars.iter().enumerate() {
                @let at = top + BAR * index as f64;
                @let long = (bar.value / bar.scale * length).clamp(0.0, length);
                rect x=(LABEL) y=(at + 2.0) width=(round(long)) height=(BAR - 4.0) rx="2"
                    style=(format!("fill:var({})", bar.color)) {}
                text x=(round(LABEL + long + 6.0)) y=(at + 13.0) {
                    (digits(bar.value)) " " tspan .soft { (bar.label) }
                }
            }
        }
    };
    drawing(y, &content)
}

/// Rounds a coordinate to the visible precision.
pub(crate) fn round(value: f64) -> f64 {
    (10.0 * value).round() / 10.0
}

/// Returns a round distance between the marks of an axis from 0 to `most`.
///
/// The axis has at most `marks` marks.
pub(crate) fn step(most: f64, marks: f64) -> f64 {
    let rough = (most / marks).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|&step| step >= rough);
    step.unwrap_or(10.0 * power)
}

/// A line of a line chart.
pub struct Line {
    /// The line's name.
    pub name: String,
    /// The points. Both coordinates are positive.
    pub points: Vec<(f64, f64)>,
    /// The line's colour, one of the style's.
    pub color: &'static str,
}

/// Colours for lines, in order.
pub const COLORS: [&str; 11] =
    ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8", "--c9", "--c10"];

/// The style of pages and drawings.
const LOOK: PageStyle = PageStyle {
    colours: &[
        // Colours of bars, and of verdicts.
        colour("before", "#9aa3ad", "#6e7681"),
        colour("after", "#0f7b6c", "#35b8a4"),
        colour("all", "#d9822b", "#eba25a"),
        colour("good", "#1f7a3d", "#5cc489"),
        colour("bad", "#b3261e", "#ff8a80"),
        // Colours of lines.
        colour("c0", "#6b7280", "#9ca3af"),
        colour("c1", "#0072b2", "#5ab4e6"),
        colour("c2", "#d55e00", "#ff9e66"),
        colour("c3", "#009e73", "#4fd1a5"),
        colour("c4", "#cc79a7", "#e8a5c8"),
        colour("c5", "#b8860b", "#e0b84c"),
        colour("c6", "#111111", "#f5f5f5"),
        colour("c7", "#7b3fb5", "#b58be0"),
        colour("c8", "#6a8f00", "#b7d455"),
        colour("c9", "#784f28", "#c49a6c"),
        colour("c10", "#d94f70", "#f08ba3"),
        // Colours of timeline slices.
        colour("call", "#dfe7f5", "#26344d"),
        colour("fault", "#f3e3d3", "#4a3a2a"),
        colour("send", "#d55e00", "#ff9e66"),
        colour("handler", "#cc79a7", "#e8a5c8"),
        colour("inval", "#0072b2", "#5ab4e6"),
        colour("wait", "#b8860b", "#e0b84c"),
        colour("zero", "#009e73", "#4fd1a5"),
    ],
    style: include_str!("style.css"),
};

/// Builds the key that explains the colours.
pub(crate) fn key<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Markup {
    html! {
        div .key {
            @for (name, color) in entries {
                span { i style=(format!("background:var({color})")) {} (name) }
            }
        }
    }
}

/// The scale of the vertical axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerticalScale {
    /// A logarithmic scale with marks at powers of ten.
    Powers,
    /// A linear scale from zero.
    Evenly,
}

/// A line chart over a horizontal axis of powers of two.
pub struct Chart<'a> {
    /// The title above the lines. It's empty if the page has a title for the chart.
    pub title: &'a str,
    /// The lines.
    pub lines: &'a [Line],
    /// The points that are marked with a ring.
    pub rings: &'a [(f64, f64)],
    /// The label of the horizontal axis.
    pub right: &'a str,
    /// A function that formats a power of two on the horizontal axis.
    pub power: fn(f64) -> String,
    /// The label of the vertical axis.
    pub up: &'a str,
    /// The scale of the vertical axis.
    pub upward: VerticalScale,
}

impl Chart<'_> {
    /// Returns the lowest and highest value, and the values with a line across.
    fn rise(&self) -> (f64, f64, Vec<f64>) {
        let values = || self.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let most = values().fold(f64::MIN_POSITIVE, f64::max);
        match self.upward {
            VerticalScale::Powers => {
                let least = values().fold(f64::MAX, f64::min).log10().floor();
                let most = most.log10().ceil().max(least + 1.0);
                let powers = (least as i32)..=(most as i32);
                (least, most, powers.map(|power| 10f64.powi(power)).collect())
            }
            VerticalScale::Evenly => {
                let step = step(most, 6.0);
                let count = (most / step).ceil() as i32;
                let values = (0..=count).map(|index| f64::from(index) * step);
                (0.0, f64::from(count) * step, values.collect())
            }
        }
    }

    /// Draws the chart.
    pub fn draw(&self) -> Markup {
        let (width, height, left, bottom) = (WIDTH, 420.0, 70.0, 46.0);
        let top = if self.title.is_empty() { 14.0 } else { 40.0 };
        // Leave room for the names of the lines, by the greatest average width of their letters.
        let names = self.lines.iter().map(|line| line.name.chars().count());
        let right = (7.0 * names.max().unwrap_or(0) as f64 + 16.0).clamp(60.0, WIDTH / 2.0);
        let most = ((right - 16.0) / 7.0) as usize;
        let shown = |name: &str| match name.chars().count() > most {
            true => name.chars().take(most - 1).chain(['…']).collect(),
            false => name.to_owned(),
        };
        let across = || {
            let points = self.lines.iter().flat_map(|line| &line.points);
            points.map(|point| point.0.log2())
        };
        let x_least = across().fold(f64::MAX, f64::min).min(64.0).floor();
        let x_most = across().fold(x_least + 1.0, f64::max);
        let (y_least, y_most, marks) = self.rise();
        let x = |value: f64| {
            let share = (value.log2() - x_least) / (x_most - x_least);
            left + share * (width - left - right)
        };
        let y = |value: f64| {
            let value = match self.upward {
                VerticalScale::Powers => value.log10(),
                VerticalScale::Evenly => value,
            };
            let share = (value - y_least) / (y_most - y_least);
            height - bottom - share * (height - bottom - top)
        };
        let doublings = (x_least as i32)..=(x_most as i32);
        let content = html! {
            @if !self.title.is_empty() {
                text x=(left) y="18" font-size="15" font-weight="600" { (self.title) }
            }
            @for mark in marks {
                @let at = round(y(mark));
                line .grid x1=(left) x2=(width - right) y1=(at) y2=(at) {}
                text .soft x=(left - 8.0) y=(at + 4.0) text-anchor="end" { (plain(mark)) }
            }
            @for doubling in doublings {
                @let value = 2f64.powi(doubling);
                @let at = round(x(value));
                line .grid x1=(at) x2=(at) y1=(top) y2=(height - bottom) {}
                text .soft x=(at) y=(height - bottom + 18.0) text-anchor="middle" { ((self.power)(value)) }
            }
            text .soft x=((left + width - right) / 2.0) y=(height - 6.0) text-anchor="middle" { (self.right) }
            text .soft x="14" y=((height - bottom) / 2.0) text-anchor="middle"
                transform=(format!("rotate(-90 14 {})", (height - bottom) / 2.0)) { (self.up) }
            @for line in self.lines {
                @let path: Vec<String> = line.points.iter()
                    .map(|&(a, b)| format!("{:.1},{:.1}", x(a), y(b))).collect();
                polyline points=(path.join(" ")) fill="none" stroke-width="2.2" stroke-linejoin="round"
                    style=(format!("stroke:var({})", line.color)) {}
                @for &(a, b) in &line.points {
                    circle cx=(round(x(a))) cy=(round(y(b))) r="3" style=(format!("fill:var({})", line.color)) {
                        title { (line.name) ": " (digits(b)) " at " ((self.power)(a)) }
                    }
                }
            }
            @for &(a, b) in self.rings {
                circle cx=(round(x(a))) cy=(round(y(b))) r="6" fill="none" stroke-width="2" style="stroke:var(--ink)" {}
            }
            @for (at, line) in spread(self.lines, &y) {
                text x=(width - right + 8.0) y=(round(at + 4.0)) style=(format!("fill:var({})", line.color)) { (shown(&line.name)) }
            }
        };
        drawing(height, &content)
    }

    /// Returns the drawing as an SVG file that contains its own colours.
    pub fn file(&self) -> String {
        let drawn =
            self.draw().0.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
        let style = quell_workloads::pages::style(&LOOK).0;
        let at = drawn.find('>').map_or(0, |end| end + 1);
        let (head, tail) = drawn.split_at(at);
        format!("{head}{style}{tail}")
    }
}

/// Returns the places of the lines' names: beside their last points, but not over each other.
fn spread<'a>(lines: &'a [Line], y: &impl Fn(f64) -> f64) -> Vec<(f64, &'a Line)> {
    let mut placed: Vec<(f64, &Line)> =
        lines.iter().filter_map(|line| Some((y(line.points.last()?.1), line))).collect();
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    for index in 1..placed.len() {
        placed[index].0 = placed[index].0.max(placed[index - 1].0 + 15.0);
    }
    placed
}

fn plain(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        // A multiple of a step isn't as round as it looks.
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

/// Draws bars to the left and right of zero, for changes in percentage points.
pub(crate) fn tornado(rows: &[(String, f64, f64)]) -> Markup {
    let (width, label) = (WIDTH, 330.0);
    let height = 20.0 * rows.len() as f64 + 4.0;
    let most = rows.iter().flat_map(|row| [row.1.abs(), row.2.abs()]).fold(1.0, f64::max);
    let half = (width - label - 160.0) / 2.0;
    let zero = label + 80.0 + half;
    let content = html! {
        line .axis x1=(zero) x2=(zero) y1="0" y2=(height) {}
        @for (index, (name, low, high)) in rows.iter().enumerate() {
            @let at = 20.0 * index as f64;
            text x="0" y=(at + 14.0) { (name) }
            @for (value, color) in [(low, "--c1"), (high, "--c2")] {
                @let long = value.abs() / most * half;
                rect x=(round(if *value < 0.0 { zero - long } else { zero })) y=(at + if color == "--c1" { 3.0 } else { 10.0 })
                    width=(round(long)) height="6" rx="1" style=(format!("fill:var({color})")) {}
            }
            text .soft x=(width) y=(at + 14.0) text-anchor="end" { (format!("{low:+.1} / {high:+.1}")) }
        }
    };
    drawing(height, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(upward: VerticalScale) -> String {
        let lines = [Line {
            name: "S4,asynchronous=no,inline=no".into(),
            points: vec![(4096.0, 12.5), (8192.0, 140.0)],
            color: COLORS[0],
        }];
        let chart = Chart {
            title: "Speed by length",
            lines: &lines,
            rings: &[(8192.0, 140.0)],
            right: "length",
            power: |value| format!("{value} B"),
            up: "GB/s",
            upward,
        };
        chart.file()
    }

    #[test]
    fn marks_are_round_and_few() {
        for most in [1.0, 999.0, 1_500_000.0, 123_456_789.0] {
            let step = step(most, 8.0);
            assert!(step > 0.0 && most / step <= 8.0, "{most}: {step}");
            assert!(most / step > 3.0, "{most}: {step} leaves few marks");
        }
    }

    #[test]
    fn axes_begin_and_end_around_the_values() {
        let even = chart(VerticalScale::Evenly);
        for label in [">0<", ">50<", ">150<", ">4096 B<", ">8192 B<"] {
            assert!(even.contains(label), "{label} in {even}");
        }
        let powers = chart(VerticalScale::Powers);
        for label in [">10<", ">100<", ">1 k<"] {
            assert!(powers.contains(label), "{label} in {powers}");
        }
        assert!(!powers.contains("NaN") && !even.contains("NaN") && even.contains("xmlns"));
    }

    #[test]
    fn titles_units_and_names_of_lines_fit_into_the_drawing() {
        let drawn = chart(VerticalScale::Evenly);
        for text in ["Speed by length", "GB/s", "length"] {
            assert!(drawn.contains(&format!(">{text}<")), "{text} in {drawn}");
        }
        let (before, name) = drawn.split_once(">S4,asynchronous=no,inline=no<").unwrap();
        let (_, x) = before.rsplit_once(" x=\"").unwrap();
        let x: f64 = x.split_once('"').unwrap().0.parse().unwrap();
        assert!(name.ends_with("</svg>"));
        // Letters of 12 pixels are half as wide on average.
        assert!(x + 28.0 * 6.5 <= WIDTH, "the name begins at {x}");
    }
}
