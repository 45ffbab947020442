//! Whether a run has ended well.

use crate::inputs::child::Ended;
use crate::inputs::lines::Line;

/// Codes that the command's help names, by the first two words of the command line.
fn codes(line: &Line) -> &'static [i32] {
    match line.begins_with(&["measure", "host"]) {
        true => &[0, 1, 2, 3, 4],
        false => &[0, 1, 2],
    }
}

/// What is wrong with how the run of a command line has ended; `None` if nothing is.
pub fn of(line: &Line, ended: &Ended) -> Option<String> {
    if let Some(why) = &ended.hung {
        return Some(format!("hung: {why}"));
    }
    if ended.stderr.contains("panicked at") {
        return Some("a panic".into());
    }
    if let Some(signal) = ended.signal() {
        return Some(format!("ended by signal {signal}"));
    }
    // One that was cut short has not shown how it ends.
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

/// A refusal is one line that names the culprit, or one for each mistake in a file, before anything was done.
fn refusal(line: &Line, ended: &Ended) -> Option<String> {
    if !ended.stdout.is_empty() {
        return Some("something was done before it was refused".into());
    }
    let mut lines = ended.stderr.lines();
    let Some(first) = lines.next().and_then(|line| line.strip_prefix("error: ")) else {
        return Some("refused, not in a line that begins with `error: `".into());
    };
    // Of a file, each mistake has a line, which begins with the file's name.
    let file = first.split_once(':').map_or(first, |(file, _)| file);
    if !lines.all(|line| line.starts_with(file)) {
        return Some("refused, not in one line".into());
    }
    // Where more help is to be had names nothing.
    let said = ended.stderr.split("; `quell").next().unwrap_or_default();
    let named = line.culprits().any(|word| said.contains(&word))
        // What is missing is named as the help names it, or by its option.
        || said.contains('<')
        || said.contains("--")
        || (said.contains("``") || said.contains("''")) && line.words().any(|word| word.trim_end_matches('=').is_empty())
        // A blank, a comma or what stands for a control character is between quotes.
        || line.values().any(|value| {
            let value = value.replace(char::is_control, "\u{fffd}");
            said.contains(&format!("`{value}`")) || said.contains(&format!("'{value}'"))
        });
    (!named).then(|| "refused without the culprit's name".into())
}

/// Whether it is help, or the version, that is asked for.
fn asks(line: &Line) -> bool {
    let asks = ["--help", "-h", "--version", "-V"];
    line.words().any(|word| asks.contains(&word.as_str()))
}

/// Something was done, and with all that was given.
fn success(line: &Line, ended: &Ended) -> Option<String> {
    if ended.stdout.is_empty() {
        return Some("said nothing, and calls it success".into());
    }
    if asks(line) {
        return None;
    }
    let unusable = line.unusable().next()?;
    Some(format!(
        "success with {unusable}, which nothing can be done with"
    ))
}

/// What `--json` prints is JSON, but for help.
fn documents(line: &Line, ended: &Ended) -> Option<String> {
    if asks(line) || !line.words().any(|word| word == "--json") || ended.stdout.is_empty() {
        return None;
    }
    let documents = serde_json::Deserializer::from_str(&ended.stdout).into_iter();
    let wrong = documents
        .into_iter()
        .find_map(|one: Result<serde_json::Value, _>| one.err())?;
    Some(format!("no JSON: {wrong}"))
}
