//! Machine files: every figure of a machine with its unit and its source.
//!
//! A file is TOML. Each parameter is written
//!
//! ```toml
//! [interrupt]
//! send = { value = 200, unit = "cycles", source = "where the number comes from" }
//! exit = { value = 40, unit = "ns", assumed = true, source = "why this guess" }
//! ```
//!
//! so that no number stands there without saying where it comes from: `source` names a
//! publication, a measurement or a derivation; `assumed = true` marks a guess, which the
//! sensitivity report then moves by half. A file of one's own may start from a built-in one with
//! `based_on = "milan"`, or from another file with `based_on = "mine.toml"`, and name only what differs.
//!
//! Reading never panics. A wrong file is refused with the file, the line, the key and what was
//! expected there; all mistakes are reported at once.

mod builtin;
mod machine;
mod parameter;
mod parse;
mod set;
mod write;

pub use builtin::BUILT_IN;
pub use machine::{MachineFile, Time, Value};
pub use parameter::{Description, PARAMETERS, Parameter, Unit};
pub use parse::built_in;
pub use quell_workloads::files::{FileError, Mistake};
