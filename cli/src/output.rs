//! Standard output and standard error.
//!
//! All output goes through here, so that the command ends well where it cannot be written. A reader that
//! has seen enough, as `head` has, ends the command without a word, as the signal for that would end another
//! program; a full disk ends it with an error. Either way the stack unwinds first, so that whatever was
//! set up is put back: an emulator is ended, a swap device is taken down. Messages on standard error are lost
//! where they cannot be written, so there nothing happens.

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
use console::Term;
use quell_experiments::machines;
use serde::Serialize;
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::memory;
use crate::usage::usage;

/// Writes a line to standard output, as `println!` does.
macro_rules! say {
    () => {
        $crate::output::line(format_args!(""))
    };
    ($($text:tt)*) => {
        $crate::output::line(format_args!($($text)*))
    };
}

/// Writes a line to standard error, as `eprintln!` does, if that is possible.
macro_rules! note {
    ($($text:tt)*) => {
        $crate::output::remark(format_args!($($text)*))
    };
}

pub(crate) use {note, say};

/// What ends the command where standard output cannot be written.
struct Unwritable(io::Error);

/// What a shell says of a program that a closed pipe has ended: 128 and the number of SIGPIPE.
const CLOSED_PIPE: u8 = 141;

/// And of one that Ctrl-C has ended.
pub const INTERRUPTED: u8 = 130;

fn end(error: io::Error) -> ! {
    // Not a panic: nothing is wrong with the program, so no hook has anything to say.
    panic::resume_unwind(Box::new(Unwritable(error)))
}

/// Text that a terminal shows as it is: what would move the cursor, or turn the direction of writing, is replaced. Every
/// string that comes from a file, from another program or from the command line goes through here. Colours pass if
/// `colours` is set: those are our own.
pub fn visible(text: &str, colours: bool) -> Cow<'_, str> {
    let strange = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || (c.is_control() && c != '\n' && c != '\t')
    };
    if !text.contains(strange) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(strange) {
        shown.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = if colours { colour_length(rest) } else { 0 };
        if length > 0 {
            shown.push_str(&rest[..length]);
            rest = &rest[length..];
        } else {
            shown.push(char::REPLACEMENT_CHARACTER);
            let mut left = rest.chars();
            left.next();
            rest = left.as_str();
        }
    }
    shown.push_str(rest);
    shown.into()
}

/// How long the colour is that the text begins with (`ESC [ numbers m`); 0 if it begins with none.
fn colour_length(text: &str) -> usize {
    let Some(numbers) = text.strip_prefix("\u{1b}[") else {
        return 0;
    };
    let end = numbers.find(|c: char| !(c.is_ascii_digit() || c == ';'));
    match end {
        Some(end) if numbers[end..].starts_with('m') => 2 + end + 1,
        Some(_) | None => 0,
    }
}

/// Writes text to standard output.
pub fn write(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(visible(text, true).as_bytes()) {
        end(error);
    }
}

/// Writes text to standard output while a line on the terminal says how far work is: that line comes again below it.
pub fn above_progress(text: &str) {
    let progress = Term::stderr();
    if progress.is_term() {
        // If it cannot be cleared it cannot be seen.
        let _ = progress.clear_line();
    }
    write(text);
}

/// The number of the documents' form.
const SCHEMA: u32 = 1;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    #[serde(flatten)]
    content: &'a T,
}

/// Writes the one document of `--json`, an object, with the number of its schema. Under one number keys are added, and
/// none is renamed or changes its meaning.
///
/// # Errors
/// If it is no JSON.
pub fn document(content: &impl Serialize) -> anyhow::Result<()> {
    let schema = SCHEMA;
    say!(
        "{}",
        serde_json::to_string_pretty(&Document { schema, content })?
    );
    Ok(())
}

/// Writes one of many documents, each a line.
///
/// # Errors
/// If it is no JSON.
pub fn document_line(content: &impl Serialize) -> serde_json::Result<()> {
    let schema = SCHEMA;
    say!("{}", serde_json::to_string(&Document { schema, content })?);
    Ok(())
}

/// The same for an object that is made already.
pub fn object(mut content: serde_json::Value) {
    content["schema"] = SCHEMA.into();
    say!("{content:#}");
}

/// Writes a line to standard output; see [`say`].
pub fn line(text: fmt::Arguments<'_>) {
    write(&format!("{text}\n"));
}

/// Writes a line to standard error; see [`note`].
pub fn remark(text: fmt::Arguments<'_>) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(visible(&format!("{text}\n"), false).as_bytes());
}

/// The error to print, once the system has refused a thread or memory.
static REFUSED: OnceLock<String> = OnceLock::new();

/// The beginning of each error for want of memory.
const WITHOUT_MEMORY: &str = "out of memory";

/// Turns the message of a panic into the error to print, if the system has refused a thread or memory.
fn refused(payload: &(dyn Any + Send)) -> Option<String> {
    let text = payload.downcast_ref::<String>()?;
    let has = |words: [&str; 2]| words.iter().any(|words| text.contains(words));
    // In the words of the standard library, of rayon, and of the C library.
    if has(["failed to spawn thread", "ThreadPoolBuildError"]) {
        return Some(without_threads(text));
    }
    has(["OutOfMemory", "Cannot allocate memory"]).then(|| format!("{WITHOUT_MEMORY}: {text}"))
}

