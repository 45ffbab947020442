//! Where what is recorded goes: into a file, or to code that looks at it while it happens.

use std::io::{self, Write};
use std::time::Duration;

use crate::perf::file::{Place, Writer};
use crate::perf::sample::{Item, Sample};
use crate::perf::symbols::Symbols;

/// How far a recording has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since when events are recorded.
    pub elapsed: Duration,
    /// For how long of that they were recorded, and not only counted.
    pub recorded: Duration,
    /// For how long flushes were added up in the kernel.
    pub summed: Duration,
    /// How many are in the recording.
    pub kept: u64,
    /// How many were lost.
    pub lost: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// What a recorder hands its items to, in the order of time.
///
/// Every error ends the recording.
pub trait Sink {
    /// What is left when the recording has ended.
    type Output;

    /// Takes an item that is no sample.
    ///
    /// # Errors
    /// The sink can take no more; so it is with all errors here.
    fn item(&mut self, item: &Item) -> io::Result<()>;

    /// Takes a sample, with the places of its stack, innermost first; its own stack is empty. To look names up takes
    /// time that counts as the recording's: a sink that can leave them for later does.
    fn sample(
        &mut self,
        sample: &Sample,
        places: &[Place],
        symbols: &mut Symbols,
    ) -> io::Result<()>;

    /// A second is over: what came so far should be where it is safe, or seen.
    fn second(&mut self, progress: Progress) -> io::Result<()>;

    /// How many bytes were written so far; 0 for a sink that writes none.
    fn written(&self) -> u64;

    /// The recording has ended, and nothing more comes.
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

    fn written(&self) -> u64 {
        Writer::written(self)
    }

    fn finish(self, symbols: &mut Symbols) -> io::Result<W> {
        Writer::finish(self, symbols)
    }
}
