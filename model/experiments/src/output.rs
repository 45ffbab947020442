//! Standard output and standard error.
//!
//! All output is written by this module, so that the command ends properly if output can't be written. If the reader
//! closes the pipe, as `head` does, the command ends silently and with the exit code of a program that SIGPIPE ended. A
//! full disk ends it with an error. Either way we unwind the stack first, which undoes changes to the host. For
//! example, it ends an emulator or removes a swap device. If standard error can't be written, its messages are lost and
//! the command continues.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use console::{AnsiCodeIterator, Term};
use serde::Serialize;
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::machines;
use crate::memory;
use crate::table::Table;
use crate::usage::usage;

/// Prints a line to standard output, like `println!`.
#[macro_export]
macro_rules! say {
    () => {
        $crate::output::line(format_args!(""))
    };
    ($($text:tt)*) => {
        $crate::output::line(format_args!($($text)*))
    };
}

/// Prints a line to standard error, like `eprintln!`, if possible.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => {
        $crate::output::remark(format_args!($($text)*))
    };
}

pub use {note, say};

/// The payload of the unwinding that ends the command if standard output can't be written.
struct WriteFailure(io::Error);

/// The exit code that a shell reports for a program ended by a closed pipe: 128 plus the number of SIGPIPE.
const CLOSED_PIPE: u8 = 141;

/// The exit code that a shell reports for a program ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

fn end(error: io::Error) -> ! {
    // We don't panic: the program isn't wrong, so the panic hook mustn't print anything.
    panic::resume_unwind(Box::new(WriteFailure(error)))
}

/// Replaces characters that move a terminal's cursor or change the direction of writing. Every string from a file, from
/// another program or from the command line passes through this function. If `colours` is set, colours stay: only for
/// text that has passed before and got our own colours since.
pub fn visible(text: &str, colours: bool) -> Cow<'_, str> {
    let strange = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || (c.is_control() && c != '\n' && c != '\t')
    };
    if !text.contains(strange) {
        return text.into();
    }
    let parts = AnsiCodeIterator::new(text).map(|(part, _)| match colours && is_colour(part) {
        true => part.into(),
        false => part.replace(strange, "\u{fffd}"),
    });
    parts.collect::<String>().into()
}

/// Returns whether a text is a colour: `ESC [ numbers m`.
fn is_colour(text: &str) -> bool {
    let numbers = text.strip_prefix("\u{1b}[").and_then(|text| text.strip_suffix('m'));
    numbers.is_some_and(|numbers| numbers.chars().all(|c| c.is_ascii_digit() || c == ';'))
}

/// Prints text to standard output.
pub fn write(text: &str) {
    write_bytes(visible(text, false).as_bytes());
}

/// Prints text with colours of ours. Its other parts have passed [`visible`] before.
pub fn write_coloured(text: &str) {
    write_bytes(visible(text, true).as_bytes());
}

fn write_bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(bytes) {
        end(error);
    }
}

/// Prints a table to standard output, in the form for its terminal or for a pipe.
pub fn table(table: &Table) {
    write_coloured(&format!("{table}\n"));
}

/// Prints text above the terminal's progress line, which is then printed again.
pub fn above_progress(text: &str) {
    let progress = Term::stderr();
    if progress.is_term() {
        // If we can't clear the line, nobody sees it.
        let _ = progress.clear_line();
    }
    write_coloured(text);
}

/// The version of the documents' format.
const SCHEMA: u32 = 1;

/// The document that `--json` prints.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// Prints the one document of `--json`, an object, with the number of its schema. We may add keys under the same
/// number, but we never rename a key or change its meaning.
///
/// # Errors
/// If the content can't be written as JSON.
pub fn document(content: &impl Serialize) -> anyhow::Result<()> {
    let schema = SCHEMA;
    say!("{}", serde_json::to_string_pretty(&Document { schema, content })?);
    Ok(())
}

/// Prints one of many documents, each on its own line.
///
/// # Errors
/// If the content can't be written as JSON.
pub fn document_line(content: &impl Serialize) -> serde_json::Result<()> {
    let schema = SCHEMA;
    say!("{}", serde_json::to_string(&Document { schema, content })?);
    Ok(())
}

