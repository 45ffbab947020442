//! What TLB shootdowns cost the programs that people run: from a recording to an answer.
//!
//! A recording is a stream of events, live or from a file, from any [`crate::perf::Source`]; [`import`] is a source for
//! the text of other recorders. [`attribute`] adds the events up: which CPU asked which others to flush, from which
//! place in which program, how long the initiator waited, and how long the targets were kept from their work. The
//! result is a [`report::Report`], with the advice of [`advise`]; [`show`] writes it in other formats.
//!
//! [`trial`] says whether a change that was tried helped.
//!
//! On Linux `events` lists what is recorded live. [`top`] does the same second by second, while it happens;
//! [`workload`] makes a recording a workload that runs again.
//!
//! Events are not kept after they were added up: memory grows with the number of different places and stacks, not with
//! the length of the recording.

pub mod advise;
mod answer;
pub mod attribute;
mod event;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
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
pub mod top;
pub mod trial;
mod understand;
pub mod workload;

use attribute::{Attribution, Observer};
use perf::{Source, SourceError};

/// Reads a recording to its end and adds it up. `progress` is told the share that was read, if that is known, once in a
/// while; what it returns says whether to go on.
///
/// # Errors
/// If the recording cannot be read on.
pub fn analyse(
    source: &mut dyn Source,
    observer: &mut dyn Observer,
    progress: &mut dyn FnMut(Option<f64>, u64) -> bool,
) -> Result<Attribution, SourceError> {
    /// How many items between two looks.
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
