//! Looks up the wanted events and their tracepoints in this kernel.
//!
//! Some events need no tracepoint of their own: [`CallEnds`] of system calls share two. We skip events that this kernel
//! lacks, and list them. If the kernel refuses an event's filter, we record all of the event or nothing, as requested.

use std::ffi::CString;
use std::io;

use super::frequent::{self, CallEnds};
use super::options::{CountMode, EventRequest, Filter, RecordError};
use super::records::OpenEvent;
use super::rings::{self, Point, PointEvents};
use crate::perf::sample::{Host, NameTable};
use crate::perf::tracefs::Tracefs;

/// Events and tracepoints to open.
pub(super) struct Plan {
    /// The events, as the sink sees them.
    pub(super) events: Vec<OpenEvent>,
    /// The tracepoints, in the order in which they are opened and closed.
    pub(super) points: Vec<Point>,
    /// Notes on filters that the kernel refused.
    pub(super) notes: Vec<String>,
    /// The numbers of the two tracepoints that all system calls share. `None` if this kernel lacks one, or refuses
    /// filters for it.
    all_calls: Option<[u64; 2]>,
}

impl Plan {
    /// Looks up these events. Lists those that exist in `host`.
    pub(super) fn of(
        wanted: &[EventRequest],
        tracefs: &Tracefs,
        names: &mut NameTable,
        host: &mut Host,
    ) -> Result<Self, RecordError> {
        let mut asked = Self {
            events: Vec::new(),
            points: Vec::new(),
            notes: Vec::new(),
            all_calls: all_calls(tracefs, names),
        };
        let mut ends = CallEnds::default();
        for wanted in wanted {
            let added = asked.add(wanted, &mut ends, tracefs, names, host);
            added.map_err(|error| RecordError::Event(wanted.event.clone(), error))?;
        }
        if asked.events.is_empty() && !wanted.is_empty() {
            let what = format!("this kernel has none of these events: {}", host.missing.join(", "));
            return Err(RecordError::Missing(what));
        }
        if let Some(all) = asked.all_calls {
            asked.points.splice(0..0, ends.points(all));
        }
        Ok(asked)
    }

    /// Adds an event, if this kernel has it.
    fn add(
        &mut self,
        wanted: &EventRequest,
        ends: &mut CallEnds,
        tracefs: &Tracefs,
        names: &mut NameTable,
        host: &mut Host,
    ) -> io::Result<()> {
        let Some(format) = tracefs.format(&wanted.event, names)? else {
            host.missing.push(wanted.event.clone());
            return Ok(());
        };
        let filter = match &wanted.filter {
            None => None,
            Some(filter) => {
                let text = CString::new(filter.text.clone())?;
                let accepted = rings::accepts(format.id, &text)?;
                if !accepted {
                    self.note(without_filter(wanted, filter));
                    if !filter.or_all {
                        return Ok(());
                    }
                }
                accepted.then_some(text)
            }
        };
        let counted = match wanted.counted {
            CountMode::No => false,
            CountMode::Yes => true,
            CountMode::Without(other) => !matches!(tracefs.format(other, names), Ok(Some(_))),
        };
        let index = self.events.len();
        if self.all_calls.is_none() || !ends.take(wanted, index) {
            self.points.push(Point {
                of: PointEvents::Event(index),
                id: format.id,
                stack: wanted.stack,
                counted,
                filter,
                everywhere: wanted.everywhere,
                frequent: rings::is_frequent(&wanted.event),
            });
        }
        if !host.events.contains(&wanted.event) {
            host.events.push(wanted.event.clone());
        }
        self.events.push(OpenEvent {
            name: names.get(&wanted.event),
            everywhere: wanted.everywhere,
            format,
            seen: 0,
            kept: 0,
        });
        Ok(())
    }

    /// Adds a note once.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Returns the numbers of the shared tracepoints. `None` if this kernel lacks one, or refuses filters for it.
fn all_calls(tracefs: &Tracefs, names: &mut NameTable) -> Option<[u64; 2]> {
    let mut id = |event| {
        let format = tracefs.format(event, names).ok()??;
        rings::accepts(format.id, c"id == 0").ok()?.then_some(format.id)
    };
    let [enter, exit] = frequent::ALL;
    Some([id(enter)?, id(exit)?])
}

/// Explains in one line how an event is recorded without its filter.
fn without_filter(wanted: &EventRequest, asked: &Filter) -> String {
    let EventRequest { event, .. } = wanted;
    let done = match asked.or_all {
        true => "all of its events are recorded, which costs more",
        false => "it is not recorded, and other events take its place",
    };
    format!("This kernel refuses the filter \"{}\" of {event}: {done}.", asked.text)
}
