//! Reads and prints policies, the sets of the engine's mechanisms that are on, as text.
//!
//! S0 is batching, S1 extents, S2 tags, S3 lazy unmap, and S4 remote flush ([`Mechanism`]).
//!
//! ```text
//! policy    = terms ("," detail)*                   S0+S4    all-S3    all,cap=8M    S2,tags=64
//! terms     = ("baseline" | "all" | mechanism) (("+" | "-") mechanism)*
//! mechanism = "S0" | "S1" | "S2" | "S3" | "S4"
//! detail    = "tags=" (number | "all" | "off")      address spaces kept tagged on each CPU (S2)
//!           | "cap=" (bytes | "none")               longest extent zeroed in one go (S1)
//!           | ("concurrent" | "asynchronous" | "inline") "=" ("yes" | "no")    the parts of S4
//! ```
//!
//! [`parse_policy`] and [`PolicyText`] serve command lines, kernel options, replay codes and JSON. A printed policy
//! reads back as the same policy, if it has at least one tag slot and a cap of at least a page. The text contains
//! neither blanks nor colons, so lists may separate policies by these.

use core::fmt::{self, Write};

use quell::{Mechanism, PAGE_BYTES, Policy, TagPolicy};

/// The words of a policy's text with their meanings, for help texts.
pub const TERMS: &[(&str, &str)] = &[
    ("baseline", "every mechanism off: what a simple kernel does"),
    ("all", "every mechanism on"),
    ("S0", Mechanism::Batch.title()),
    ("S1", Mechanism::Extents.title()),
    ("S2", Mechanism::Tags.title()),
    ("S3", Mechanism::LazyUnmap.title()),
    ("S4", Mechanism::RemoteFlush.title()),
    ("+S3  -S3", "adds or removes a mechanism, as in S0+S4 or all-S3"),
    (",tags=N", "address spaces kept tagged on each CPU (S2): a number, all or off; 6 by default"),
    (
        ",cap=SIZE",
        "longest extent zeroed without a preemption point (S1): bytes or none; 32M by default",
    ),
    (",concurrent=no", "S4's first part: flush here while the requests travel; yes or no"),
    (",asynchronous=no", "S4's second part: acknowledge on receipt, flush afterwards; yes or no"),
    (
        ",inline=no",
        "S4's third part: the request lies in the line that the target reads; yes or no",
    ),
];

/// Text of at most `N` bytes. Longer text is cut off.
#[derive(Clone, Copy)]
struct ShortText<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> ShortText<N> {
    const EMPTY: Self = ShortText { bytes: [0; N], length: 0 };

    fn as_str(&self) -> &str {
        // `write_str` accepts only whole characters.
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Write for ShortText<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.length + character.len_utf8();
            let place = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
            character.encode_utf8(place);
            self.length = end;
        }
        Ok(())
    }
}

/// The texts of an error before and after the wrong part, and the valid words.
type Says = &'static [&'static str; 3];

const TERM_MISSING: Says = &["a term is missing", "", EXPECTED];
const TERM_MISSING_AFTER: Says = &["after `", "` a term is missing", EXPECTED];
const NO_MECHANISM: Says = &["`", "` is not a mechanism", EXPECTED];
const NO_DETAIL: Says = &["`", "` is not of the form key=value", DETAILS];
const NO_KEY: Says = &["no detail `", "`", DETAILS];
const NO_TAGS: Says = &["`", "`: expected a number from 1 to 65535, all or off", ""];
const NO_CAP: Says = &["`", "`: expected at least 4096 bytes, like 8M, or none", ""];
const NO_SWITCH: Says = &["`", "`: expected yes or no", ""];

const EXPECTED: &str = "; expected baseline, all or S0 to S4, with + or - between them";
const DETAILS: &str = "; there are tags, cap, concurrent, asynchronous and inline";

