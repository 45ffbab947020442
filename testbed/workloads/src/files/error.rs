//! Mistakes in a file, as printed.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// One mistake in a file, or in a value that was set as text.
///
/// Shown as `key: message`; [`FileError`] puts the file and the line before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The line, from 1; 0 if a key is missing or the value did not come from a file.
    pub line: usize,
    /// The key, with its section: `section.key`; empty if the mistake is not at a key.
    pub key: String,
    /// The mistake and the expected value.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl core::error::Error for Mistake {}

/// The reason why a file was refused.
///
/// Shown as one line for each mistake, `path:line: key: message`, like a compiler's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// The file, as the caller named it.
    pub path: String,
    /// The mistakes in the order of their lines, those without a line last; never empty if it comes from
    /// [`Reader::finish`](super::Reader::finish).
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            f.write_str(&self.path)?;
            if mistake.line > 0 {
                write!(f, ":{}", mistake.line)?;
            }
            write!(f, ": {mistake}")?;
        }
        Ok(())
    }
}

impl core::error::Error for FileError {}
