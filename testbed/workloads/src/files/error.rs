//! Mistakes in a file, as printed.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// One mistake in a file, or in a value that was set as text.
///
/// It's printed as `key: message`; [`FileError`] puts the file and the line before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The line, from 1. It's 0 if a key is missing or the value did not come from a file.
    pub line: usize,
    /// The key with its section, `section.key`. It's empty if the mistake isn't at a key.
    pub key: String,
    /// A description of the mistake and of the expected value.
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
/// It's printed as one line for each mistake, `path:line: key: message`, like a compiler's messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// The path of the file, as the caller passed it.
    pub path: String,
    /// The mistakes in the order of their lines; those without a line are last.
    ///
    /// It's never empty if [`Reader::finish`](super::Reader::finish) returned it.
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