/// Prints a document that already is a JSON object.
pub fn object(mut content: serde_json::Value) {
    content["schema"] = SCHEMA.into();
    say!("{content:#}");
}

/// Prints a line to standard output; see [`say`].
pub fn line(text: fmt::Arguments<'_>) {
    write(&format!("{text}\n"));
}

/// Prints a line to standard error; see [`note`].
pub fn remark(text: fmt::Arguments<'_>) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(visible(&format!("{text}\n"), false).as_bytes());
}

/// The error to print after the system has refused a thread or memory.
static REFUSED: OnceLock<String> = OnceLock::new();

/// The beginning of each error about missing memory.
const WITHOUT_MEMORY: &str = "out of memory";

/// Returns the error to print if a panic's message shows that the system refused a thread or memory.
fn resource_error(payload: &(dyn Any + Send)) -> Option<String> {
    let text = payload.downcast_ref::<String>()?;
    let has = |words: [&str; 2]| words.iter().any(|words| text.contains(words));
    // The standard library, rayon and the C library use these words.
    if has(["failed to spawn thread", "ThreadPoolBuildError"]) {
        return Some(without_threads(text));
    }
    has(["OutOfMemory", "Cannot allocate memory"]).then(|| format!("{WITHOUT_MEMORY}: {text}"))
}

/// Returns the error to print if no thread can be started.
pub fn without_threads(why: impl fmt::Display) -> String {
    format!(
        "cannot start another thread ({why}): raise the limit of processes (`ulimit -u`, or pids.max of the control \
         group) or of memory"
    )
}

static ENDS_WITHOUT_MEMORY: AtomicBool = AtomicBool::new(false);

/// Makes a panic for lack of memory end the process at once, with code 1.
pub fn end_without_memory() {
    ENDS_WITHOUT_MEMORY.store(true, Ordering::Relaxed);
}

/// Silences panics that follow after the system has refused a thread or memory.
fn quiet_about_refusals() {
    let loud = panic::take_hook();
    panic::set_hook(Box::new(move |about| {
        if let Some(why) = resource_error(about.payload()) {
            if why.starts_with(WITHOUT_MEMORY) && ENDS_WITHOUT_MEMORY.load(Ordering::Relaxed) {
                memory::fail(format_args!("error: {why}"));
            }
            REFUSED.get_or_init(|| why);
        }
        if REFUSED.get().is_none() {
            loud(about);
        }
    }));
}

/// Runs the command and returns its exit code. Prints an error if standard output couldn't be written, or if the system
/// refused a thread or memory.
pub fn guarded(command: impl FnOnce() -> ExitCode + panic::UnwindSafe) -> ExitCode {
    quiet_about_refusals();
    let ended = panic::catch_unwind(|| {
        let code = command();
        if let Err(error) = io::stdout().flush() {
            end(error);
        }
        code
    });
    match ended.map_err(|payload| payload.downcast::<WriteFailure>()) {
        Ok(code) => code,
        Err(Ok(unwritable)) if unwritable.0.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(CLOSED_PIPE)
        }
        Err(Ok(unwritable)) => {
            note!("error: standard output cannot be written: {}", unwritable.0);
            ExitCode::FAILURE
        }
        Err(Err(panicked)) => match REFUSED.get().cloned().or_else(|| resource_error(&*panicked)) {
            Some(why) => {
                note!("error: {why}");
                ExitCode::FAILURE
            }
            None => panic::resume_unwind(panicked),
        },
    }
}

/// Formats a number with a noun, for example "1 run" or "2 runs".
pub fn several<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {one}{ending}")
}

/// Returns the terminal's width in columns, at least 20; `None` if there is no terminal.
pub fn width() -> Option<usize> {
    let terminal = Term::stdout();
    let (_, columns) = terminal.size_checked()?;
    terminal.features().is_attended().then(|| usize::from(columns).max(20))
}

/// Returns whether to use colours: if the terminal has colours and `NO_COLOR` isn't set.
pub fn colour() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let terminal = Term::stdout();
    let features = terminal.features();
    wanted && features.is_attended() && features.colors_supported()
}

