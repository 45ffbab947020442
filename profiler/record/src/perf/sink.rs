//! Receives a recorder's items: a file that keeps them, or code that evaluates them live.

use std::io::{self, Write};
use std::time::Duration;

use crate::perf::file::{Place, Writer};
use crate::perf::sample::{Item, Sample};
use crate::perf::symbols::Symbols;

/// The progress of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The time since the recording began.
    pub elapsed: Duration,
    /// The part of it in which the kernel summed flushes.
    pub summed: Duration,
    /// Events in the recording.
    pub kept: u64,
    /// Lost events.
    pub lost: u64,
}

/// Receives a recorder's items in the order of time.
///
/// Every error ends the recording.
pub trait Sink {
    /// The result at the end of the recording.
    type Output;

    /// Takes an item other than a sample.
    ///
    /// # Errors
    /// If the sink can take no more. The same holds for the other methods.
    fn item(&mut self, item: &Item) -> io::Result<()>;

    /// Takes a sample, with the places of its stack innermost first. The sample's own stack is empty.
    ///
    /// Looking up names takes time that counts as the recording's overhead, so a sink should do it later if it can.
    fn sample(
        &mut self,
        sample: &Sample,
        places: &[Place],
        symbols: &mut Symbols,
    ) -> io::Result<()>;

    /// Saves or shows all items so far. The recorder calls this once a second.
    fn second(&mut self, progress: Progress) -> io::Result<()>;

    /// Ends the recording.
    fn finish(self, symbols: &mut Symbols) -> io::Result<Self::Output>;
}

impl<W: Write> Sink for Writer<W> {
    type Output = W;

    fn item(&mut self, item: &Item) -> io::Result<()> {
        Writer::item(self, item)
    }

    fn sample(&mut self, sample: &Sample, places: &[Place], _: &mut Symbols) -> io::Result<()> {
        Writer::sample(self, sample, places)
    }

    fn second(&mut self, _: Progress) -> io::Result<()> {
        self.flush()
    }

    fn finish(self, symbols: &mut Symbols) -> io::Result<W> {
        Writer::finish(self, symbols)
    }
}
