//! Checks whether a run ended well.

use crate::inputs::child::RunEnd;
use crate::inputs::lines::Line;

/// Returns the exit codes that a command line may have.
fn codes(line: &Line) -> &'static [i32] {
    if line.begins_with(&["measure", "host"]) {
        return &[0, 1, 2, 3, 4];
    }
    match line.begins_with(&["explore"]) || line.begins_with(&["merge"]) {
        true => &[0, 1, 2, 3],
        false => &[0, 1, 2],
    }
}

/// Returns the fault in how a run ended, or `None` if it ended well.
pub fn of(line: &Line, ended: &RunEnd) -> Option<String> {
    if let Some(why) = &ended.hung {
        return Some(format!("hung: {why}"));
    }
    if ended.stderr.contains("panicked at") {
        return Some("a panic".into());
    }
    if let Some(signal) = ended.signal() {
        return Some(format!("ended by signal {signal}"));
    }
    // A run that was cut short hasn't shown how it ends.
    let code = ended.code()?;
    if !codes(line).contains(&code) {
        return Some(format!("exit code {code}"));
    }
    match code {
        2 => refusal(line, ended),
        0 => success(line, ended).or_else(|| documents(line, ended)),
        _ if ended.stdout.is_empty() && ended.stderr.is_empty() => {
            Some("failed without a word".into())
        }
        _ => documents(line, ended),
    }
}

/// Checks an error: one line that names the culprit, or one line for each mistake in a file, and no output before.
fn refusal(line: &Line, ended: &RunEnd) -> Option<String> {
    if !ended.stdout.is_empty() {
        return Some("something was done before it was refused".into());
    }
    let mut lines = ended.stderr.lines();
    let Some(first) = lines.next().and_then(|line| line.strip_prefix("error: ")) else {
        return Some("refused, not in a line that begins with `error: `".into());
    };
    // For a file, each mistake has its own line, which begins with the file's name.
    let file = first.split_once(':').map_or(first, |(file, _)| file);
    if !lines.all(|line| line.starts_with(file)) {
        return Some("refused, not in one line".into());
    }
    // The hint about help names no culprit.
    let said = ended.stderr.split("; `quell").next().unwrap_or_default();
    let named = line.culprits().any(|word| said.contains(&word))
        // An error names a missing argument as the help does, or by its option.
        || said.contains('<')
        || said.contains("--")
        || (said.contains("``") || said.contains("''")) && line.words().any(|word| word.trim_end_matches('=').is_empty())
        // An error quotes a blank, a comma, or the replacement of a control character.
        || line.values().any(|value| {
            let value = value.replace(char::is_control, "\u{fffd}");
            said.contains(&format!("`{value}`")) || said.contains(&format!("'{value}'"))
        });
    (!named).then(|| "refused without the culprit's name".into())
}

/// Returns whether the line requests help or the version.
fn asks(line: &Line) -> bool {
    let asks = ["--help", "-h", "--version", "-V"];
    line.words().any(|word| asks.contains(&word.as_str()))
}

/// Checks a success: there must be output, and every path must have been usable.
fn success(line: &Line, ended: &RunEnd) -> Option<String> {
    if ended.stdout.is_empty() {
        return Some("said nothing, and calls it success".into());
    }
    if asks(line) {
        return None;
    }
    let unusable = line.unusable().next()?;
    Some(format!("success with {unusable}, which nothing can be done with"))
}

/// Checks that the output of `--json` is JSON, unless it's help.
fn documents(line: &Line, ended: &RunEnd) -> Option<String> {
    if asks(line) || !line.words().any(|word| word == "--json") || ended.stdout.is_empty() {
        return None;
    }
    let documents = serde_json::Deserializer::from_str(&ended.stdout).into_iter();
    let wrong = documents.into_iter().find_map(|one: Result<serde_json::Value, _>| one.err())?;
    Some(format!("no JSON: {wrong}"))
}
