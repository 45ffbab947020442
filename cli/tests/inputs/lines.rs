//! Draws command lines from the command's own description.

use crate::inputs::files;
use crate::inputs::words::{self, KnownNames, choose, pick};
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command};
use rand::RngExt;
use rand_pcg::Pcg64;
use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

/// A command line.
#[derive(Default)]
pub struct Line {
    words: Vec<OsString>,
    /// Paths that can't be read or written.
    pub unusable: Vec<String>,
}

impl Line {
    /// Creates a command line from the words of this text.
    pub fn of(text: &str) -> Self {
        let words = || text.split(' ');
        let unusable = words().filter(|word| ["missing/x", "/dev/full"].contains(word));
        Line {
            unusable: unusable.map(str::to_owned).collect(),
            words: words().map(OsString::from).collect(),
        }
    }

    pub fn arguments(&self) -> &[OsString] {
        &self.words
    }

    /// Returns whether the line is short enough to start a program. Linux allows 128 KB in a word, and not much more in
    /// all.
    pub fn can_be_typed(&self) -> bool {
        self.words.iter().map(|word| word.len()).sum::<usize>() < 100 << 10
    }

    pub fn begins_with(&self, words: &[&str]) -> bool {
        self.words.iter().zip(words).filter(|(a, b)| *a == *b).count() == words.len()
    }

    pub fn words(&self) -> impl Iterator<Item = String> {
        self.words.iter().map(|word| word.to_string_lossy().into_owned())
    }

    /// Returns the words, each without an option to which a value is attached by `=`.
    pub fn values(&self) -> impl Iterator<Item = String> {
        self.words().map(|word| match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => value.to_owned(),
            _ => word,
        })
    }

    /// Returns the words that an error may name: options, values and their parts.
    pub fn culprits(&self) -> impl Iterator<Item = String> {
        let parts = self.words().flat_map(|word| {
            let parts = word.split(['=', ',', ':', '\n', '\u{1}']).map(str::trim);
            parts.map(str::to_owned).collect::<Vec<_>>()
        });
        // An error shortens long words.
        let begins = parts.map(|part| part.chars().take(100).collect::<String>());
        begins.filter(|part| !part.is_empty())
    }

    /// Returns the line as a person would type it.
    pub fn shown(&self) -> String {
        let short = |word: &OsString| format!(" {word:?}").chars().take(120).collect::<String>();
        let words: String = self.words.iter().map(short).collect();
        format!("quell{words}").chars().take(2000).collect()
    }
}

/// Returns whether we leave this line out, because it's valid and would change the host, disturb others or never end.
fn is_left_out(command: &Command, line: &Line) -> bool {
    // A recording without its own command continues until it's interrupted.
    let endless = |word: String| {
        let option = word.split('=').next().unwrap_or_default();
        ["--all", "--pid", "-a", "-p"].contains(&option)
    };
    let records = line.begins_with(&["record"]) && line.words().any(endless);
    if !(records || line.begins_with(&["measure"]) || line.begins_with(&["top"])) {
        return false;
    }
    let quell = std::iter::once(OsString::from("quell"));
    command.clone().try_get_matches_from(quell.chain(line.words.iter().cloned())).is_ok()
}

/// Draws a command line, or `None` if it's one that we leave out.
pub fn draw(rng: &mut Pcg64, root: &Command, known: &KnownNames) -> Option<Line> {
    let mut line = Line::default();
    let mut command = root;
    loop {
        let all: Vec<_> =
            command.get_subcommands().filter(|one| one.get_name() != "help").collect();
        match choose(rng, &all).copied() {
            Some(next) if rng.random_range(0..12) > 0 => {
                line.words.push(next.get_name().into());
                command = next;
            }
            _ => break,
        }
    }
    arguments(rng, command, known, &mut line);
    if rng.random_range(0..16) == 0 {
        let at = rng.random_range(0..=line.words.len());
        let strange = ["--nonsense", "-x", "--", "extra", "--json=yes", "--help", "", "-"];
        let strange = pick(rng, &strange);
        line.words.insert(at, strange.into());
    }
    (!is_left_out(root, &line)).then_some(line)
}

fn arguments(rng: &mut Pcg64, command: &Command, known: &KnownNames, line: &mut Line) {
    let all: Vec<_> = command.get_arguments().filter(|argument| !asks(argument)).collect();
    // We draw only a few options, because otherwise nearly all lines contain a mistake.
    let one_in = (all.len() / 2).max(2);
    for argument in all {
        let wanted = match argument.is_required_set() {
            true => rng.random_range(0..20) > 0,
            false => rng.random_range(0..one_in) == 0,
        };
        let times = match argument.get_action() {
            _ if !wanted => 0,
            ArgAction::Append if rng.random_range(0..40) == 0 => 2000,
            ArgAction::Append => rng.random_range(1..4),
            _ if rng.random_range(0..60) == 0 => 2,
            _ => 1,
        };
        for _ in 0..times {
            one(rng, argument, known, line);
        }
    }
}

/// Returns whether the argument only prints something about the command, for example `--help`.
fn asks(argument: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(argument.get_action(), Help | HelpShort | HelpLong | Version)
}

fn one(rng: &mut Pcg64, argument: &Arg, known: &KnownNames, line: &mut Line) {
    let name = argument.get_long().map(|name| format!("--{name}"));
    if !argument.get_action().takes_values() {
        line.words.extend(name.map(OsString::from));
        return;
    }
    let mut value = value(rng, argument, known, line);
    if let Some(delimiter) = argument.get_value_delimiter() {
        for _ in 0..rng.random_range(0..3) {
            value.push(delimiter.to_string());
            value.push(self::value(rng, argument, known, line));
        }
    }
    match name {
        Some(name) if rng.random::<bool>() => {
            let mut word = OsString::from(name + "=");
            word.push(value);
            line.words.push(word);
        }
        name => {
            line.words.extend(name.map(OsString::from));
            line.words.push(value);
        }
    }
}

/// Returns whether the parser returns a `T`.
fn is<T: 'static>(parser: &ValueParser) -> bool {
    parser.type_id() == TypeId::of::<T>()
}

fn value(rng: &mut Pcg64, argument: &Arg, known: &KnownNames, line: &mut Line) -> OsString {
    let parser = argument.get_value_parser();
    let shown = argument.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
    let of: Vec<_> = argument.get_possible_values();
    if !of.is_empty() && rng.random_range(0..8) > 0 {
        return choose(rng, &of).expect("some").get_name().into();
    }
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<f64>(),
    ];
    if numbers.iter().any(|number| parser.type_id() == *number) {
        return words::number(rng).into();
    }
    if is::<quell::Policy>(parser) {
        return words::policy(rng);
    }
    let takes_path = is::<PathBuf>(parser) || shown.contains("FILE") || shown.contains("DIR");
    // Machines and programs are names or files.
    if takes_path || rng.random_range(0..3) == 0 {
        let (path, usable) = files::path(rng, shown.contains("DIR"));
        if !usable && is::<PathBuf>(parser) {
            line.unusable.push(path.to_string_lossy().into_owned());
        }
        return path;
    }
    words::text(rng, known, argument.get_id().as_str(), shown)
}

#[test]
fn a_recording_that_nothing_ends_is_not_drawn() {
    let command = quell_cli::command();
    let left_out = |line| is_left_out(&command, &Line::of(line));
    assert!(left_out("record --all --html=/dev/null"));
    assert!(!left_out("record --all --nonsense"), "it is refused");
    assert!(!left_out("record -- true"), "it ends with its command");
}
