//! Builds Linux 6.12, stock and with quell's engine in it, from Debian's package of the source.
//!
//! [`tree`] gets the source and makes a second tree of it, with the edits (`kernels/linux/edits.toml`) and files that lie there;
//! [`make`] configures and compiles. [`soak`] runs the programs of others on what was built, and [`programs`] packs
//! these. `kernels/linux/README.md` says what is changed in Linux and why that is safe. Nothing of Linux is part
//! of this repository.

pub mod make;
pub mod programs;
pub mod soak;
pub mod tree;
