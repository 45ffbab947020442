//! Writes recordings to files as events arrive, and reads them as a [`Source`](crate::perf::Source).
//!
//! A file begins with a line that contains the format's name and version. Blocks follow, each compressed separately. A
//! block has two little-endian numbers of four bytes, its compressed and its uncompressed size in bytes, and then the
//! compressed records. The names, frames and stacks of events are written once, before their first use, and are
//! referred to by number afterwards. Other items are written as they are. At the end, a closed file has the names of
//! all functions on its stacks, and 24 bytes with the offset of these names. A recorder that was killed leaves a file
//! without this end. We read such a file up to its last complete block, and look the names up while reading, which
//! works on the same host.
//!
//! Files of another version are refused. We don't detect later changes to a file. No content causes a panic, and memory
//! grows only with the file's size. A record that can't be parsed ends the reading with an error that names its block.

mod read;
mod record;
mod write;

pub use read::Recording;
pub use write::{Place, Writer};

/// The first bytes of a file. The last one before the newline is the version.
const MAGIC: &[u8; 18] = b"quell recording 6\n";

/// The last bytes of a closed file, after the eight-byte offset of the functions' names.
const CLOSED: &[u8; 16] = b"quell recorded.\n";

/// The size in bytes at which a block is closed.
const BLOCK: usize = 256 << 10;

/// The largest size of a valid block in bytes.
const MOST_BLOCK: usize = 64 << 20;

/// The number of different stacks that writer and reader remember. At the limit both forget all of them.
const MOST_STACKS: usize = 1 << 16;
