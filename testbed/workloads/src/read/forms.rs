//! The table of statement forms, which readers, performers and documents share.
//!
//! A statement that is one system call needs only its row here: its keys in the order of the arguments, and a function
//! that builds the call. To add such a call, add its row. For example, `protect` is one.

use super::fields::{Access, Fields};
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
    Block(BlockKind),
    /// One operation.
    Operation(fn(&mut Fields<'_, '_, '_, '_>) -> Option<Op>),
    /// A system call with numbers as arguments and result.
    Call(CallBuilder),
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

const fn form(
    word: &'static str,
    main: MainArgument,
    needs: &'static [&'static str],
    takes: &'static [&'static str],
    meaning: &'static str,
    reads: StatementKind,
) -> Statement {
    Statement { word, main, needs, takes, meaning, reads }
}

/// All forms of statements.
pub const STATEMENTS: &[Statement] = {
    use MainArgument::*;
    &[
        form(
            "read",
            Value,
            &[],
            &["bytes", "stride", "order", "count"],
            "Loads a word at an address, or, with `bytes`, one at each `stride` (4K) of a range. `order` is ascending, descending, or random with a `count`.",
            StatementKind::Operation(|fields| fields.access(Access::Load)),
        ),
        form(
            "write",
            Value,
            &[],
            &["value", "bytes", "stride", "order", "count"],
            "Stores a word, with the same options as `read`. `value` may use `offset`, the distance from the start of the range.",
            StatementKind::Operation(|fields| fields.access(Access::Store)),
        ),
        form(
            "stream_read",
            Value,
            &["bytes"],
            &[],
            "Loads every cache line of a range in order.",
            StatementKind::Operation(|fields| fields.stream(Access::Load)),
        ),
        form(
            "stream_write",
            Value,
            &["bytes"],
            &["value"],
            "Stores to every cache line of a range in order.",
            StatementKind::Operation(|fields| fields.stream(Access::Store)),
        ),
        form(
            "map",
            Variable,
            &["bytes"],
            &["at", "page", "protection", "shared", "private", "offset"],
            "Maps memory and sets the variable to its address: anonymous in pages of up to `page` (4K), or a `shared` or `private` file from `offset` on; `at` replaces earlier mappings. `protection` is none, r, rw or rx.",
            StatementKind::Operation(|fields| fields.map()),
        ),
        form(
            "unmap",
            Value,
            &["bytes"],
            &[],
            "Unmaps a range (munmap).",
            StatementKind::Call(|of| {
                let (address, bytes) = of.range()?;
                Ok(Call::Unmap { address, bytes })
            }),
        ),
        form(
            "protect",
            Value,
            &["bytes", "protection"],
            &[],
            "Changes the protection of a range (mprotect).",
            StatementKind::Operation(|fields| {
                Some(Op::Protect {
                    address: fields.value("protect")?,
                    bytes: fields.value("bytes")?,
                    protection: fields.protection()?,
                })
            }),
        ),
        form(
            "discard",
            Value,
            &["bytes"],
            &[],
            "Drops the pages of a range (MADV_DONTNEED).",
            StatementKind::Call(|of| {
                let (address, bytes) = of.range()?;
                Ok(Call::Discard { address, bytes })
            }),
        ),
        form(
            "page_out",
            Value,
            &["bytes"],
            &["into"],
            "Reclaims the pages of a range (MADV_PAGEOUT). Result: how many were reclaimed.",
            StatementKind::Call(|of| {
                let (address, bytes) = of.range()?;
                Ok(Call::PageOut { address, bytes })
            }),
        ),
        form(
            "remap",
            Value,
            &["bytes"],
            &["to", "into"],
            "Moves the pages of a range elsewhere (mremap). Result: the new address.",
            StatementKind::Call(|of| {
                let (address, bytes) = of.range()?;
                let to = of.address_if_given(2, bytes)?;
                Ok(Call::Remap { address, bytes, to })
            }),
        ),
        form(
            "collapse",
            Value,
            &[],
            &["into"],
            "Collapses the 2 MB around an address into one page (MADV_COLLAPSE). Result: 1 if it did.",
            StatementKind::Call(|of| {
                let address = of.address()?;
                Ok(Call::Collapse { address })
            }),
        ),
        form(
            "migrate",
            Value,
            &["bytes", "node"],
            &["into"],
            "Moves the pages of a range to a memory node (move_pages). Result: how many moved.",
            StatementKind::Call(|of| {
                let (address, bytes) = of.range()?;
                let node = of.node(2)?;
                Ok(Call::Migrate { address, bytes, node })
            }),
        ),
        form(
            "demote",
            Value,
            &[],
            &["into"],
            "Moves that many pages to a slow node. Result: how many moved.",
            StatementKind::Call(|of| Ok(Call::Demote { pages: of.number(0) })),
        ),
        form(
            "reclaim",
            Value,
            &[],
            &["into"],
            "Reclaims that many pages. Result: how many were reclaimed.",
            StatementKind::Call(|of| Ok(Call::Reclaim { pages: of.number(0) })),
        ),
        form(
            "spawn",
            Variable,
            &[],
            &[],
            "Makes an empty process and sets the variable to its number.",
            StatementKind::Call(|_| Ok(Call::Spawn)),
        ),
        form(
            "fork",
            Variable,
            &[],
            &[],
            "Makes a copy of this process and sets the variable to its number.",
            StatementKind::Call(|_| Ok(Call::Fork)),
        ),
        form(
            "enter",
            Value,
            &[],
            &[],
            "Continues in that process.",
            StatementKind::Call(|of| {
                let process = of.process()?;
                Ok(Call::Enter { process })
            }),
        ),
        form(
            "exit",
            Value,
            &[],
            &[],
            "Ends a process that no CPU runs.",
            StatementKind::Call(|of| {
                let process = of.process()?;
                Ok(Call::Exit { process })
            }),
        ),
        form(
            "create",
            Variable,
            &["bytes"],
            &[],
            "Makes a file of zeros and sets the variable to its number.",
            StatementKind::Call(|of| Ok(Call::Create { bytes: of.number(0) })),
        ),
        form(
            "sync",
            Value,
            &[],
            &["into"],
            "Writes a file's dirty pages (fdatasync). Result: how many there were.",
            StatementKind::Call(|of| Ok(Call::Sync { file: of.file()? })),
        ),
        form(
            "truncate",
            Value,
            &["bytes"],
            &[],
            "Cuts or extends a file.",
            StatementKind::Call(|of| Ok(Call::Truncate { file: of.file()?, bytes: of.number(1) })),
        ),
        form(
            "file_write",
            Value,
            &["offset", "value"],
            &[],
            "Writes a word of a file (pwrite).",
            StatementKind::Call(|of| {
                Ok(Call::Write { file: of.file()?, offset: of.number(1), value: of.number(2) })
            }),
        ),
        form(
            "file_read",
            Value,
            &["offset"],
            &["into"],
            "Reads a word of a file (pread). Result: its value.",
            StatementKind::Call(|of| Ok(Call::Read { file: of.file()?, offset: of.number(1) })),
        ),
        form(
            "sleep",
            Value,
            &[],
            &[],
            "Sleeps for that many nanoseconds.",
            StatementKind::Call(|of| Ok(Call::Idle { until: of.after()? })),
        ),
        form(
            "nothing",
            True,
            &[],
            &[],
            "Enters and leaves the kernel.",
            StatementKind::Call(|_| Ok(Call::Nothing)),
        ),
        form(
            "compute",
            Value,
            &[],
            &[],
            "Computes for that many nanoseconds without touching memory.",
            StatementKind::Operation(|fields| Some(Op::Compute(fields.value("compute")?))),
        ),
        form(
            "let",
            Variable,
            &["be"],
            &[],
            "Sets a variable of this CPU or a shared word.",
            StatementKind::Operation(|fields| {
                // Read the value first: the variable has none before it is set.
                let value = fields.value("be")?;
                Some(Op::Let { to: fields.target("let")?, value })
            }),
        ),
        form(
            "add",
            Variable,
            &["by"],
            &["into"],
            "Adds to a shared word atomically. Result: its old value.",
            StatementKind::Operation(|fields| {
                Some(Op::Add {
                    word: fields.shared_word()?,
                    by: fields.value("by")?,
                    into: fields.result()?,
                })
            }),
        ),
        form(
            "if",
            Value,
            &["then"],
            &["else"],
            "Performs `then` unless the value is 0, else `else`.",
            StatementKind::Block(BlockKind::If),
        ),
        form(
            "while",
            Value,
            &["do"],
            &[],
            "Performs `do` as long as the value is not 0.",
            StatementKind::Block(BlockKind::While),
        ),
        form(
            "repeat",
            Value,
            &["do"],
            &["as"],
            "Performs `do` that many times; `as` names a variable that counts from 0.",
            StatementKind::Block(BlockKind::Repeat),
        ),
        form(
            "for",
            Variable,
            &["below", "do"],
            &["from", "by"],
            "Performs `do` with the variable at `from` (0), then `by` (1) more, as long as it is less than `below`.",
            StatementKind::Block(BlockKind::For),
        ),
        form(
            "use",
            Block,
            &[],
            &[],
            "Performs a block of `[blocks]`.",
            StatementKind::Block(BlockKind::Use),
        ),
        form(
            "barrier",
            True,
            &[],
            &[],
            "Waits until every CPU has reached a barrier.",
            StatementKind::Operation(|_| Some(Op::Barrier)),
        ),
        form(
            "without",
            Value,
            &[],
            &[],
            "From the next barrier on, this many CPUs are not waited for. All other CPUs execute it.",
            StatementKind::Operation(|fields| Some(Op::Without(fields.value("without")?))),
        ),
        form(
            "begin",
            True,
            &[],
            &[],
            "Waits like `barrier`, then opens the measured window.",
            StatementKind::Operation(|_| Some(Op::Begin)),
        ),
        form(
            "end",
            True,
            &[],
            &[],
            "Waits like `barrier`, then closes the window and stops the CPUs that stand by.",
            StatementKind::Operation(|_| Some(Op::End)),
        ),
        form(
            "open",
            True,
            &[],
            &[],
            "Opens the window on CPU 0, without waiting for others.",
            StatementKind::Operation(|_| Some(Op::Open)),
        ),
        form(
            "close",
            True,
            &[],
            &[],
            "Closes the window on CPU 0, and stops the CPUs that stand by.",
            StatementKind::Operation(|_| Some(Op::Close)),
        ),
        form(
            "done",
            Value,
            &[],
            &[],
            "Adds to the work done in the window.",
            StatementKind::Operation(|fields| Some(Op::Done(fields.value("done")?))),
        ),
        form(
            "bystand",
            Value,
            &[],
            &["asleep"],
            "Stands by until the window closes, and checks that at this interval in nanoseconds. Computes meanwhile, or sleeps if `asleep` is not 0.",
            StatementKind::Operation(|fields| {
                Some(Op::Bystand {
                    every: fields.value("bystand")?,
                    asleep: fields.or("asleep", 0)?,
                })
            }),
        ),
        form(
            "give_up",
            True,
            &[],
            &[],
            "Ends the run, because another CPU failed.",
            StatementKind::Operation(|_| Some(Op::GiveUp)),
        ),
        form(
            "progress",
            Value,
            &["of"],
            &[],
            "Reports on CPU 0 how far the run is, if further than before. Takes no time.",
            StatementKind::Operation(|fields| {
                Some(Op::Progress { done: fields.value("progress")?, all: fields.value("of")? })
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
            if let StatementKind::Call(_) = form.reads {
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
