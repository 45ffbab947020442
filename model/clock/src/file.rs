//! Reads machine files: every figure of a machine with its unit and source.
//!
//! A file is TOML. Each parameter is written
//!
//! ```toml
//! [interrupt]
//! send = { value = 200, unit = "cycles", source = "where the number comes from" }
//! exit = { value = 40, unit = "ns", assumed = true, source = "why this guess" }
//! ```
//!
//! Every number needs a `source`: a publication, a measurement or a derivation. `assumed = true` marks a guess, which
//! the sensitivity report varies by half. With `based_on = "milan"` (a built-in file) or `based_on = "mine.toml"`, a
//! file names only the differences.
//!
//! The sections `kernel` and `lock` are costs of the kernel's own code. They come from a kernel file, which has only
//! these; a machine names its kernel by `runs = "linux-5.1"`. Values in these sections of a machine file itself apply
//! with every kernel.
//!
//! Reading never panics. All mistakes are reported at once, each with file, line, key and the expected value.

mod builtin;
mod machine;
mod parameter;
mod parse;
mod set;
mod write;

pub use builtin::{BUILT_IN, KERNELS};
pub use machine::{KernelFile, MachineFile, Time, Value};
pub use parameter::{Description, PARAMETERS, Parameter, Unit};
pub use parse::{DEFAULT_KERNEL, built_in, built_in_kernel, no_kernel};
pub use quell_workloads::files::{FileError, Mistake};
