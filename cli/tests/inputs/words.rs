//! Draws values: plausible, extreme and wrong ones.

use rand::RngExt;
use rand_pcg::Pcg64;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

/// The names that the command itself lists, by their kind.
pub struct KnownNames {
    lists: Vec<(String, Vec<String>)>,
    parameters: Vec<String>,
}

impl KnownNames {
    /// Reads the lists from the command.
    pub fn read() -> Self {
        let mut lists = Vec::new();
        let mut parameters = Vec::new();
        for arguments in [&["list", "--json"][..], &["explore", "--list", "--json"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
            let output = command.args(arguments).output().expect("quell starts");
            let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            for (what, list) in found.as_object().expect("lists") {
                let mut names = Vec::new();
                for one in list.as_array().into_iter().flatten() {
                    names.extend(one.as_str().map(str::to_owned));
                    for key in ["name", "term"] {
                        names.extend(one[key].as_str().map(str::to_owned));
                    }
                    if what == "workloads" {
                        let of = one["parameters"].as_array().into_iter().flatten();
                        parameters.extend(of.filter_map(|one| Some(one["name"].as_str()?.into())));
                    }
                }
                lists.push((what.clone(), names));
            }
        }
        assert!(!parameters.is_empty() && lists.len() > 4);
        KnownNames { lists, parameters }
    }

    /// Returns a name of the kind that an argument takes, if the command lists that kind.
    fn named(&self, rng: &mut Pcg64, argument: &str) -> Option<String> {
        let singular = argument.trim_end_matches('s');
        let lists = self.lists.iter().filter(|(what, _)| {
            what == argument
                || what.trim_end_matches('s') == singular
                || argument == "name" && what != "policies"
        });
        let lists: Vec<_> = lists.filter(|(_, names)| !names.is_empty()).collect();
        let (_, names) = choose(rng, &lists)?;
        choose(rng, names).cloned()
    }

    fn any(&self, rng: &mut Pcg64) -> String {
        let lists: Vec<_> = self.lists.iter().filter(|(_, names)| !names.is_empty()).collect();
        let (_, names) = choose(rng, &lists).expect("lists");
        choose(rng, names).expect("names").clone()
    }
}

const NUMBERS: [&str; 40] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
    "8",
    "16",
    "31",
    "64",
    "65",
    "255",
    "256",
    "1000",
    "1024",
    "1025",
    "4096",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "-0",
    "+1",
    "0.5",
    "0.001",
    "1e9",
    "1e400",
    "inf",
    "-inf",
    "NaN",
    "0x10",
    "1_000",
    "１２",
    "1 2",
    "12monkeys",
];

const LENGTHS: [&str; 12] =
    ["4K", "64K", "1M", "64M", "1G", "64G", "16E", "99999999999G", "1T", "1ms", "100us", "1s"];

const STRANGE: [&str; 12] = [
    "",
    " ",
    "-",
    "--",
    "=",
    ",",
    "\n",
    "\u{0}",
    "ä\u{308}€\u{1f980}",
    "../..",
    "%s%n",
    "'; exit 0; '",
];

/// Returns one of these, or `None` if there are none.
pub fn choose<'a, T>(rng: &mut Pcg64, all: &'a [T]) -> Option<&'a T> {
    (!all.is_empty()).then(|| &all[rng.random_range(0..all.len())])
}

/// Returns one of these.
pub fn pick<T: Copy>(rng: &mut Pcg64, all: &[T]) -> T {
    all[rng.random_range(0..all.len())]
}

/// Returns a number as a person might write it, or as nobody would.
pub fn number(rng: &mut Pcg64) -> String {
    match rng.random_range(0..8) {
        0..3 => rng.random_range(1..10).to_string(),
        3..7 => pick(rng, &NUMBERS).to_owned(),
        _ => "9".repeat(rng.random_range(1..400)),
    }
}

