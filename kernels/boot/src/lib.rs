//! Builds and boots quell's kernel on the MMU of an emulator, and compares it with a stock Linux.
//!
//! Each boot has three steps: [`prepare`] builds the bare-metal kernel with an installed toolchain ([`toolchain`]), a
//! command starts it in QEMU ([`qemu`]) or Bochs ([`bochs`]), and [`follow::run`] follows its events. [`edits`]
//! changes third-party sources; [`linux`] and [`asterinas`] put the engine into those kernels. [`versus`] compares
//! quell's kernel and Linux. [`hunt`] searches any x86-64 or AArch64 kernel for missing flushes.

/// Writes a line to standard error if possible. A closed standard error must not end the command.
macro_rules! remark {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let line = format!($($text)*) + "\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
    }};
}

mod arch;
pub mod asterinas;
#[allow(dead_code)] // The kernel's parser of the host's text.
mod attached;
pub mod bochs;
pub mod edits;
mod ending;
pub mod files;
pub mod follow;
pub mod hunt;
mod images;
pub mod linux;
mod options;
mod patience;
pub mod qemu;
pub mod refused;
pub mod toolchain;
mod usage;
pub mod versus;

pub use arch::Arch;
pub use ending::end_requested;
pub use images::{Images, prepare};
pub use options::{NAMES, OptionError, Options};
pub use usage::UsageError;
