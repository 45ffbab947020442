//! The table of statement forms, which readers, performers and documents share.
//!
//! A statement that is one system call needs only its row here: its keys in the order of the arguments, and a function
//! that builds the call. To add such a call, add its row. For example, `protect` is one.

use super::statement::{Access, Fields};
use crate::script::{CallBuilder, Op};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use quell_vm::Call;

/// The kind of value after the statement's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MainArgument {
    /// An expression.
    Value,
    /// The name of a variable, which the statement sets.
    Variable,
    /// `true`.
    True,
    /// The name of a block.
    Block,
}

/// The conversion of a statement's keys to an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatementKind {
    /// Contains other statements, and becomes jumps around them.
    Control(BlockKind),
    /// One operation.
    Operation(fn(&mut Fields<'_, '_, '_, '_>) -> Op),
    /// A system call with numbers as arguments and result.
    SystemCall(CallBuilder),
}

/// The statements that contain others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockKind {
    If,
    While,
    Repeat,
    For,
    Use,
}

/// A form of statement of workload files.
///
/// The reader and the documentation share this description.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// The key that identifies the statement.
    pub word: &'static str,
    pub(super) main: MainArgument,
    /// The other required keys.
    pub needs: &'static [&'static str],
    /// The optional keys.
    pub takes: &'static [&'static str],
    /// The statement's effect, in a sentence.
    pub meaning: &'static str,
    pub(super) reads: StatementKind,
}

impl Statement {
    /// Returns whether the statement may have this key.
    pub(super) fn has(&self, key: &str) -> bool {
        key == self.word || self.needs.contains(&key) || self.takes.contains(&key)
    }

    /// Returns the keys of a call's arguments in their order: the statement's own word, then the others.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &'static str> {
        let word = match self.main {
            MainArgument::Value => Some(self.word),
            MainArgument::Variable | MainArgument::True | MainArgument::Block => None,
        };
        let others = self.needs.iter().chain(self.takes).copied();
        word.into_iter().chain(others.filter(|&key| key != "into"))
    }

    /// Returns the statement's row of the table in `docs/workloads.md`.
    pub fn row(&self) -> String {
        let of = match self.main {
            MainArgument::Value => "value",
            MainArgument::Variable => "variable",
            MainArgument::True => "`true`",
            MainArgument::Block => "block",
        };
        let needs = self.needs.iter().map(|key| format!("`{key}`"));
        let takes = self.takes.iter().map(|key| format!("[`{key}`]"));
        let keys: Vec<_> = needs.chain(takes).collect();
        format!("| `{}` | {of} | {} | {} |", self.word, keys.join(", "), self.meaning)
    }
}

