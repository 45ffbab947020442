//! Reads the lines of any file. They may be very long, lack a newline, or not be UTF-8.

use std::io::{self, BufRead};

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
        let mut read = 0;
        loop {
            let buffer = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            let end = line_end(buffer);
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let room = LONGEST.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let used = end.map_or(buffer.len(), |end| end + 1);
            self.from.consume(used);
            read += used;
            if read as u64 > ENDLESS {
                let why =
                    format!("not a recorder's text: a line is longer than {} MB", ENDLESS >> 20);
                return Err(io::Error::other(why));
            }
            if end.is_some() || used == 0 {
                break;
            }
        }
        if read == 0 {
            return Ok(None);
        }
        self.bytes += read as u64;
        self.number += 1;
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        Ok(Some(&self.line))
    }
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
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
    fn a_line_without_an_end_does_not_fill_the_memory() {
        let text = vec![b'x'; LONGEST * 2 + 7];
        let mut lines = Lines::new(&text[..]);
        assert_eq!(lines.next().unwrap().unwrap().len(), LONGEST);
        assert_eq!(lines.next().unwrap(), None);
    }
}
