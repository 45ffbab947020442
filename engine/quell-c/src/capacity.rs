//! Reads the build options: the spaces of a batch, the ranges of a request, and the checks of misuse.
//!
//! Each option is an environment variable of the build (`scripts/build-c`). QUELL_BATCH_SPACES, the number of spaces,
//! decides the size of a `struct quell_batch`. So C code defines the same number before it includes the header, and
//! quell_engine_new compares the two. The number of frames in a batch isn't a build option: the caller provides the
//! array when it begins the batch.

/// The largest value of QUELL_BATCH_SPACES.
const MOST_SPACES: usize = 8;
/// The largest value of QUELL_RANGES.
const MOST_RANGES: usize = 11;

/// The number of spaces for which a batch records ranges.
pub const QUELL_BATCH_SPACES: usize = chosen(option_env!("QUELL_BATCH_SPACES"), MOST_SPACES);

/// The number of ranges that a request holds.
pub(crate) const RANGES: usize = chosen(option_env!("QUELL_RANGES"), MOST_RANGES);

/// Whether calls refuse misuse that the content of memory reveals. QUELL_UNCHECKED=1 in the environment of the build
/// turns the checks off. We offer that for a kernel that was tested with the checks on and needs every instruction of a
/// context switch.
pub(crate) const CHECKED: bool = !is_set(option_env!("QUELL_UNCHECKED"));

/// Whether we prefer less code to fewer executed instructions: QUELL_SMALL=1, which `scripts/build-c --small` sets.
pub(crate) const SMALL: bool = is_set(option_env!("QUELL_SMALL"));

/// Parses a switch: "1" turns it on; an empty or unset variable leaves it off.
const fn is_set(said: Option<&str>) -> bool {
    let Some(text) = said else { return false };
    match text.as_bytes() {
        b"" => false,
        b"1" => true,
        _ => panic!("QUELL_UNCHECKED and QUELL_SMALL are 1 or not set"),
    }
}

/// Parses a number from 1 to `most`. Unset or empty means `most`.
const fn chosen(said: Option<&str>, most: usize) -> usize {
    let Some(text) = said else { return most };
    if text.is_empty() {
        return most;
    }
    match usize::from_str_radix(text, 10) {
        Ok(number) if number >= 1 && number <= most => number,
        _ => {
            panic!("QUELL_BATCH_SPACES is a number from 1 to 8, and QUELL_RANGES one from 1 to 11")
        }
    }
}

const _: () = {
    assert!(chosen(None, 8) == 8 && chosen(Some(""), 8) == 8);
    assert!(chosen(Some("1"), 8) == 1 && chosen(Some("8"), 8) == 8);
    assert!(chosen(Some("11"), 11) == 11);
    assert!(!is_set(None) && !is_set(Some("")) && is_set(Some("1")));
};
