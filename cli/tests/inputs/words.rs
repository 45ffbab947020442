//! Draws values: plausible, extreme and wrong ones.

use crate::command::document;
use rand::RngExt;
use rand_pcg::Pcg64;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The names that the command itself lists, by their kind.
pub struct KnownNames {
    lists: Vec<(String, Vec<String>)>,
}

impl KnownNames {
    /// Reads the lists from the command.
    pub fn read() -> Self {
        let mut lists = Vec::new();
        for line in ["list --json", "explore --list --json"] {
            let found = document(line);
            for (what, list) in found.as_object().expect("lists") {
                let mut names = Vec::new();
                for one in list.as_array().into_iter().flatten() {
                    let all = [one, &one["name"], &one["term"]].into_iter();
                    names.extend(all.filter_map(|name| Some(name.as_str()?.to_owned())));
                }
                lists.push((what.clone(), names));
            }
        }
        lists.retain(|(_, names)| !names.is_empty());
        assert!(lists.len() > 4);
        KnownNames { lists }
    }

    /// Returns a name of the kind that an argument takes, or of any kind if the command doesn't list that one.
    pub fn named(&self, rng: &mut Pcg64, argument: &str) -> String {
        let singular = |name: &str| name.trim_end_matches('s').replace("policie", "policy");
        let of_kind = self.lists.iter().filter(|(what, _)| singular(what) == singular(argument));
        let of_kind: Vec<_> = of_kind.collect();
        let (_, names) =
            choose(rng, &of_kind).copied().unwrap_or_else(|| pick_ref(rng, &self.lists));
        pick_ref(rng, names).clone()
    }
}

/// Small numbers, the ends of the types' ranges, and texts that are no whole number.
const NUMBERS: &str = "0 1 2 3 8 31 64 65 255 256 1000 1024 1025 4096 65535 65536 4294967295 \
                       4294967296 9223372036854775807 18446744073709551615 18446744073709551616 \
                       -1 -0 +1 0.5 0.001 1e9 1e400 inf -inf NaN 0x10 1_000 １２ 12monkeys";

/// Values of NAME=VALUE, policies, and replay codes.
const PAIRS: &str = "pages=8 pages=0 size=64G size=16E duration=1ms iterations=99999999999 \
                     clean=yes page=2M seed=-1 interrupt.send=1us tlb.tags=none policy=S0 \
                     parameters=pages:8 break=request tag_bits=4 watchdog_ms=1 rounds=2 \
                     nonsense=1 pages";
const POLICIES: &str = "all baseline S0 S0+S4 all-S3 S2,tags=4 all,cap=0 S9 all,x=1 \
                        S0,concurrent=no,inline=yes";
const CODES: &str = "unmap-access:x86:all: unmap-access:x86:baseline:1,2,3 dontneed:x86:all:7 \
                     table-free:riscv:S0:1.5 unmap-access:x86:all:PostingPreempted: x::y:0=1";

const STRANGE: [&str; 12] = [
    "",
    " ",
    "-",
    "--",
    "=",
    ",",
    "\n",
    "\u{1}",
    "ä\u{308}€\u{1f980}",
    "../..",
    "%s%n",
    "'; exit 0; '",
];

/// Returns one of these, or `None` if there are none.
pub fn choose<'a, T>(rng: &mut Pcg64, all: &'a [T]) -> Option<&'a T> {
    (!all.is_empty()).then(|| pick_ref(rng, all))
}

fn pick_ref<'a, T>(rng: &mut Pcg64, all: &'a [T]) -> &'a T {
    &all[rng.random_range(0..all.len())]
}

/// Returns one of these.
pub fn pick<T: Copy>(rng: &mut Pcg64, all: &[T]) -> T {
    *pick_ref(rng, all)
}

fn word(rng: &mut Pcg64, words: &str) -> String {
    pick(rng, &words.split(' ').collect::<Vec<_>>()).to_owned()
}

/// Returns a number as a person might write it, or as nobody would.
pub fn number(rng: &mut Pcg64) -> String {
    match rng.random_range(0..8) {
        0..3 => rng.random_range(1..10).to_string(),
        3..7 => word(rng, NUMBERS),
        _ => "9".repeat(rng.random_range(1..400)),
    }
}

/// Returns a policy.
pub fn policy(rng: &mut Pcg64) -> OsString {
    let policy = word(rng, POLICIES);
    changed(rng, policy)
}

/// Returns text for an argument. `argument` is its name, and `value` the name of its value in the help.
pub fn text(rng: &mut Pcg64, known: &KnownNames, argument: &str, value: &str) -> OsString {
    let text = match rng.random_range(0..20) {
        0..4 if value.contains('=') => {
            format!("{}={}", known.named(rng, "parameters"), number(rng))
        }
        0..15 if value.contains('=') => word(rng, PAIRS),
        0..15 if value == "CODE" => word(rng, CODES),
        0..15 => known.named(rng, argument),
        15 => number(rng),
        16 => pick(rng, &STRANGE).to_owned(),
        17 => "x".repeat(30_000),
        18 => return policy(rng),
        _ => return OsString::from_vec(vec![b'a', 0xff, 0xfe]),
    };
    changed(rng, text)
}

/// Makes a mistake in a text, mostly none.
fn changed(rng: &mut Pcg64, text: String) -> OsString {
    match rng.random_range(0..20) {
        0 => text.to_uppercase(),
        1 => text.chars().skip(1).collect(),
        2 => format!(" {text}"),
        3 => format!("{text},{text},,"),
        4 => format!("{text}{}", pick(rng, &["=", ":", "+S0", "-S4", ",tags=65", "9"])),
        5 => text.replace(['=', ':'], pick(rng, &["==", " = ", ""])),
        _ => text,
    }
    .into()
}