/// Wraps text to the terminal's width. Continuation lines are indented to the text after a mark such as `-`.
pub fn filled(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let blanks = text.len() - text.trim_start().len();
    let marked = text.trim_start().starts_with(['-', '!', '*', '+', '|']);
    let indent = " ".repeat(blanks + if marked { 2 } else { 0 });
    let options = Options::new(width)
        .break_words(false)
        .subsequent_indent(&indent)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

/// Prints a paragraph to standard output, wrapped to the terminal's width.
pub fn paragraph(text: impl fmt::Display) {
    let text = text.to_string();
    say!("{}", filled(&visible(&text, false), width()));
}

/// A file that we write at the end of the work.
pub struct Destination {
    path: PathBuf,
    option: &'static str,
}

impl Destination {
    /// Checks that we can write the file that `option` names.
    ///
    /// If `path` is `None`, the file is `name` in `target/`, or in the current directory if there is no `target/`.
    ///
    /// # Errors
    /// If the file can't be written. We report this before the work, which may take long.
    pub fn open(option: &'static str, path: Option<&Path>, name: &str) -> anyhow::Result<Self> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            None if Path::new("target").is_dir() => Path::new("target").join(name),
            None => name.into(),
        };
        if let Some(why) = machines::waits_for_others(&path) {
            return Err(usage(format_args!("{option} {}: {why}", path.display())));
        }
        let mut options = std::fs::OpenOptions::new();
        // A dangling link exists, too.
        let there = path.symlink_metadata().is_ok();
        let opened = options.write(true).create(true).truncate(false).open(&path);
        opened.map_err(|error| {
            usage(format_args!(
                "{option} {}: {error}; name another file with {option} FILE",
                path.display()
            ))
        })?;
        if !there {
            // This was only a check: a command that fails leaves nothing behind.
            let _ = std::fs::remove_file(&path);
        }
        Ok(Destination { path, option })
    }

    /// Writes the file. Its text must be [`visible`], too: a picture or page with other characters is no XML.
    ///
    /// # Errors
    /// If that fails in spite of the check.
    pub fn write(&self, content: &str) -> anyhow::Result<()> {
        self.write_with(|to| to.write_all(visible(content, false).as_bytes()))
    }

    /// Writes the file with the function `content`.
    ///
    /// # Errors
    /// If that fails in spite of the check.
    pub fn write_with(
        &self,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let written = File::create(&self.path).and_then(|file| {
            let mut file = BufWriter::new(file);
            content(&mut file)?;
            file.flush()
        });
        written.with_context(|| format!("{} {}", self.option, self.path.display()))
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's path as text.
    pub fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_cannot_steer_a_terminal() {
        let clear = "a\u{1b}[2J\u{1b}]0;title\u{7}b\rc\u{9b}1m\u{202e}d\n\te";
        for colours in [false, true] {
            let shown = visible(clear, colours);
            assert!(!shown.contains(['\u{1b}', '\u{7}', '\r', '\u{9b}', '\u{202e}']), "{shown:?}");
            assert!(shown.contains("[2J") && shown.ends_with("d\n\te"), "{shown:?}");
        }
        assert_eq!(visible("\u{1b}[32mhit\u{1b}[0m", true), "\u{1b}[32mhit\u{1b}[0m");
        assert_eq!(visible("\u{1b}[1;31", true), "\u{fffd}[1;31");
        assert!(!visible("\u{1b}[32mhit", false).contains('\u{1b}'));
    }

    #[test]
    fn paragraphs_keep_their_mark_apart() {
        assert_eq!(filled("  - one two three", Some(11)), "  - one two\n    three");
        assert_eq!(filled("one two three", Some(8)), "one two\nthree");
        assert_eq!(filled("one two three", None), "one two three");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("missing/plot.svg");
        let error = Destination::open("--plot", Some(&inside), "").err().unwrap();
        assert!(error.is::<crate::usage::Usage>());
        assert!(!folder.path().join("missing").exists());
        let good = folder.path().join("plot.svg");
        let destination = Destination::open("--plot", Some(&good), "").unwrap();
        assert!(!good.exists(), "nothing is left before the work is done");
        destination.write("drawn").unwrap();
        assert_eq!(std::fs::read_to_string(good).unwrap(), "drawn");
    }
}
