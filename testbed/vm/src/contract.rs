//! Defines a violation of the contract, which every oracle reports in the same form.
//!
//! The contract is the eight clauses that the engine promises; `docs/contract.md` explains them. The engine runs on two
//! machines in software, on threads that act as CPUs, and in our kernel. Each has its own oracle, because each has
//! different facts about an access. All of them report a violation in the types of this module: the [`Clause`], the
//! [`Violation`], and the timeline (feature `timeline`) of the steps that led to it.

pub mod abstract_machine;
#[cfg(feature = "timeline")]
pub mod timeline;

pub use abstract_machine::AbstractMachine;

use alloc::string::String;
use core::fmt;
use quell::{CpuId, Frame};

/// A clause of the contract, numbered as in `docs/contract.md`. Each variant describes how it's broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Clause {
    /// Reuse: a CPU accessed a frame through an old translation after the frame had a new owner.
    C1,
    /// No lost write: a CPU stored through a stale translation after the content was captured.
    C2,
    /// Synchronous change: a CPU used the old translation after the changing call had returned.
    C3,
    /// Fresh reads: a read through a translation that lazy unmap left behind returned old bytes.
    C4,
    /// Isolation: a CPU used another space's translation.
    C5,
    /// Tables: a walker read a freed page-table page.
    C6,
    /// Progress: a CPU waits for ever.
    C7,
    /// Zero: memory that was handed out as zeroed contains other bytes.
    C8,
    /// No clause: the engine or the kernel used the machine in a forbidden way.
    Misuse,
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A violation of the contract: the clause, a sentence, and the oracle's details.
///
/// Two violations are equal only if every field is, including the sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The broken clause.
    pub clause: Clause,
    /// A description of the violation, in a sentence.
    pub account: String,
    /// The CPU whose access, walk or wait broke the clause. `None` if no single CPU did.
    pub cpu: Option<CpuId>,
    /// The time, in picoseconds of virtual time; `None` on machines without a clock.
    pub at: Option<u64>,
    /// The CPU that made the access unlawful, for example by freeing the frame.
    ///
    /// Depending on the clause it's the CPU of the frame's new owner, of the call, or of the capture.
    pub other: Option<CpuId>,
    /// The time at which the other CPU made the access unlawful, in picoseconds of virtual time.
    pub other_at: Option<u64>,
    /// The frame that the access reached.
    pub frame: Option<Frame>,
    /// The virtual address of the access in bytes, or the address of its page if only that is known.
    pub address: Option<u64>,
}

impl Violation {
    /// Creates a violation with only a clause and an account.
    pub fn new(clause: Clause, account: impl Into<String>) -> Self {
        Violation {
            clause,
            account: account.into(),
            cpu: None,
            at: None,
            other: None,
            other_at: None,
            frame: None,
            address: None,
        }
    }

    /// Sets the CPU that broke the clause.
    #[must_use]
    pub fn by(mut self, cpu: CpuId) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Sets the CPU that made the access unlawful.
    #[must_use]
    pub fn after(mut self, other: CpuId) -> Self {
        self.other = Some(other);
        self
    }

    /// Sets the frame.
    #[must_use]
    pub fn in_frame(mut self, frame: Frame) -> Self {
        self.frame = Some(frame);
        self
    }

    /// Sets the virtual address.
    #[must_use]
    pub fn through(mut self, address: u64) -> Self {
        self.address = Some(address);
        self
    }
}

/// Displays a moment of virtual time, if there is one.
struct TimeText(Option<u64>);

impl fmt::Display for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, " at {}.{} ns", at / 1000, at % 1000 / 100),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.clause, self.account)?;
        let mut separator = " (";
        if let Some(cpu) = self.cpu {
            write!(f, "{separator}cpu {}{}", cpu.0, TimeText(self.at))?;
            separator = ", ";
        }
        if let Some(other) = self.other {
            write!(f, "{separator}other cpu {}{}", other.0, TimeText(self.other_at))?;
            separator = ", ";
        }
        if let Some(frame) = self.frame {
            write!(f, "{separator}frame {:#x}", frame.0)?;
            separator = ", ";
        }
        if let Some(address) = self.address {
            write!(f, "{separator}address {address:#x}")?;
            separator = ", ";
        }
        if separator == ", " {
            f.write_str(")")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_violation_says_what_is_known() {
        let bare = Violation::new(Clause::C7, "a CPU waits for ever");
        assert_eq!(bare.to_string(), "C7: a CPU waits for ever");
        let mut full = Violation::new(Clause::C1, "a store reached a frame that has a new owner")
            .by(CpuId(1))
            .after(CpuId(0))
            .in_frame(Frame(0x21))
            .through(0x20_0008);
        assert_eq!(
            full.to_string(),
            "C1: a store reached a frame that has a new owner \
             (cpu 1, other cpu 0, frame 0x21, address 0x200008)"
        );
        (full.at, full.other_at) = (Some(12_340), Some(7_990));
        assert_eq!(
            full.to_string(),
            "C1: a store reached a frame that has a new owner \
             (cpu 1 at 12.3 ns, other cpu 0 at 7.9 ns, frame 0x21, address 0x200008)"
        );
    }
}
