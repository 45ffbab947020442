//! Draws one traced shootdown, CPU by CPU.

use maud::{Markup, html};
use quell_clock::trace::{Mark, TraceEvent};

use crate::charts::{WIDTH, drawing, round, step};

/// Returns a slice's colour, its place in the row and its name.
fn looks(mark: Mark) -> Option<(&'static str, f64, &'static str)> {
    Some(match mark {
        Mark::Call(_) => ("--call", 0.0, "system call"),
        Mark::Fault(_) => ("--fault", 0.0, "page fault"),
        Mark::Handler => ("--handler", 0.0, "interrupt handler"),
        Mark::Send(_) => ("--send", 1.0, "sends interrupts"),
        Mark::Pages(..) | Mark::Tag(_) | Mark::All => ("--inval", 1.0, "invalidates its TLB"),
        Mark::Broadcast(_) => ("--send", 1.0, "broadcasts"),
        Mark::Completion(_) => ("--wait", 1.0, "waits for broadcasts"),
        Mark::Zero(_) => ("--zero", 1.0, "zeroes a page"),
        Mark::Arrives(_) | Mark::Root(..) | Mark::Halted | Mark::Copy(_) | Mark::Violation => {
            return None;
        }
    })
}

/// The colour key of all timelines.
pub const KEY: [(&str, &str); 7] = [
    ("system call", "--call"),
    ("page fault", "--fault"),
    ("interrupt handler", "--handler"),
    ("sends interrupts or broadcasts", "--send"),
    ("invalidates its TLB", "--inval"),
    ("waits for broadcasts", "--wait"),
    ("zeroes a page", "--zero"),
];

/// The last complete system call with this name on CPU 0. It has all events from its start until all other CPUs have
/// finished with it. Times are in picoseconds.
pub struct Episode {
    /// The start of the call.
    pub start: u64,
    /// The return of the call.
    pub returned: u64,
    /// The end on the last CPU.
    pub end: u64,
    pub events: Vec<TraceEvent>,
}

impl Episode {
    /// Finds it; `None` if the trace contains no such call.
    pub fn find(events: &[TraceEvent], call: &'static str) -> Option<Episode> {
        let found = events
            .iter()
            .filter(|event| event.cpu == 0 && event.mark == Mark::Call(call))
            .nth_back(1)
            .or_else(|| {
                events.iter().rfind(|event| event.cpu == 0 && event.mark == Mark::Call(call))
            })?;
        // Handlers that began during the call may end after it.
        let inside = |event: &&TraceEvent| event.start >= found.start && event.start <= found.end;
        let events: Vec<TraceEvent> = events.iter().filter(inside).copied().collect();
        let end = events.iter().map(|event| event.end).max()?;
        Some(Episode { start: found.start, returned: found.end, end, events })
    }

    /// Draws it on an axis of `span` picoseconds, so that several can be compared.
    pub fn draw(&self, cpus: usize, span: u64) -> Markup {
        let (width, left, row) = (WIDTH, 60.0, 26.0);
        let height = row * cpus as f64 + 24.0;
        let x = |time: u64| {
            let share = time.saturating_sub(self.start) as f64 / span.max(1) as f64;
            left + share * (width - left - 10.0)
        };
        let step = step((span / 1000) as f64, 8.0);
        let drawn = |level: f64| {
            self.events.iter().filter_map(move |event| {
                looks(event.mark).filter(|look| look.1 == level).map(|look| (event, look))
            })
        };
        let content = html! {
            @for tick in 0..=((span / 1000) as f64 / step) as u64 {
                @let nanoseconds = tick as f64 * step;
                @let at = x(self.start + (nanoseconds * 1e3) as u64);
                line .grid x1=(round(at)) x2=(round(at)) y1="0" y2=(row * cpus as f64) {}
                text .soft x=(round(at)) y=(height - 6.0) text-anchor="middle" {
                    (format!("{nanoseconds} ns"))
                }
            }
            @for cpu in 0..cpus {
                text .soft x="0" y=(row * cpu as f64 + 17.0) { "CPU " (cpu) }
            }
            @for (event, (color, level, name)) in drawn(0.0).chain(drawn(1.0)) {
                @if event.cpu < cpus {
                    rect x=(round(x(event.start))) y=(row * event.cpu as f64 + 4.0 + 4.0 * level)
                        width=(round((x(event.end) - x(event.start)).max(1.5))) height=(18.0 - 8.0 * level) rx="2"
                        style=(format!("fill:var({color})")) {
                        title { (name) ", " ((event.end - event.start) / 1000) " ns" }
                    }
                }
            }
            line .axis x1=(round(x(self.returned))) x2=(round(x(self.returned))) y1="0" y2=(row * cpus as f64)
                stroke-dasharray="4 3" {}
        };
        drawing(height, &content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(cpu: usize, start: u64, end: u64, mark: Mark) -> TraceEvent {
        TraceEvent { cpu, start, end, mark }
    }

    #[test]
    fn an_episode_holds_what_began_during_the_call() {
        let events = [
            event(0, 0, 100, Mark::Call("discard")),
            event(1, 90, 300, Mark::Handler),
            event(0, 400, 500, Mark::Call("discard")),
            event(1, 420, 560, Mark::Handler),
            event(1, 600, 700, Mark::Handler),
            event(0, 800, 900, Mark::Call("discard")),
        ];
        let episode = Episode::find(&events, "discard").unwrap();
        assert_eq!((episode.start, episode.returned, episode.end), (400, 500, 560));
        assert_eq!(episode.events.len(), 2);
        assert!(Episode::find(&events, "unmap").is_none());
    }
}
