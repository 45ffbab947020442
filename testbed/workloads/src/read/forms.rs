//! Every form of statement there is: what readers go by, and what documents list.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// What stands behind the first word of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Main {
    /// An expression.
    Value,
    /// The name of a variable, which the statement sets.
    Variable,
    /// `true`.
    True,
    /// The name of a block.
    Block,
}

/// One form of statement, as files write it and as documents list it.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The word that it begins with.
    pub word: &'static str,
    pub(super) main: Main,
    /// Keys that it must have.
    pub needs: &'static [&'static str],
    /// Keys that it may have.
    pub takes: &'static [&'static str],
    /// What it does, in a sentence.
    pub meaning: &'static str,
}

impl Statement {
    /// A line of the table in `docs/workloads.md`.
    pub fn row(&self) -> String {
        let of = match self.main {
            Main::Value => "value",
            Main::Variable => "variable",
            Main::True => "`true`",
            Main::Block => "block",
        };
        let needs = self.needs.iter().map(|key| format!("`{key}`"));
        let takes = self.takes.iter().map(|key| format!("[`{key}`]"));
        let keys: Vec<_> = needs.chain(takes).collect();
        format!(
            "| `{}` | {of} | {} | {} |",
            self.word,
            keys.join(", "),
            self.meaning
        )
    }
}

const fn form(
    word: &'static str,
    main: Main,
    needs: &'static [&'static str],
    takes: &'static [&'static str],
    meaning: &'static str,
) -> Statement {
    Statement {
        word,
        main,
        needs,
        takes,
        meaning,
    }
}

