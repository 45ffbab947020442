//! Writes the report as one self-contained page.
//!
//! It has a flame graph with zoom and search, a timeline of each CPU, interrupts between programs, a table of sites
//! with a filter, and the advice. The page contains its data as JSON, and the script beside this file draws them.
//! Without scripts the answer, the advice and the tables still work.

use std::collections::BTreeMap;

use maud::{PreEscaped, html};
use quell_workloads::pages::{PageStyle, colour};
use serde_json::{Value, json};

use super::timeline::{TimelineSlice, unrecorded};
use crate::figures::{count, percent, percents, time, times};
use crate::line::parted;
use crate::report::{Report, SiteRow};

const LOOK: PageStyle = PageStyle {
    colours: &[
        colour("taken", "#dc5a6b", "#e0637a"),
        colour("other", "#8d99ae", "#7d89a1"),
        colour("wait", "#edae49", "#c98f2d"),
        colour("kernel", "#9fb8d9", "#3f5f8a"),
        colour("user", "#f0a868", "#8f5118"),
        colour("found", "#3fae6a", "#2f8a50"),
    ],
    style: include_str!("page.css"),
};
const SCRIPT: &str = include_str!("page.js");

/// The largest number of sites, and of senders and targets, on the page.
const SITES: usize = 200;
const SIDE: usize = 16;

/// The result of replaying the recording, as text. Only the crate that replays interprets it.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The replayed calls, and how they were replayed.
    pub before: Vec<String>,
    /// The headings of the columns. The first and the last column contain text, the others contain figures.
    pub headings: Vec<String>,
    /// A row for each change.
    pub rows: Vec<Vec<String>>,
    /// Remarks below the table.
    pub after: Vec<String>,
}

/// Writes the page.
pub fn page(
    report: &Report,
    timeline: &[TimelineSlice],
    replayed: Option<&Findings>,
    title: &str,
) -> String {
    let data = json!({
        "flame": flame(report),
        "timeline": timeline,
        "cpus": report.cpus,
    });
    // Text from a recording must not end the script element.
    let data = data.to_string().replace('<', "\\u003c");
    let content = html! {
        h1 { (title) }
        (answer(report))
        (advice(report))
        @if let Some(replayed) = replayed { (changes(replayed)) }
        h2 { "Where interrupts come from" }
        p .bar {
            label { "Width: " select #by {
                option value="0" { "interrupts sent" }
                option value="1" { "time taken from targets" }
                option value="2" { "time waited by initiators" }
            } }
            label { "Find: " input #search type="search" placeholder="function"; }
            button #whole type="button" { "Show all" }
            span #found .soft {}
        }
        div #flame .box role="img" aria-label="stacks that caused interrupts" {}
        p #detail .soft { "Click a frame to zoom in." }
        h2 { "CPUs over time" }
        (timeline_part(timeline))
        h2 { "Senders and targets" }
        (matrix(report))
        h2 { "Call sites" }
        p .bar { label { "Filter: " input #filter type="search" placeholder="program, call or function"; } span #shown .soft {} }
        (sites(report))
        (others(report))
        @if !report.notes.is_empty() {
            h2 { "Notes" }
            ul #notes { @for note in &report.notes { li { (note) } } }
        }
        p .soft { "Times are lower and upper bounds, and include the cost of recording." }
    };
    let scripts = html! {
        script type="application/json" #data { (PreEscaped(data)) }
        script { (PreEscaped(SCRIPT)) }
    };
    quell_workloads::pages::page(title, &LOOK, &content, &scripts).into_string()
}

/// Writes the answer: an item for each label, with all its lines.
fn answer(report: &Report) -> maud::Markup {
    let mut items: Vec<(&str, Vec<&str>)> = Vec::new();
    for (label, said) in report.answer.iter().map(|line| parted(line)) {
        match items.last_mut() {
            Some((_, all)) if label.is_empty() => all.push(said),
            _ => items.push((label, vec![said])),
        }
    }
    html! {
        ul #answer { @for (label, all) in &items {
            li { strong { (label) } @for said in all { " " (said) br; } }
        } }
    }
}

fn advice(report: &Report) -> maud::Markup {
    html! {
        h2 { "Advice" }
        @if report.advice.is_empty() {
            p { "No change saves more than the noise of this recording." }
        } @else {
            div .wide { table #advice {
                thead { tr { th { "change" } th .n { "interrupts now" } th .n { "after" } th .n { "CPU time saved" } th { "next limit" } } }
                tbody { @for advice in report.advice.iter().take(12) {
                    tr {
                        td { (advice.text) }
                        td .n { (count(advice.interrupts)) }
                        td .n { (count(advice.left.0)) " to " (count(advice.left.1)) }
                        td .n { @if let Some(share) = advice.share { (percents(share)) } }
                        td { @if let Some(next) = &advice.next { (next) } }
                    }
                } }
            } }
        }
    }
}

fn changes(replayed: &Findings) -> maud::Markup {
    html! {
        h2 { "Predicted effect of changes" }
        @for line in &replayed.before { p { (line) } }
        @if !replayed.rows.is_empty() {
            div .wide { table #changes {
                thead { tr { @for (at, heading) in replayed.headings.iter().enumerate() {
                    @if at == 0 { th { (heading) } } @else { th .n { (heading) } }
                } } }
                tbody { @for row in &replayed.rows {
                    tr { @for (at, cell) in row.iter().enumerate() {
                        @if at == 0 { td { (cell) } } @else { td .n { (cell) } }
                    } }
                } }
            } }
        }
        @for line in &replayed.after { p { (line) } }
    }
}

