//! Text that passes between C and Rust.

#[cfg(any(feature = "text", quell_mutants))]
use core::ffi::c_char;
#[cfg(feature = "text")]
use core::fmt::{self, Write};

/// A line in C's memory, ended with a zero byte.
#[cfg(feature = "text")]
pub(crate) struct Line<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

#[cfg(feature = "text")]
impl Line<'_> {
    /// Creates an empty line in this memory. It discards text if the memory is NULL or has no bytes.
    ///
    /// # Safety
    /// `text` is memory of `size` bytes that is used for nothing else meanwhile, or NULL.
    pub(crate) unsafe fn new(text: *mut c_char, size: usize) -> Self {
        let bytes = if text.is_null() || size == 0 {
            &mut []
        } else {
            // SAFETY: as the caller promises. C needn't have initialised the memory, so we initialise it first.
            unsafe {
                text.cast::<u8>().write_bytes(0, size);
                core::slice::from_raw_parts_mut(text.cast::<u8>(), size)
            }
        };
        Line { bytes, length: 0 }
    }

    /// Writes the line. Text that is too long is cut off.
    pub(crate) fn set(mut self, text: &core::ffi::CStr) {
        let text = text.to_bytes();
        // The last byte stays zero.
        self.length = text.len().min(self.bytes.len().saturating_sub(1));
        for (to, from) in self.bytes.iter_mut().zip(&text[..self.length]) {
            *to = *from;
        }
    }

    /// Formats the line, and returns its length. Text that is too long is cut off.
    pub(crate) fn set_formatted(mut self, text: fmt::Arguments<'_>) -> usize {
        self.length = 0;
        let _ = self.write_fmt(text);
        if let Some(end) = self.bytes.get_mut(self.length) {
            *end = 0;
        }
        self.length
    }
}

#[cfg(feature = "text")]
impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.length + character.len_utf8();
            // We keep the last byte for the zero.
            if end >= self.bytes.len() {
                return Err(fmt::Error);
            }
            character.encode_utf8(&mut self.bytes[self.length..end]);
            self.length = end;
        }
        Ok(())
    }
}

/// Returns the text at `start`, up to its zero byte. Returns `None` if no zero byte follows within `most` bytes, or if
/// the text isn't UTF-8.
///
/// # Safety
/// The text ends with a zero byte or has more than `most` bytes, and stays as it is for `'a`.
#[cfg(any(feature = "text", quell_mutants))]
pub(crate) unsafe fn of_c<'a>(start: *const c_char, most: usize) -> Option<&'a str> {
    // SAFETY: we read no byte after the first zero.
    let length = (0..=most).find(|&index| unsafe { *start.add(index) } == 0)?;
    // SAFETY: we have just read these bytes.
    let bytes = unsafe { core::slice::from_raw_parts(start.cast::<u8>(), length) };
    core::str::from_utf8(bytes).ok()
}

/// Copies a text into a larger array, followed by zero bytes.
pub(crate) const fn terminated<const N: usize>(text: &str) -> [u8; N] {
    assert!(text.len() < N, "a text has outgrown its array");
    let mut bytes = [0; N];
    bytes.split_at_mut(text.len()).0.copy_from_slice(text.as_bytes());
    bytes
}
