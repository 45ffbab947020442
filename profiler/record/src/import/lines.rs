//! Reads the lines of any file. They may be very long, lack a newline, or not be UTF-8.

use std::io::{self, BufRead, Read};

/// The longest line in bytes. We skip the rest of a longer one.
const LONGEST: usize = 1 << 20;

/// The limit in bytes for one line, and for all lines before the first event. A file beyond it can't be a recording.
pub const ENDLESS: u64 = 16 << 20;

/// Reads lines, and counts lines and bytes.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    line: Vec<u8>,
    /// The number of the last line read, from 1.
    pub number: u64,
    /// The number of bytes read.
    pub bytes: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(from: R) -> Self {
        Lines { from, line: Vec::new(), number: 0, bytes: 0 }
    }

    /// Returns the next line without its end, or `None` after the last.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        let read = self.from.by_ref().take(ENDLESS + 1).read_until(b'\n', &mut self.line)?;
        if read as u64 > ENDLESS {
            let why = format!("not a recorder's text: a line is longer than {} MB", ENDLESS >> 20);
            return Err(io::Error::other(why));
        }
        if read == 0 {
            return Ok(None);
        }
        self.bytes += read as u64;
        self.number += 1;
        self.line.pop_if(|byte| *byte == b'\n');
        self.line.pop_if(|byte| *byte == b'\r');
        self.line.truncate(LONGEST);
        Ok(Some(&self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_once_also_the_last_without_an_end() {
        let mut lines = Lines::new(io::BufReader::with_capacity(3, &b"one\r\n\ntwo three"[..]));
        assert_eq!(lines.next().unwrap(), Some(&b"one"[..]));
        assert_eq!(lines.next().unwrap(), Some(&b""[..]));
        assert_eq!(lines.next().unwrap(), Some(&b"two three"[..]));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!((lines.number, lines.bytes), (3, 15));
    }

    #[test]
    fn a_long_line_is_cut() {
        let text = vec![b'x'; LONGEST * 2 + 7];
        let mut lines = Lines::new(&text[..]);
        assert_eq!(lines.next().unwrap().unwrap().len(), LONGEST);
        assert_eq!(lines.next().unwrap(), None);
    }
}
