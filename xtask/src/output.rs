//! Long lists on standard output.

use std::fmt;
use std::io::{self, Write};
use std::process;

/// What a shell says of a program that a closed pipe has ended: 128 and the number of SIGPIPE.
const CLOSED_PIPE: i32 = 141;

/// Prints something. A reader that has seen enough, as `head` has, ends the command without a word; a full disk ends it
/// with one.
pub fn print(text: impl fmt::Display) {
    let mut out = io::stdout().lock();
    let Err(error) = write!(out, "{text}").and_then(|()| out.flush()) else {
        return;
    };
    if error.kind() == io::ErrorKind::BrokenPipe {
        process::exit(CLOSED_PIPE);
    }
    eprintln!("standard output: {error}");
    process::exit(1);
}