/// The reason why a text isn't a policy.
///
/// It contains the wrong part, and lists the valid words.
///
/// # Examples
///
/// ```
/// use quell_conformance::parse_policy;
/// let error = parse_policy("S0+S7").unwrap_err();
/// assert!(error.to_string().starts_with("`S7` is not a mechanism"));
/// ```
#[derive(Clone, Copy)]
pub struct PolicyError {
    says: Says,
    /// The wrong part of the text, which we cut off if it's long.
    culprit: ShortText<40>,
}

impl PolicyError {
    fn new(says: Says, culprit: &str) -> Self {
        let mut short = ShortText::EMPTY;
        // We cut off a long part.
        let _ = short.write_str(culprit);
        PolicyError { says, culprit: short }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after, hint] = self.says;
        write!(f, "{before}{}{after}{hint}", self.culprit.as_str())
    }
}

impl fmt::Debug for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyError({self})")
    }
}

impl core::error::Error for PolicyError {}

/// Reads a mechanism's name, S0 to S4.
fn parse_mechanism(text: &str) -> Result<Mechanism, PolicyError> {
    Mechanism::ALL
        .into_iter()
        .find(|mechanism| mechanism.name().eq_ignore_ascii_case(text))
        .ok_or_else(|| PolicyError::new(NO_MECHANISM, text))
}

/// Reads the terms.
fn terms(text: &str) -> Result<Policy, PolicyError> {
    let next = |text: &str| text.find(['+', '-']).unwrap_or(text.len());
    let mut end = next(text);
    let mut policy = match text[..end].trim() {
        "" => return Err(PolicyError::new(TERM_MISSING, "")),
        "baseline" => Policy::BASELINE,
        "all" => Policy::ALL,
        term => Policy::only(parse_mechanism(term)?),
    };
    while end < text.len() {
        let adds = text.as_bytes()[end] == b'+';
        let from = end + 1;
        end = from + next(&text[from..]);
        policy = match text[from..end].trim() {
            "" => return Err(PolicyError::new(TERM_MISSING_AFTER, &text[..from])),
            term if adds => policy.with(parse_mechanism(term)?),
            term => policy.without(parse_mechanism(term)?),
        };
    }
    Ok(policy)
}

/// Reads a number of bytes, which may have a suffix, for example 8M.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let unit: u64 = match &text[digits.len()..] {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Reads a detail into a policy.
fn detail(policy: &mut Policy, text: &str) -> Result<(), PolicyError> {
    let text = text.trim();
    let wrong = |says| PolicyError::new(says, text);
    let (key, value) = text.split_once('=').ok_or_else(|| wrong(NO_DETAIL))?;
    let (key, value) = (key.trim(), value.trim());
    let switch = match key {
        "tags" => {
            policy.tags = match (value, value.parse()) {
                ("off", _) => TagPolicy::Off,
                ("all", _) => TagPolicy::All,
                (_, Ok(slots @ 1..)) => TagPolicy::Slots(slots),
                _ => return Err(wrong(NO_TAGS)),
            };
            return Ok(());
        }
        "cap" => {
            policy.cap_bytes = match (value, bytes(value)) {
                ("none", _) => None,
                (_, Some(bytes @ PAGE_BYTES..)) => Some(bytes),
                _ => return Err(wrong(NO_CAP)),
            };
            return Ok(());
        }
        "concurrent" => &mut policy.concurrent,
        "asynchronous" => &mut policy.asynchronous,
        "inline" => &mut policy.inline_requests,
        _ => return Err(PolicyError::new(NO_KEY, key)),
    };
    *switch = match value {
        "yes" => true,
        "no" => false,
        _ => return Err(wrong(NO_SWITCH)),
    };
    Ok(())
}

