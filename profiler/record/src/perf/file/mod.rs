//! Recordings in files: written as events come, read as a [`Source`](crate::perf::Source).
//!
//! A file begins with a line that names it and its version. Blocks follow, each compressed for itself: two numbers of
//! four bytes, little-endian (how many bytes it has compressed, and how many it has then), and records one after the
//! other. Names, frames and stacks are written once, when they are first needed, and have numbers from then on. A
//! recording that was ended well closes with the names of all functions on its stacks, and with twenty-four bytes that
//! say where these begin. A recorder that was killed leaves a file without them: what it holds up to there is
//! read, and names are looked up by the reader, which finds them on the same host.
//!
//! Another version is refused. Not guaranteed: that changes made to a file are noticed. Any bytes are read without a
//! panic, in memory that grows with the file; what is not understood ends the reading with an error that names the
//! place.

mod read;
mod record;
mod write;

pub use read::Recording;
pub use write::{Place, Writer};

/// The first bytes of a file; the last before the line's end is the version.
const MAGIC: &[u8; 18] = b"quell recording 3\n";

/// The last bytes of a file that was closed, behind eight that say where the names of the functions begin.
const CLOSED: &[u8; 16] = b"quell recorded.\n";

/// A block is closed when it has so many bytes.
const BLOCK: usize = 256 << 10;

/// No block has more: a larger one is a mistake.
const MOST_BLOCK: usize = 64 << 20;

/// So many stacks are remembered by writer and reader; then both forget all of them.
const MOST_STACKS: usize = 1 << 16;
