//! What the embedder chooses as it builds the library: for how many spaces a batch has places, how many ranges a
//! request has, and whether misuse is looked for.
//!
//! All are variables in the environment of the build (`scripts/build-c`). The first decides the size of a
//! `struct quell_batch`, so C defines the same number before it includes the header, and quell_engine_new compares the
//! two. How many frames a batch holds is decided as it is begun, by an array of the caller's.

/// The most spaces that a batch has places for.
const MOST_SPACES: usize = 8;
/// The most ranges that a request has.
const MOST_RANGES: usize = 11;

/// For how many spaces a batch has places.
pub const QUELL_BATCH_SPACES: usize = chosen(option_env!("QUELL_BATCH_SPACES"), MOST_SPACES);

/// How many ranges a request has.
pub(crate) const RANGES: usize = chosen(option_env!("QUELL_RANGES"), MOST_RANGES);

/// Whether misuse that the content of memory shows is refused. With QUELL_UNCHECKED=1 in the environment of the build
/// it is not: for a kernel whose calls were tried with the library that looks, and that counts the instructions of a
/// switch.
pub(crate) const CHECKED: bool = is_checked(option_env!("QUELL_UNCHECKED"));

/// Not for 1; so, if nothing is said, or nothing at length zero.
const fn is_checked(said: Option<&str>) -> bool {
    let Some(text) = said else { return true };
    match text.as_bytes() {
        b"" => true,
        b"1" => false,
        _ => panic!("QUELL_UNCHECKED is 1 or is not set"),
    }
}

/// A number from 1 to `most`; that, if nothing is said, or nothing at length zero.
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
    assert!(is_checked(None) && is_checked(Some("")) && !is_checked(Some("1")));
};
