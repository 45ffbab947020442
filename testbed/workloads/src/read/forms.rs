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
            "Loads a word at an address, or, with `bytes`, one at each `stride` (4K) of a range. `order` is ascending, descending, or random with a `count`.",
        ),
        form(
            "write",
            Value,
            &[],
            &["value", "bytes", "stride", "order", "count"],
            "Stores a word, with the same options as `read`. `value` may use `offset`, the distance from the start of the range.",
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
            "Reclaims the pages of a range (MADV_PAGEOUT). Result: how many were reclaimed.",
        ),
        form(
            "remap",
            Value,
            &["bytes"],
            &["to", "into"],
            "Moves the pages of a range elsewhere (mremap). Result: the new address.",
        ),
        form(
            "collapse",
            Value,
            &[],
            &["into"],
            "Collapses the 2 MB around an address into one page (MADV_COLLAPSE). Result: 1 if it did.",
        ),
        form(
            "migrate",
            Value,
            &["bytes", "node"],
            &["into"],
            "Moves the pages of a range to a memory node (move_pages). Result: how many moved.",
        ),
        form(
            "demote",
            Value,
            &[],
            &["into"],
            "Moves that many pages to a slow node. Result: how many moved.",
        ),
        form(
            "reclaim",
            Value,
            &[],
            &["into"],
            "Reclaims that many pages. Result: how many were reclaimed.",
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
        form("enter", Value, &[], &[], "Continues in that process."),
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
            "Writes a file's dirty pages (fdatasync). Result: how many there were.",
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
            "Writes a word of a file (pwrite).",
        ),
        form(
            "file_read",
            Value,
            &["offset"],
            &["into"],
            "Reads a word of a file (pread). Result: its value.",
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
            "Sets a variable of this CPU or a shared word.",
        ),
        form(
            "add",
            Variable,
            &["by"],
            &["into"],
            "Adds to a shared word atomically. Result: its old value.",
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
        form("use", Block, &[], &[], "Performs a block of `[blocks]`."),
        form(
            "barrier",
            True,
            &[],
            &[],
            "Waits until every CPU has reached a barrier.",
        ),
        form(
            "without",
            Value,
            &[],
            &[],
            "From the next barrier on, this many CPUs are not waited for. All other CPUs execute it.",
        ),
        form(
            "begin",
            True,
            &[],
            &[],
            "Waits like `barrier`, then opens the measured window.",
        ),
        form(
            "end",
            True,
            &[],
            &[],
            "Waits like `barrier`, then closes the window and stops the CPUs that stand by.",
        ),
        form(
            "open",
            True,
            &[],
            &[],
            "Opens the window on CPU 0, without waiting for others.",
        ),
        form(
            "close",
            True,
            &[],
            &[],
            "Closes the window on CPU 0, and stops the CPUs that stand by.",
        ),
        form(
            "done",
            Value,
            &[],
            &[],
            "Adds to the work done in the window.",
        ),
        form(
            "bystand",
            Value,
            &[],
            &["asleep"],
            "Stands by until the window closes, and checks that at this interval in nanoseconds. Computes meanwhile, or sleeps if `asleep` is not 0.",
        ),
        form(
            "give_up",
            True,
            &[],
            &[],
            "Ends the run, because another CPU failed.",
        ),
        form(
            "progress",
            Value,
            &["of"],
            &[],
            "Reports on CPU 0 how far the run is, if further than before. Takes no time.",
        ),
    ]
};