/// Returns text for an argument. `argument` is its name, and `value` the name of its value in the help.
pub fn text(rng: &mut Pcg64, known: &KnownNames, argument: &str, value: &str) -> OsString {
    if value.contains('=') && rng.random_range(0..4) > 0 {
        return pair(rng, known).into();
    }
    if value == "CODE" && rng.random_range(0..4) > 0 {
        return code(rng, known).into();
    }
    let word = match rng.random_range(0..20) {
        0..12 => known.named(rng, argument).unwrap_or_else(|| known.any(rng)),
        12..14 => known.any(rng),
        14 => number(rng),
        15 => changed(rng, known),
        16 => pick(rng, &STRANGE).to_owned(),
        17 => "x".repeat(30_000),
        18 => policy(rng),
        _ => return OsString::from_vec(vec![b'a', 0xff, 0xfe]),
    };
    word.replace('\u{0}', "\u{1}").into()
}

/// Returns a name with a mistake in it.
fn changed(rng: &mut Pcg64, known: &KnownNames) -> String {
    let name = known.any(rng);
    match rng.random_range(0..5) {
        0 => name.to_uppercase(),
        1 => format!("{name}{name}"),
        2 => name.chars().skip(1).collect(),
        3 => format!(" {name}"),
        _ => format!("{name},{name},,"),
    }
}

fn amount(rng: &mut Pcg64) -> String {
    match rng.random_range(0..6) {
        0..3 => number(rng),
        3 => pick(rng, &["yes", "no", "true", "off", "all", "none"]).to_owned(),
        4 => pick(rng, &STRANGE).replace('\u{0}', "\u{1}"),
        _ => pick(rng, &LENGTHS).to_owned(),
    }
}

/// Returns text of the form NAME=VALUE.
fn pair(rng: &mut Pcg64, known: &KnownNames) -> String {
    let options = [
        "policy",
        "parameters",
        "break",
        "team",
        "seed",
        "rounds",
        "seconds",
        "tag_bits",
        "watchdog_ms",
        "tick_us",
    ];
    let name = match rng.random_range(0..4) {
        0 => pick(rng, &options).to_owned(),
        1 if rng.random_range(0..4) == 0 => known.any(rng),
        1 => known.named(rng, "parameters").unwrap_or_else(|| known.any(rng)),
        _ => choose(rng, &known.parameters).expect("some").clone(),
    };
    let separator = pick(rng, &["=", "=", "=", "=", "=", "=", ":", "==", " = ", ""]);
    format!("{name}{separator}{}", amount(rng))
}

/// Returns a policy built by its grammar.
fn policy(rng: &mut Pcg64) -> String {
    let mut text = pick(rng, &["all", "baseline", "S0", "S3", ""]).to_owned();
    for _ in 0..rng.random_range(0..6) {
        match rng.random_range(0..3) {
            0 => text += pick(rng, &["+S0", "-S4", "+S9", "-", "+"]),
            1 => {
                let name = pick(rng, &["tags", "cap", "concurrent", "asynchronous", "inline", "x"]);
                text += &format!(",{name}={}", amount(rng));
            }
            _ => text += pick(rng, &[",", "all", "S"]),
        }
    }
    text
}

/// Returns a replay code: scenario, machine, policy, perhaps a mutant, and deviations.
fn code(rng: &mut Pcg64, known: &KnownNames) -> String {
    let mut code = String::new();
    for what in ["scenarios", "machines", "policies"] {
        let name = known.named(rng, what).unwrap_or_else(|| known.any(rng));
        code += &name;
        code += pick(rng, &[":", ":", ":", ":", "", "::"]);
    }
    for _ in 0..rng.random_range(0..5) {
        code += &format!("{}{}", number(rng), pick(rng, &[",", ".", ":", "=", "-"]));
    }
    code
}

/// Returns a value for an argument that takes a policy.
pub fn policy_text(rng: &mut Pcg64, known: &KnownNames) -> OsString {
    match rng.random_range(0..3) {
        0 => known.named(rng, "policies").unwrap_or_else(|| "all".into()).into(),
        1 => pick(rng, &["all", "baseline", "S0+S4", "all-S3", "S2,tags=4"]).into(),
        _ => policy(rng).replace('\u{0}', "\u{1}").into(),
    }
}