/// Reads a policy.
///
/// # Errors
/// If the text isn't a policy. The error names the wrong part and lists the valid words.
///
/// # Examples
///
/// ```
/// use quell_conformance::{PolicyText, parse_policy};
/// let policy = parse_policy("all-S3,cap=8M")?;
/// assert!(!policy.lazy_unmap && policy.cap_bytes == Some(8 << 20));
/// assert_eq!(PolicyText(policy).to_string(), "all-S3,cap=8M");
/// # Ok::<(), quell_conformance::PolicyError>(())
/// ```
pub fn parse_policy(text: &str) -> Result<Policy, PolicyError> {
    let mut parts = text.split(',');
    let mut policy = terms(parts.next().unwrap_or_default())?;
    for part in parts {
        detail(&mut policy, part)?;
    }
    Ok(policy)
}

/// Writes the mechanisms that are on, in the shortest way.
fn write_terms(policy: &Policy, out: &mut impl Write) -> fmt::Result {
    let on = |mechanism: &Mechanism| policy.has(*mechanism);
    match Mechanism::ALL.iter().filter(|one| on(one)).count() {
        0 => out.write_str("baseline"),
        5 => out.write_str("all"),
        4 => {
            let off = Mechanism::ALL.iter().find(|one| !on(one));
            write!(out, "all-{}", off.map_or("", |one| one.name()))
        }
        _ => {
            let mut sign = "";
            for one in Mechanism::ALL.iter().filter(|one| on(one)) {
                write!(out, "{sign}{one}")?;
                sign = "+";
            }
            Ok(())
        }
    }
}

/// Writes the details that differ from those of the terms.
fn write_details(policy: &Policy, out: &mut impl Write) -> fmt::Result {
    if policy.tags != Policy::ALL.tags {
        match policy.tags {
            TagPolicy::Off | TagPolicy::Slots(0) => {}
            TagPolicy::Slots(slots) => write!(out, ",tags={slots}")?,
            TagPolicy::All => out.write_str(",tags=all")?,
        }
    }
    if policy.cap_bytes != Policy::ALL.cap_bytes {
        match policy.cap_bytes {
            None => out.write_str(",cap=none")?,
            Some(bytes) => {
                let units = [(30, "G"), (20, "M"), (10, "K"), (0, "")];
                let whole = |shift: u32| bytes > 0 && bytes.is_multiple_of(1 << shift);
                let (shift, unit) =
                    units.into_iter().find(|&(shift, _)| whole(shift)).unwrap_or((0, ""));
                write!(out, ",cap={}{unit}", bytes >> shift)?;
            }
        }
    }
    if policy.has(Mechanism::RemoteFlush) {
        for (part, on) in [
            ("concurrent", policy.concurrent),
            ("asynchronous", policy.asynchronous),
            ("inline", policy.inline_requests),
        ] {
            if !on {
                write!(out, ",{part}=no")?;
            }
        }
    }
    Ok(())
}

/// Displays a policy in the shortest text that reads back as the same policy.
///
/// # Examples
///
/// ```
/// use quell::{Mechanism, Policy};
/// use quell_conformance::PolicyText;
/// let policy = Policy::ALL.without(Mechanism::LazyUnmap);
/// assert_eq!(PolicyText(policy).to_string(), "all-S3");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PolicyText(pub Policy);

