//! The judge's reports, for people.

use crate::Symbols;
use serde::Deserialize;
use std::fmt::Write as _;

/// An event of the emulated machine.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An access that broke the contract.
    Finding(Finding),
    /// The end of the machine.
    Hunted(Counts),
}

/// The counts of a run.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Counts {
    /// Translations that were read from tables.
    pub walks: u64,
    /// Translations that a CPU reused from its cache.
    pub hits: u64,
    /// Translations that a CPU cached speculatively, just before a change.
    pub guesses: u64,
    /// Accesses through translations that the tables contradicted at that moment; most are lawful.
    pub stale: u64,
    /// Changes of entries that some CPU had a translation from.
    pub changes: u64,
    /// The changes whose call has returned to user mode. Only these are judged.
    pub returned: u64,
    /// Pages of page tables that were watched at the end.
    pub tables: u64,
    /// Findings.
    pub found: u64,
    /// Calls that were left out on request.
    pub skipped: u64,
}

/// An access through a translation that the kernel had removed. Times are instructions of all CPUs.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Finding {
    /// The clause of the contract.
    pub clause: String,
    /// The kind of access: load, store or fetch; "any" if the CPU is in user mode and holds the translation.
    pub access: String,
    /// The mode of the access: user or kernel.
    pub mode: String,
    /// The CPU that accessed.
    pub cpu: u32,
    /// The address.
    pub address: u64,
    /// The instruction that accessed.
    pub pc: u64,
    /// The entry that the CPU kept.
    pub then: u64,
    /// The entry in its place.
    pub now: u64,
    /// The level of the kept entry: 1 for 4 KiB pages.
    pub level: u32,
    /// Whether the entry was global.
    pub global: bool,
    /// Whether the CPU had cached the translation speculatively.
    pub speculative: bool,
    /// When it was used.
    pub at: u64,
    /// The change that forbade the access.
    pub changed: Change,
    /// Words on the stack of the CPU that accessed.
    pub stack: Vec<u64>,
}

/// A change of a table entry.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Change {
    /// The CPU that made it.
    pub cpu: u32,
    /// The level of the changed entry.
    pub level: u32,
    /// The entry before.
    pub then: u64,
    /// The instruction that stored.
    pub pc: u64,
    /// When it stored.
    pub at: u64,
    /// When its call returned to user mode.
    pub returned: u64,
    /// Words on the stack when it stored.
    pub stack: Vec<u64>,
}

/// Callers shown of each CPU.
const CALLERS: usize = 8;

/// Describes an entry: its frame and its rights.
fn entry(value: u64) -> String {
    if value & 1 == 0 {
        return format!("{value:#x}: absent");
    }
    let frame = value & 0x000f_ffff_ffff_f000;
    let mut rights = String::from("readable");
    for (bit, name) in [(1, "writable"), (2, "user"), (8, "global")] {
        if value >> bit & 1 == 1 {
            let _ = write!(rights, ", {name}");
        }
    }
    if value >> 63 == 0 {
        rights += ", executable";
    }
    format!("{value:#x}: frame {frame:#x}, {rights}")
}

impl Finding {
    /// Describes the finding in a few lines. Callers are stack words that point into functions, so some may be left
    /// over from earlier calls.
    pub fn show(&self, symbols: &Symbols) -> String {
        let Change { pc, at, .. } = self.changed;
        let unasked = match self.speculative {
            true => " (filled speculatively)",
            false => "",
        };
        let access = match self.access.as_str() {
            "any" => format!("{} mode may access", self.mode),
            made => format!("{} {made} at", self.mode),
        };
        let mut text = format!(
            "{}: CPU {}: {access} {:#x} through a translation that was removed{unasked}\n  \
             stale for {} instructions, of which {} after the call that removed it had returned\n",
            self.clause,
            self.cpu,
            self.address,
            self.at.saturating_sub(at),
            self.at.saturating_sub(self.changed.returned),
        );
        let _ = writeln!(text, "  held entry  {}", entry(self.then));
        let _ = writeln!(text, "  entry now   {}", entry(self.now));
        let _ = writeln!(
            text,
            "  changed by CPU {} at {}",
            self.changed.cpu,
            symbols.show(pc)
        );
        callers(&mut text, symbols, &self.changed.stack);
        let _ = writeln!(
            text,
            "  held by CPU {} at {}",
            self.cpu,
            symbols.show(self.pc)
        );
        if self.mode == "kernel" {
            callers(&mut text, symbols, &self.stack);
        }
        text
    }
}

fn callers(text: &mut String, symbols: &Symbols, stack: &[u64]) {
    // A return address is never at a function's first instruction.
    let code = stack
        .iter()
        .filter(|word| symbols.find(**word).is_some_and(|(_, offset)| offset > 0));
    for word in code.take(CALLERS) {
        let _ = writeln!(text, "      {}", symbols.show(*word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_clause_cpus_entries_and_times() {
        let line = r#"{"event":"finding","clause":"C3","access":"store","mode":"user","cpu":2,"address":4096,"pc":8192,
            "then":9223372036854779943,"now":0,"level":1,"global":false,"speculative":true,"at":900,
            "changed":{"cpu":1,"level":1,"then":4135,"pc":18446744071562067968,"at":100,"returned":600,"stack":[1]},
            "stack":[]}"#;
        let Event::Finding(finding) = serde_json::from_str(line).unwrap() else {
            panic!("a finding");
        };
        let text = finding.show(&Symbols::default());
        for part in [
            "C3: CPU 2: user store at 0x1000",
            "stale for 800 instructions, of which 300 after",
            "held entry  0x8000000000001027: frame 0x1000, readable, writable, user\n",
            "now   0x0: absent",
            "changed by CPU 1 at 0xffffffff80000000",
            "held by CPU 2 at 0x2000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
