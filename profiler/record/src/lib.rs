//! Analyses recordings of TLB shootdowns: their cost for each program, and changes that help.
//!
//! A recording is a stream of events from a [`crate::perf::Source`]: the live kernel, or a file. [`import`] is a source
//! for the text output of other recorders. [`attribute`] adds the events up. For each shootdown it finds the CPUs
//! involved, the place in the program that caused it, the time that the initiator waited, and the time that the targets
//! lost. The result is a [`report::Report`] with the advice of [`advise`]. [`show`] writes it in other formats.
//!
//! * [`trial`] measures whether a change helped.
//! * `events` (Linux only) lists the events of a live recording.
//! * `top` (Linux only) computes the costs second by second, while they arise.
//! * [`workload`] turns a recording into a workload that we can run again.
//!
//! We drop each event once it's added up. So memory grows with the number of different places and stacks, not with the
//! length of the recording.

pub mod advise;
mod answer;
pub mod attribute;
mod event;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod events;
pub mod figures;
pub mod import;
pub mod line;
mod notes;
pub mod perf;
pub mod report;
mod scales;
pub mod show;
mod stack;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod top;
pub mod trial;
mod understand;
pub mod workload;

use attribute::{Attribution, Observer};
use perf::{Source, SourceError};

/// Reads a recording to its end and adds it up.
///
/// `progress` is called once every 16 384 items. It receives the share that has been read, if that's known, and the
/// number of samples. If it returns `false`, reading stops and the result covers the items so far.
///
/// # Errors
/// If the recording can't be read any further.
pub fn analyse(
    source: &mut dyn Source,
    observer: &mut dyn Observer,
    progress: &mut dyn FnMut(Option<f64>, u64) -> bool,
) -> Result<Attribution, SourceError> {
    /// The number of items between two calls of `progress`.
    const LOOK: u64 = 1 << 14;
    let mut all = Attribution::new();
    let mut items = 0;
    while let Some(item) = source.next()? {
        all.item(item, observer);
        items += 1;
        if items % LOOK == 0 && !progress(source.progress(), all.samples) {
            break;
        }
    }
    Ok(all)
}