impl fmt::Display for PolicyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // We write it as a whole, so that we can pad it. The longest policy has fewer than a hundred characters.
        let mut out = ShortText::<128>::EMPTY;
        write_terms(&self.0, &mut out)?;
        write_details(&self.0, &mut out)?;
        f.pad(out.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::string::{String, ToString};

    fn parse(text: &str) -> Policy {
        parse_policy(text).unwrap()
    }

    fn text(policy: Policy) -> String {
        PolicyText(policy).to_string()
    }

    #[test]
    fn terms_add_up() {
        assert_eq!(parse("baseline"), Policy::BASELINE);
        assert_eq!(parse("all"), Policy::ALL);
        assert_eq!(parse("S0+s4"), Policy::only(Mechanism::Batch).with(Mechanism::RemoteFlush));
        assert_eq!(parse("all-S0-S1-S2-S3-S4"), Policy::BASELINE);
        assert_eq!(parse("baseline+S0+S1+S2+S3+S4"), Policy::ALL);
    }

    #[test]
    fn details_change_one_thing() {
        assert_eq!(parse("S2,tags=64").tags, TagPolicy::Slots(64));
        assert_eq!(parse("all,tags=off"), Policy::ALL.without(Mechanism::Tags));
        assert_eq!(parse("S1,cap=8M").cap_bytes, Some(8 << 20));
        assert_eq!(parse("S1, cap=none").cap_bytes, None);
        let policy = parse("S4,asynchronous=no");
        assert!(policy.concurrent && policy.inline_requests && !policy.asynchronous);
    }

    #[test]
    fn the_shortest_form_is_written() {
        for text in [
            "baseline",
            "all",
            "all-S3",
            "S0+S2",
            "S0+S2+S4,asynchronous=no,inline=no",
            "all,tags=all,cap=none",
            "S2,tags=64",
            "baseline,cap=8M",
            "baseline,cap=4097",
        ] {
            assert_eq!(self::text(parse(text)), text);
        }
        assert_eq!(text(parse("all,tags=off")), "all-S2");
        assert_eq!(text(parse("s0 + S2,cap=8192K")), "S0+S2,cap=8M");
        assert_eq!(format!("{:>6}|", PolicyText(Policy::ALL)), "   all|");
        let no_slots = Policy { tags: TagPolicy::Slots(0), ..Policy::ALL };
        assert_eq!(text(no_slots), "all-S2", "no slots are no tags");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("", "a term is missing"),
            ("S5", "`S5` is not a mechanism"),
            ("S0+", "after `S0+` a term is missing"),
            ("S0+all", "`all` is not a mechanism"),
            ("S1,cap=1", "`cap=1`: expected at least 4096"),
            ("S1,cap=99999999999G", "`cap=99999999999G`: expected"),
            ("S1,cap", "`cap` is not of the form"),
            ("S2,tags=0", "`tags=0`: expected a number"),
            ("S4,async=no", "no detail `async`"),
            ("S4,inline=maybe", "`inline=maybe`: expected yes or no"),
            ("S+", "`S` is not a mechanism"),
            ("é", "`é` is not a mechanism"),
        ] {
            let message = parse_policy(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    fn any_policy() -> impl Strategy<Value = Policy> {
        let tags = prop_oneof![
            Just(TagPolicy::Off),
            Just(TagPolicy::All),
            (1u16..).prop_map(TagPolicy::Slots),
        ];
        let cap = prop_oneof![
            Just(None),
            (PAGE_BYTES..).prop_map(Some),
            (0u32..51).prop_map(|shift| Some(PAGE_BYTES << shift)),
        ];
        (any::<[bool; 6]>(), tags, cap).prop_map(|(on, tags, cap_bytes)| Policy {
            batch: on[0],
            extents: on[1],
            cap_bytes,
            tags,
            lazy_unmap: on[2],
            concurrent: on[3],
            asynchronous: on[4],
            inline_requests: on[5],
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(policy in any_policy()) {
            let text = self::text(policy);
            prop_assert_eq!(parse(&text), policy);
            prop_assert!(!text.contains([' ', ':', '!']), "{}", text);
        }

        #[test]
        fn nothing_makes_it_panic(text in "\\PC*") {
            if let Err(error) = parse_policy(&text) {
                prop_assert!(!error.to_string().contains('\n'));
            }
        }

        #[test]
        fn nearly_policies_are_read_or_refused(text in "(all|baseline|S[0-6])([+-]S[0-5]){0,3}(,(tags|cap|inline|x)=?[a-z0-9KMG]{0,4}){0,3}") {
            if let Ok(policy) = parse_policy(&text) {
                prop_assert_eq!(parse(&self::text(policy)), policy);
            }
        }
    }
}
