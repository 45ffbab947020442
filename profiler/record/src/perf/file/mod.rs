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
mod write;

use serde::{Deserialize, Serialize};

use crate::perf::sample::Item;
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

/// One record of a file.
///
/// The order of the variants is part of the format. A new variant can be added at the end. Any other change needs a new
/// version.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The first record: the identifier of the kernel's boot.
    Boot(String),
    /// The next name.
    Name(String),
    /// The next frame.
    Frame(FrameRecord),
    /// The next stack: the numbers of its frames, innermost first.
    Stack(Vec<u32>),
    /// Forgets all stacks. Their numbers start again at 0.
    Forget,
    /// The next kind of event: its name and its fields.
    Event(u32, Vec<u32>),
    Sample(SampleRecord),
    /// Any other item.
    Item(Item),
    /// The last records: the functions of frames, by the frames' numbers.
    Functions(Vec<(u32, String)>),
}

/// A position in code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct FrameRecord {
    address: u64,
    kernel: bool,
    /// Whether it's a return address, so that the call is before it.
    call: bool,
    /// The number of the file's name, from 1. 0 if there is no file.
    module: u32,
    /// The offset in the file.
    offset: u64,
    /// The process whose code this is. For code in a file, any process that has the file mapped.
    pid: u32,
}

/// An event.
#[derive(Debug, Serialize, Deserialize)]
struct SampleRecord {
    event: u32,
    /// Nanoseconds since the previous sample.
    later_ns: i64,
    cpu: u32,
    pid: u32,
    tid: u32,
    comm: u32,
    /// The number of the stack, from 1. 0 if there is none.
    stack: u32,
    values: Vec<Datum>,
}

/// The value of a field.
#[derive(Debug, Serialize, Deserialize)]
enum Datum {
    Absent,
    Signed(i64),
    Unsigned(u64),
    Text(u32),
}

/// Returns the identifier of the kernel's boot. Empty if it can't be read.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