/// The beginning of a row: the word, the kind of its value, the other required keys, the optional keys.
type Head = (&'static str, MainArgument, &'static [&'static str], &'static [&'static str]);

const fn form(head: Head, meaning: &'static str, reads: StatementKind) -> Statement {
    let (word, main, needs, takes) = head;
    Statement { word, main, needs, takes, meaning, reads }
}

/// All forms of statements.
pub const STATEMENTS: &[Statement] = {
    use MainArgument::*;
    use StatementKind::{Control, Operation, SystemCall};
    &[
        form(
            ("read", Value, &[], &["bytes", "stride", "order", "count"]),
            "Loads a word at an address, or, with `bytes`, one at each `stride` (4K) of a range. `order` is ascending, descending, or random with a `count`.",
            Operation(|fields| fields.access(Access::Load)),
        ),
        form(
            ("write", Value, &[], &["value", "bytes", "stride", "order", "count"]),
            "Stores a word, with the same options as `read`. `value` may use `offset`, the distance from the start of the range.",
            Operation(|fields| fields.access(Access::Store)),
        ),
        form(
            ("stream_read", Value, &["bytes"], &[]),
            "Loads every cache line of a range in order.",
            Operation(|fields| fields.stream(Access::Load)),
        ),
        form(
            ("stream_write", Value, &["bytes"], &["value"]),
            "Stores to every cache line of a range in order.",
            Operation(|fields| fields.stream(Access::Store)),
        ),
        form(
            (
                "map",
                Variable,
                &["bytes"],
                &["at", "page", "protection", "shared", "private", "offset"],
            ),
            "Maps memory and sets the variable to its address: anonymous in pages of up to `page` (4K), or a `shared` or `private` file from `offset` on; `at` replaces earlier mappings. `protection` is none, r, rw or rx.",
            Operation(|fields| fields.map()),
        ),
        form(
            ("unmap", Value, &["bytes"], &[]),
            "Unmaps a range (munmap).",
            SystemCall(|of| of.range().map(|(address, bytes)| Call::Unmap { address, bytes })),
        ),
        form(
            ("protect", Value, &["bytes", "protection"], &[]),
            "Changes the protection of a range (mprotect).",
            Operation(|fields| Op::Protect {
                address: fields.value("protect"),
                bytes: fields.value("bytes"),
                protection: fields.protection(),
            }),
        ),
        form(
            ("discard", Value, &["bytes"], &[]),
            "Drops the pages of a range (MADV_DONTNEED).",
            SystemCall(|of| of.range().map(|(address, bytes)| Call::Discard { address, bytes })),
        ),
        form(
            ("page_out", Value, &["bytes"], &["into"]),
            "Reclaims the pages of a range (MADV_PAGEOUT). Result: how many were reclaimed.",
            SystemCall(|of| of.range().map(|(address, bytes)| Call::PageOut { address, bytes })),
        ),
        form(
            ("remap", Value, &["bytes"], &["to", "into"]),
            "Moves the pages of a range elsewhere (mremap). Result: the new address.",
            SystemCall(|of| {
                let (address, bytes) = of.range()?;
                let to = of.address_if_given(2, bytes)?;
                Ok(Call::Remap { address, bytes, to })
            }),
        ),
        form(
            ("collapse", Value, &[], &["into"]),
            "Collapses the 2 MB around an address into one page (MADV_COLLAPSE). Result: 1 if it did.",
            SystemCall(|of| Ok(Call::Collapse { address: of.address()? })),
        ),
        form(
            ("migrate", Value, &["bytes", "node"], &["into"]),
            "Moves the pages of a range to a memory node (move_pages). Result: how many moved.",
            SystemCall(|of| {
                let ((address, bytes), node) = (of.range()?, of.node(2)?);
                Ok(Call::Migrate { address, bytes, node })
            }),
        ),
        form(
            ("demote", Value, &[], &["into"]),
            "Moves that many pages to a slow node. Result: how many moved.",
            SystemCall(|of| Ok(Call::Demote { pages: of.number(0) })),
        ),
        form(
            ("reclaim", Value, &[], &["into"]),
            "Reclaims that many pages. Result: how many were reclaimed.",
            SystemCall(|of| Ok(Call::Reclaim { pages: of.number(0) })),
        ),
        form(
            ("spawn", Variable, &[], &[]),
            "Makes an empty process and sets the variable to its number.",
            SystemCall(|_| Ok(Call::Spawn)),
        ),
        form(
            ("fork", Variable, &[], &[]),
            "Makes a copy of this process and sets the variable to its number.",
            SystemCall(|_| Ok(Call::Fork)),
        ),
        form(
            ("enter", Value, &[], &[]),
            "Continues in that process.",
            SystemCall(|of| Ok(Call::Enter { process: of.process()? })),
        ),
        form(
            ("exit", Value, &[], &[]),
            "Ends a process that no CPU runs.",
            SystemCall(|of| Ok(Call::Exit { process: of.process()? })),
        ),
        form(
            ("create", Variable, &["bytes"], &[]),
            "Makes a file of zeros and sets the variable to its number.",
            SystemCall(|of| Ok(Call::Create { bytes: of.number(0) })),
        ),
        form(
            ("sync", Value, &[], &["into"]),
            "Writes a file's dirty pages (fdatasync). Result: how many there were.",
            SystemCall(|of| Ok(Call::Sync { file: of.file()? })),
        ),
        form(
            ("truncate", Value, &["bytes"], &[]),
            "Cuts or extends a file.",
            SystemCall(|of| Ok(Call::Truncate { file: of.file()?, bytes: of.number(1) })),
        ),
        form(
            ("file_write", Value, &["offset", "value"], &[]),
            "Writes a word of a file (pwrite).",
            SystemCall(|of| {
                Ok(Call::Write { file: of.file()?, offset: of.number(1), value: of.number(2) })
            }),
        ),
        form(
            ("file_read", Value, &["offset"], &["into"]),
            "Reads a word of a file (pread). Result: its value.",
            SystemCall(|of| Ok(Call::Read { file: of.file()?, offset: of.number(1) })),
        ),
        form(
            ("sleep", Value, &[], &[]),
            "Sleeps for that many nanoseconds.",
            SystemCall(|of| Ok(Call::Idle { until: of.after()? })),
        ),
        form(
            ("nothing", True, &[], &[]),
            "Enters and leaves the kernel.",
            SystemCall(|_| Ok(Call::Nothing)),
        ),
        form(
            ("compute", Value, &[], &[]),
            "Computes for that many nanoseconds without touching memory.",
            Operation(|fields| Op::Compute(fields.value("compute"))),
        ),
        form(
            ("let", Variable, &["be"], &[]),
            "Sets a variable of this CPU or a shared word.",
            Operation(|fields| {
                // Read the value first: the variable has none before it is set.
                let value = fields.value("be");
                Op::Let { to: fields.target("let"), value }
            }),
        ),
        form(
            ("add", Variable, &["by"], &["into"]),
            "Adds to a shared word atomically. Result: its old value.",
            Operation(|fields| Op::Add {
                word: fields.shared_word(),
                by: fields.value("by"),
                into: fields.result(),
            }),
        ),
        form(
            ("if", Value, &["then"], &["else"]),
            "Performs `then` unless the value is 0, else `else`.",
            Control(BlockKind::If),
        ),
        form(
            ("while", Value, &["do"], &[]),
            "Performs `do` as long as the value is not 0.",
            Control(BlockKind::While),
        ),
        form(
            ("repeat", Value, &["do"], &["as"]),
            "Performs `do` that many times; `as` names a variable that counts from 0.",
            Control(BlockKind::Repeat),
        ),
        form(
            ("for", Variable, &["below", "do"], &["from", "by"]),
            "Performs `do` with the variable at `from` (0), then `by` (1) more, as long as it is less than `below`.",
            Control(BlockKind::For),
        ),
        form(("use", Block, &[], &[]), "Performs a block of `[blocks]`.", Control(BlockKind::Use)),
        form(
            ("barrier", True, &[], &[]),
            "Waits until every CPU has reached a barrier.",
            Operation(|_| Op::Barrier),
        ),
        form(
            ("without", Value, &[], &[]),
            "From the next barrier on, this many CPUs are not waited for. All other CPUs execute it.",
            Operation(|fields| Op::Without(fields.value("without"))),
        ),
        form(
            ("begin", True, &[], &[]),
            "Waits like `barrier`, then opens the measured window.",
            Operation(|_| Op::Begin),
        ),
        form(
            ("end", True, &[], &[]),
            "Waits like `barrier`, then closes the window and stops the CPUs that stand by.",
            Operation(|_| Op::End),
        ),
        form(
            ("open", True, &[], &[]),
            "Opens the window on CPU 0, without waiting for others.",
            Operation(|_| Op::Open),
        ),
        form(
            ("close", True, &[], &[]),
            "Closes the window on CPU 0, and stops the CPUs that stand by.",
            Operation(|_| Op::Close),
        ),
        form(
            ("done", Value, &[], &[]),
            "Adds to the work done in the window.",
            Operation(|fields| Op::Done(fields.value("done"))),
        ),
        form(
            ("bystand", Value, &[], &["asleep"]),
            "Stands by until the window closes, and checks that at this interval in nanoseconds. Computes meanwhile, or sleeps if `asleep` is not 0.",
            Operation(|fields| Op::Bystand {
                every: fields.value("bystand"),
                asleep: fields.or("asleep", 0),
            }),
        ),
        form(
            ("give_up", True, &[], &[]),
            "Ends the run, because another CPU failed.",
            Operation(|_| Op::GiveUp),
        ),
        form(
            ("progress", Value, &["of"], &[]),
            "Reports on CPU 0 how far the run is, if further than before. Takes no time.",
            Operation(|fields| Op::Progress {
                done: fields.value("progress"),
                all: fields.value("of"),
            }),
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::ARGUMENTS;
    use alloc::collections::BTreeSet;

    #[test]
    fn a_call_has_at_most_as_many_arguments_as_an_operation_holds() {
        for form in STATEMENTS {
            if let StatementKind::SystemCall(_) = form.reads {
                assert!(form.arguments().count() <= ARGUMENTS, "{}", form.word);
            }
        }
    }

    #[test]
    fn no_word_begins_two_statements() {
        let words: BTreeSet<_> = STATEMENTS.iter().map(|form| form.word).collect();
        assert_eq!(words.len(), STATEMENTS.len());
    }
}
