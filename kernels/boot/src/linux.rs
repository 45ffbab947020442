//! Builds Linux 6.12 from Debian's source package, stock and with quell's engine.
//!
//! [`tree`] fetches the source, and makes a second tree with our files and the edits of `kernels/linux/edits.toml`.
//! [`make`] configures and compiles. [`programs`] packs third-party programs, and [`soak`] runs them on the kernels.
//! [`series`] makes patches in C. `kernels/linux/README.md` describes our changes and why they're safe. Nothing of
//! Linux is part of this repository.

pub mod make;
pub mod programs;
pub mod series;
pub mod soak;
pub mod tree;