/// Every statement there is.
pub const STATEMENTS: &[Statement] = {
    use Main::*;
    &[
        form(
            "read",
            Value,
            &[],
            &["bytes", "stride", "order", "count"],
            "Loads a word at an address; with `bytes`, one at each `stride` (4K) of a range: `order` is ascending, descending, or random with a `count`.",
        ),
        form(
            "write",
            Value,
            &[],
            &["value", "bytes", "stride", "order", "count"],
            "Stores a word, likewise; `value` may use `offset`, how far from the range's beginning.",
        ),
        form(
            "stream_read",
            Value,
            &["bytes"],
            &[],
            "Loads every cache line of a range in order.",
        ),
        form(
            "stream_write",
            Value,
            &["bytes"],
            &["value"],
            "Stores to every cache line of a range in order.",
        ),
        form(
            "map",
            Variable,
            &["bytes"],
            &["at", "page", "protection", "shared", "private", "offset"],
            "Maps memory and sets the variable to its address: anonymous in pages of up to `page` (4K), or a `shared` or `private` file from `offset` on; `at` replaces what is there. `protection` is none, r, rw or rx.",
        ),
        form("unmap", Value, &["bytes"], &[], "Unmaps a range (munmap)."),
        form(
            "protect",
            Value,
            &["bytes", "protection"],
            &[],
            "Changes what is allowed in a range (mprotect).",
        ),
        form(
            "discard",
            Value,
            &["bytes"],
            &[],
            "Drops the pages of a range (MADV_DONTNEED).",
        ),
        form(
            "page_out",
            Value,
            &["bytes"],
            &["into"],
            "Reclaims the pages of a range (MADV_PAGEOUT); how many went.",
        ),
        form(
            "remap",
            Value,
            &["bytes"],
            &["to", "into"],
            "Moves the pages of a range elsewhere (mremap); where to.",
        ),
        form(
            "collapse",
            Value,
            &[],
            &["into"],
            "Makes one 2 MB page of the 2 MB around an address (MADV_COLLAPSE); whether it was done.",
        ),
        form(
            "migrate",
            Value,
            &["bytes", "node"],
            &["into"],
            "Moves the pages of a range to a memory node (move_pages); how many moved.",
        ),
        form(
            "demote",
            Value,
            &[],
            &["into"],
            "Moves that many pages to a slow node; how many moved.",
        ),
        form(
            "reclaim",
            Value,
            &[],
            &["into"],
            "Reclaims that many pages; how many went.",
        ),
        form(
            "spawn",
            Variable,
            &[],
            &[],
            "Makes an empty process and sets the variable to its number.",
        ),
        form(
            "fork",
            Variable,
            &[],
            &[],
            "Makes a copy of this process and sets the variable to its number.",
        ),
        form("enter", Value, &[], &[], "Goes on in that process."),
        form("exit", Value, &[], &[], "Ends a process that no CPU runs."),
        form(
            "create",
            Variable,
            &["bytes"],
            &[],
            "Makes a file of zeros and sets the variable to its number.",
        ),
        form(
            "sync",
            Value,
            &[],
            &["into"],
            "Writes a file's dirty pages (fdatasync); how many there were.",
        ),
        form(
            "truncate",
            Value,
            &["bytes"],
            &[],
            "Cuts or extends a file.",
        ),
        form(
            "file_write",
            Value,
            &["offset", "value"],
            &[],
            "Writes a word of a file by a call (pwrite).",
        ),
        form(
            "file_read",
            Value,
            &["offset"],
            &["into"],
            "Reads a word of a file by a call (pread); what it held.",
        ),
        form(
            "sleep",
            Value,
            &[],
            &[],
            "Sleeps for that many nanoseconds.",
        ),
        form("nothing", True, &[], &[], "Enters and leaves the kernel."),
        form(
            "compute",
            Value,
            &[],
            &[],
            "Computes for that many nanoseconds without touching memory.",
        ),
        form(
            "let",
            Variable,
            &["be"],
            &[],
            "Sets a variable of this CPU's or a shared word.",
        ),
        form(
            "add",
            Variable,
            &["by"],
            &["into"],
            "Adds to a shared word in one step; what it held before.",
        ),
        form(
            "if",
            Value,
            &["then"],
            &["else"],
            "Performs `then` unless the value is 0, else `else`.",
        ),
        form(
            "while",
            Value,
            &["do"],
            &[],
            "Performs `do` as long as the value is not 0.",
        ),
        form(
            "repeat",
            Value,
            &["do"],
            &["as"],
            "Performs `do` that many times; `as` names a variable that counts from 0.",
        ),
        form(
            "for",
            Variable,
            &["below", "do"],
            &["from", "by"],
            "Performs `do` with the variable at `from` (0), then `by` (1) more, as long as it is less than `below`.",
        ),
        form(
            "use",
            Block,
            &[],
            &[],
            "Performs a block of `[blocks]`, as if it stood here.",
        ),
        form(
            "barrier",
            True,
            &[],
            &[],
            "Waits until every CPU has come to a barrier.",
        ),
        form(
            "without",
            Value,
            &[],
            &[],
            "From the next barrier on so many CPUs do not come any more; all others say so.",
        ),
        form(
            "begin",
            True,
            &[],
            &[],
            "A barrier, after which the measured window is open.",
        ),
        form(
            "end",
            True,
            &[],
            &[],
            "A barrier that closes the window, and stops the CPUs that stand by.",
        ),
        form(
            "open",
            True,
            &[],
            &[],
            "CPU 0 opens the window, whatever the others do.",
        ),
        form(
            "close",
            True,
            &[],
            &[],
            "CPU 0 closes the window, and stops the CPUs that stand by.",
        ),
        form(
            "done",
            Value,
            &[],
            &[],
            "So much more was done in the window.",
        ),
        form(
            "bystand",
            Value,
            &[],
            &["asleep"],
            "Is there until the window closes and looks every so many nanoseconds; computes, or sleeps if `asleep` is not 0.",
        ),
        form(
            "give_up",
            True,
            &[],
            &[],
            "Ends this CPU's part and the run, because another CPU failed.",
        ),
        form(
            "progress",
            Value,
            &["of"],
            &[],
            "CPU 0 tells its watchers how far the run is, if that is further than before. Takes no time.",
        ),
    ]
};
