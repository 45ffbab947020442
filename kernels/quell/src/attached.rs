//! A text behind a file: how a workload file comes to the kernel, behind the user program that the boot loader brings.
//!
//! A command line has no room for a file, and not every boot loader brings two. A loader of ELF does not look behind
//! the last section, so there is the text, then its length in eight bytes, then a mark.

/// What the last bytes are if there is a text.
const MARK: [u8; 8] = *b"\x7fQUELLWL";

/// The text behind a file; `None` if there is none.
pub fn text(file: &[u8]) -> Option<&str> {
    let rest = file.strip_suffix(&MARK)?;
    let (rest, length) = rest.split_last_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let start = rest.len().checked_sub(length)?;
    core::str::from_utf8(&rest[start..]).ok()
}

/// What a file ends with that has a text behind it.
pub fn ending(text: &str) -> impl Iterator<Item = u8> {
    let length = (text.len() as u64).to_le_bytes();
    text.bytes().chain(length).chain(MARK)
}
