//! Exit codes, and errors in the user's arguments: one line that names the wrong argument and what to do.

use std::borrow::Cow;

use clap::Command;
use clap::error::{Error, ErrorKind};

/// Exit codes, printed below the help of every command.
pub const EXIT_CODES: &str = "\
Exit codes:
  0      done, and nothing wrong was found
  1      failed, or found a broken contract, a surviving mutant or a missed target
  2      wrong arguments, or a mistake in a file that they name
  3      nothing found, but not everything was searched or measured
  4      measure host could not restore a setting of this host
  128+N  ended by signal N: 130 after Ctrl-C
  `quell record -- COMMAND` ends with the code of a command that failed.";

/// An error in the arguments, or in a file that they name: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Returns an error that the user can correct.
pub fn usage(mistake: impl std::fmt::Display) -> anyhow::Error {
    Usage(mistake.to_string()).into()
}

/// The longest word that we print in full, in characters. Nobody types longer names.
const SHOWN: usize = 200;

/// Replaces control characters except line ends, and shortens words of more than [`SHOWN`] characters.
pub(crate) fn fit(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let words = line.split(' ').map(short);
        words.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn short(word: &str) -> Cow<'_, str> {
    let strange = |character: char| character.is_control();
    if word.len() <= SHOWN && !word.contains(strange) {
        return word.into();
    }
    let all = word.chars().count();
    let mut shown: String = word.chars().take(SHOWN).collect();
    shown = shown.replace(strange, "\u{fffd}");
    if all > SHOWN {
        shown += &format!("... ({all} characters)");
    }
    shown.into()
}

/// Returns an error for the first argument with an invisible control character. We don't check arguments after `--`:
/// they belong to the recorded command.
pub(crate) fn of_controls() -> Option<String> {
    let mut words = std::env::args_os().skip(1).take_while(|word| word != "--");
    let wrong = words.find(|word| word.to_string_lossy().contains(char::is_control))?;
    Some(format!(
        "the argument `{}` has a control character in it, such as an end of line",
        fit(&wrong.to_string_lossy().replace(char::is_control, "\u{fffd}"))
    ))
}

/// Joins the lines of a parser's error into one line.
pub(crate) fn refusal(error: &Error, root: Command) -> String {
    let (command, path) = named(root);
    let help = format!("see `{path} --help`");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        return format!("`{path}` needs a command: <{}>; {help}", names.join("|"));
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        let mut words = std::env::args_os().skip(1);
        let wrong = words.find(|word| word.to_str().is_none()).unwrap_or_default();
        return format!("`{}` is not UTF-8; {help}", wrong.to_string_lossy());
    }
    let text = error.render().to_string();
    let mut said = String::new();
    for line in text.lines().map(str::trim) {
        // The last lines explain usage and help. We add a shorter hint instead.
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if line.is_empty() {
            continue;
        }
        if !said.is_empty() {
            said += if said.ends_with(':') { " " } else { ", " };
        }
        said += line;
    }
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    let said = said
        .replace("invalid digit found in string", "expected a whole number")
        .replace("number would be zero for non-zero type", "expected a number from 1")
        .replace("number too large to fit in target type", "too large a number");
    format!("{}; {help}", fit(&said))
}

/// Returns the subcommand that the process's arguments name, and its path as a person types it.
fn named(root: Command) -> (Command, String) {
    let (mut command, mut path) = (root, String::from("quell"));
    for word in std::env::args_os().skip(1) {
        let Some(next) = command.find_subcommand(&word) else {
            break;
        };
        path = format!("{path} {}", next.get_name());
        command = next.clone();
    }
    (command, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_strange_or_long_is_not_repeated() {
        assert_eq!(fit("no `a\u{1b}[2J`"), "no `a\u{fffd}[2J`");
        let long = fit(&format!("no `{}` here", "x".repeat(100_000)));
        assert!(long.len() < 300 && long.contains("100002 characters"), "{long}");
        assert!(long.starts_with("no `x") && long.ends_with(" here"), "{long}");
    }

    #[test]
    fn what_the_parser_says_becomes_one_line() {
        let parse = |words: &[&str]| {
            let root = Command::new("quell").subcommand(
                Command::new("run")
                    .arg(clap::Arg::new("workload").required(true))
                    .arg(clap::arg!(--cpus <N>).value_parser(clap::value_parser!(u16))),
            );
            let error = root.clone().try_get_matches_from(words).unwrap_err();
            refusal(&error, root)
        };
        for words in [
            &["quell", "run"][..],
            &["quell", "run", "x", "--cpus", "a\nb"],
            &["quell", "run", "x", "--cpsu", "1"],
        ] {
            let said = parse(words);
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(
                said.contains(words.get(3).copied().unwrap_or("<workload>"))
                    || said.contains("a, b"),
                "{said}"
            );
        }
    }
}
