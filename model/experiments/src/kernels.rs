//! Finds kernel files by name or path.

use quell_clock::KernelFile;
use quell_clock::file::{KERNELS, built_in_kernel};

use crate::machines::FileKind;

/// The kernel for comparisons with a published Linux without its own kernel file.
pub const LINUX: &str = "linux-6.18";

/// Finds a built-in kernel, or reads a kernel file if the text is a path.
///
/// # Errors
/// If there is no such kernel, or if the file can't be read or is invalid. The error lists every mistake with line and
/// key.
pub fn find(text: &str) -> Result<KernelFile, String> {
    let kernels = FileKind {
        name: "kernel",
        built_in: built_in_kernel,
        all: KERNELS,
        parse: |path, text, base| KernelFile::parse_on(path, text, base),
    };
    kernels.find(text)
}

/// Returns the names of the built-in kernels.
pub fn names() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().map(|(name, _)| *name)
}