fn timeline_part(timeline: &[TimelineSlice]) -> maud::Markup {
    html! {
        @if timeline.is_empty() {
            p { "The recording has no events for the start and end of interrupts." }
        } @else {
            p .bar {
                label { "Zoom: " input #zoom type="range" min="0" max="1000" value="0"; }
                label { "From: " input #from type="range" min="0" max="1000" value="0"; }
                span #span .soft {}
            }
            p .key {
                span .taken { "shootdown taken" } " " span .other { "other function call" } " "
                span .wait { "initiator waits" } " " span .gap { "not recorded" }
            }
            @let unrecorded = unrecorded(timeline);
            @if unrecorded > 0.0 {
                p #recorded { (percent(1.0 - unrecorded)) " of this time was recorded. Hatched parts were not." }
            }
            div .wide { canvas #cpus height="40" role="img" aria-label="shootdowns and waits of each CPU over time" {} }
            p #slice .soft {}
        }
    }
}

/// Writes the matrix with senders as rows and targets as columns. All but the largest are added up.
fn matrix(report: &Report) -> maud::Markup {
    let mut side: BTreeMap<&str, u64> = BTreeMap::new();
    for (from, to, count) in &report.matrix {
        *side.entry(from).or_default() += count;
        *side.entry(to).or_default() += count;
    }
    let mut names: Vec<&str> = side.keys().copied().collect();
    names.sort_by_key(|name| std::cmp::Reverse(side[name]));
    let rest = names.len() > SIDE;
    names.truncate(SIDE);
    let place = |name: &str| names.iter().position(|known| *known == name).unwrap_or(names.len());
    let size = names.len() + usize::from(rest);
    let mut cells = vec![vec![0u64; size]; size];
    for (from, to, count) in &report.matrix {
        cells[place(from)][place(to)] += count;
    }
    let most = cells.iter().flatten().copied().max().unwrap_or(0).max(1);
    let name = |at: usize| names.get(at).copied().unwrap_or("others");
    html! {
        @if size == 0 {
            p { "The senders of the interrupts were not recorded." }
        } @else {
            div .wide { table #matrix {
                thead { tr { th { "sender \\ target" } @for at in 0..size { th .n { (name(at)) } } } }
                tbody { @for (at, row) in cells.iter().enumerate() {
                    tr { th { (name(at)) } @for cell in row {
                        td .n style=(format!("background:color-mix(in srgb, var(--taken) {:.0}%, transparent)", 70.0 * *cell as f64 / most as f64)) {
                            @if *cell > 0 { (count(*cell)) }
                        }
                    } }
                } }
            } }
        }
    }
}

fn sites(report: &Report) -> maud::Markup {
    let each = |site: &SiteRow| 1.0 / site.remote.max(1) as f64;
    html! {
        div .wide { table #sites {
            thead { tr {
                th { "program" } th { "call" } th { "site, innermost first" } th .n { "flushes" } th .n { "interrupts" } th .n { "pages" }
                th .n { "wait per flush" } th .n { "lost by targets" } th .n { "refilled" } th .n { "share of CPU time" }
            } }
            tbody { @for site in report.sites.iter().take(SITES) {
                tr {
                    td { (site.program_and_thread()) }
                    td .call { (site.call) }
                    td .stack { (site.frames.join(" ‹ ")) }
                    td .n { (count(site.requests)) }
                    td .n { (count(site.interrupts)) }
                    td .n { (count(site.pages)) }
                    td .n { @if site.initiator.most > 0.0 { (times(site.initiator.times(each(site)))) } }
                    td .n { @if site.stolen.most > 0.0 { (times(site.stolen)) } }
                    td .n { @if site.refaults > 0 { (count(site.refaults)) } }
                    td .n { @if let Some(share) = site.share { (percents(share)) } }
                }
            } }
        } }
        @if report.sites.len() > SITES {
            p .soft { "The " (SITES) " of " (count(report.sites.len() as u64)) " sites with most interrupts." }
        }
    }
}

fn others(report: &Report) -> maud::Markup {
    html! {
        @if !report.others.is_empty() {
            h2 { "Other interrupts" }
            div .wide { table #others {
                thead { tr { th { "cause" } th { "functions" } th .n { "count" } th .n { "time" } th .n { "callers' wait" } } }
                tbody { @for other in &report.others {
                    tr {
                        td { (other.cause) }
                        td { (other.functions.iter().take(4).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")) }
                        td .n { (count(other.count)) }
                        td .n { (other.ns.map_or_else(|| "–".into(), time)) }
                        td .n { (other.caller_ns.map_or_else(|| "–".into(), time)) }
                    }
                } }
            } }
        }
    }
}

/// Returns the stacks as a tree. Each node has its name, its three weights, and its callees.
fn flame(report: &Report) -> Value {
    #[derive(Default)]
    struct Node<'a> {
        weights: [u64; 3],
        below: BTreeMap<&'a str, Node<'a>>,
    }
    impl Node<'_> {
        fn json(&self, name: &str) -> Value {
            let below: Vec<Value> = self.below.iter().map(|(name, node)| node.json(name)).collect();
            json!([name, self.weights, below])
        }
    }
    /// Deeper than any recorded stack. A damaged recording may contain deeper ones.
    const DEEPEST: usize = 200;
    let mut root = Node::default();
    for (stack, weights) in &report.folded {
        if *weights == [0; 3] {
            continue;
        }
        let add = |node: &mut Node<'_>| {
            for (sum, weight) in node.weights.iter_mut().zip(weights) {
                *sum += weight;
            }
        };
        add(&mut root);
        let mut node = &mut root;
        for frame in stack.split(';').take(DEEPEST) {
            node = node.below.entry(frame).or_default();
            add(node);
        }
    }
    root.json("all")
}
