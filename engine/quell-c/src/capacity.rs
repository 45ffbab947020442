//! Options of the build: how many spaces a batch holds, how many ranges a request holds, and whether misuse is
//! detected.
//!
//! All are environment variables of the build (`scripts/build-c`). The first decides the size of a `struct
//! quell_batch`, so C defines the same number before it includes the header, and quell_engine_new compares the two. The
//! caller chooses how many frames a batch holds when it begins the batch and provides the array.

/// The most spaces that a batch has places for.
const MOST_SPACES: usize = 8;
/// The most ranges that a request holds.
const MOST_RANGES: usize = 11;

/// The number of spaces that a batch has places for.
pub const QUELL_BATCH_SPACES: usize = chosen(option_env!("QUELL_BATCH_SPACES"), MOST_SPACES);

/// The number of ranges that a request holds.
pub(crate) const RANGES: usize = chosen(option_env!("QUELL_RANGES"), MOST_RANGES);

/// Whether calls refuse misuse that the content of memory reveals. QUELL_UNCHECKED=1 in the environment of the build
/// turns the checks off. It is for a kernel that was tested with the checks on and that counts the instructions of a
/// context switch.
pub(crate) const CHECKED: bool = !is_set(option_env!("QUELL_UNCHECKED"));

/// Whether less code counts more than fewer instructions: QUELL_SMALL=1, which `scripts/build-c --small` sets.
pub(crate) const SMALL: bool = is_set(option_env!("QUELL_SMALL"));

/// Parses a switch: "1" sets it, and it is off if it is unset or empty.
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
    let digits = text.as_bytes();
    if digits.is_empty() {
        return most;
    }
    let (mut number, mut at) = (0, 0);
    while at < digits.len() {
        assert!(
            digits[at].is_ascii_digit() && number <= most,
            "QUELL_BATCH_SPACES is a number from 1 to 8, and QUELL_RANGES one from 1 to 11"
        );
        number = number * 10 + (digits[at] - b'0') as usize;
        at += 1;
    }
    assert!(
        number >= 1 && number <= most,
        "QUELL_BATCH_SPACES is a number from 1 to 8, and QUELL_RANGES one from 1 to 11"
    );
    number
}

const _: () = {
    assert!(chosen(None, 8) == 8 && chosen(Some(""), 8) == 8);
    assert!(chosen(Some("1"), 8) == 1 && chosen(Some("8"), 8) == 8);
    assert!(chosen(Some("11"), 11) == 11);
    assert!(!is_set(None) && !is_set(Some("")) && is_set(Some("1")));
};