/// What is said where no thread can be made.
pub fn without_threads(why: impl fmt::Display) -> String {
    format!(
        "cannot start another thread ({why}): raise the limit of processes (`ulimit -u`, or pids.max of the control \
         group) or of memory"
    )
}

static ENDS_WITHOUT_MEMORY: AtomicBool = AtomicBool::new(false);

/// From now on a panic for want of memory ends the process at once, with an error and code 1.
pub fn end_without_memory() {
    ENDS_WITHOUT_MEMORY.store(true, Ordering::Relaxed);
}

/// Silences panics that follow from a thread or memory that the system has refused.
fn quiet_about_refusals() {
    let loud = panic::take_hook();
    panic::set_hook(Box::new(move |about| {
        if let Some(why) = refused(about.payload()) {
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

/// Runs the command, and turns what became of standard output and of its threads into how the process ends.
pub fn guarded(command: impl FnOnce() -> ExitCode + panic::UnwindSafe) -> ExitCode {
    quiet_about_refusals();
    let ended = panic::catch_unwind(|| {
        let code = command();
        if let Err(error) = io::stdout().flush() {
            end(error);
        }
        code
    });
    match ended.map_err(|payload| payload.downcast::<Unwritable>()) {
        Ok(code) => code,
        Err(Ok(unwritable)) if unwritable.0.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(CLOSED_PIPE)
        }
        Err(Ok(unwritable)) => {
            note!("error: standard output cannot be written: {}", unwritable.0);
            ExitCode::FAILURE
        }
        Err(Err(panicked)) => match REFUSED.get().cloned().or_else(|| refused(&*panicked)) {
            Some(why) => {
                note!("error: {why}");
                ExitCode::FAILURE
            }
            None => panic::resume_unwind(panicked),
        },
    }
}

/// So many of something, by the name of one.
pub fn several<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {one}{ending}")
}

/// How many columns the terminal has; `None` if standard output is none.
pub fn width() -> Option<usize> {
    let terminal = Term::stdout();
    let (_, columns) = terminal.size_checked()?;
    terminal
        .features()
        .is_attended()
        .then(|| usize::from(columns).max(20))
}

/// Whether to use colours: on terminals that have some, unless `NO_COLOR` is set.
pub fn colour() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let terminal = Term::stdout();
    let features = terminal.features();
    wanted && features.is_attended() && features.colors_supported()
}

/// Text in lines that fit the terminal; those that go on are indented like what follows the first mark.
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

/// Writes a paragraph to standard output, in lines that fit the terminal.
pub fn paragraph(text: impl fmt::Display) {
    let text = text.to_string();
    say!("{}", filled(&visible(&text, false), width()));
}

/// A file that is written when the work is done.
pub struct Destination {
    path: PathBuf,
    option: &'static str,
}

impl Destination {
    /// The file that `option` names, or `name` beside what was built, or here if nothing was.
    ///
    /// # Errors
    /// If it cannot be written: told before the work, which may take long.
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
        // A link that leads to nothing is there, too.
        let there = path.symlink_metadata().is_ok();
        let opened = options.write(true).create(true).truncate(false).open(&path);
        opened.map_err(|error| {
            usage(format_args!(
                "{option} {}: {error}; {option} FILE chooses another place",
                path.display()
            ))
        })?;
        if !there {
            // Only a look: a command that fails leaves nothing behind.
            let _ = std::fs::remove_file(&path);
        }
        Ok(Destination { path, option })
    }

    /// Writes it.
    ///
    /// # Errors
    /// If that fails after all.
    pub fn write(&self, content: &str) -> anyhow::Result<()> {
        self.write_with(|to| to.write_all(content.as_bytes()))
    }

    /// Writes what `content` does.
    ///
    /// # Errors
    /// If that fails after all.
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

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is.
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
            assert!(
                !shown.contains(['\u{1b}', '\u{7}', '\r', '\u{9b}', '\u{202e}']),
                "{shown:?}"
            );
            assert!(
                shown.contains("[2J") && shown.ends_with("d\n\te"),
                "{shown:?}"
            );
        }
        assert_eq!(
            visible("\u{1b}[32mhit\u{1b}[0m", true),
            "\u{1b}[32mhit\u{1b}[0m"
        );
        assert_eq!(visible("\u{1b}[1;31", true), "\u{fffd}[1;31");
        assert!(!visible("\u{1b}[32mhit", false).contains('\u{1b}'));
    }

    #[test]
    fn paragraphs_keep_their_mark_apart() {
        assert_eq!(
            filled("  - one two three", Some(11)),
            "  - one two\n    three"
        );
        assert_eq!(filled("one two three", Some(8)), "one two\nthree");
        assert_eq!(filled("one two three", None), "one two three");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("missing/plot.svg");
        let error = Destination::open("--plot", Some(&inside), "")
            .err()
            .unwrap();
        assert!(error.is::<crate::usage::Usage>());
        assert!(!folder.path().join("missing").exists());
        let good = folder.path().join("plot.svg");
        let destination = Destination::open("--plot", Some(&good), "").unwrap();
        assert!(!good.exists(), "nothing is left before the work is done");
        destination.write("drawn").unwrap();
        assert_eq!(std::fs::read_to_string(good).unwrap(), "drawn");
    }
}
