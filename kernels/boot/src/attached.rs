//! Appends a workload file to the user program, which the boot loader passes to the kernel.
//!
//! A command line is too short for a file, and not every boot loader passes two files. An ELF loader ignores everything
//! behind the last section, so we append the text there, then its length in eight bytes, and then a mark.

/// The last bytes of a file that has a text.
const MARK: [u8; 8] = *b"\x7fQUELLWL";

/// Returns the text behind a file, if there is one.
pub fn text(file: &[u8]) -> Option<&str> {
    let rest = file.strip_suffix(&MARK)?;
    let (rest, length) = rest.split_last_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let start = rest.len().checked_sub(length)?;
    core::str::from_utf8(&rest[start..]).ok()
}

/// Returns the bytes that append a text to a file.
pub fn ending(text: &str) -> impl Iterator<Item = u8> {
    let length = (text.len() as u64).to_le_bytes();
    text.bytes().chain(length).chain(MARK)
}
