//! The judge's reports, for people.

use super::{Symbols, Target};
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
    /// Faults that the tables did not ask for, because a CPU kept a translation with fewer rights.
    pub spurious: u64,
    /// Loads of roots that kept the translations of the PCID or ASID that they loaded.
    pub reloads: u64,
    /// Calls that were left out on request.
    pub skipped: u64,
    /// The times that a CPU was held.
    pub holds: u64,
    /// NMIs that the machine sent.
    pub nmis: u64,
    /// The times that the kernel freed or handed out frames, if the hunt knows where.
    pub handed: u64,
    /// Accesses of devices through translations that the IOMMU kept.
    pub dma: u64,
    /// Kept translations of these frames. They are lawful as long as no CPU can use them, for example
    /// under a PCID that will be flushed before it is loaded.
    pub reused: u64,
}

/// A CPU or a device used, or a CPU could use, a translation of a frame that was freed or has a new owner (C1), one that
/// the kernel had removed (C3), a table that it had removed (C6), or a translation of another address space (C5). Times
/// are instructions of all CPUs.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Finding {
    /// The clause of the contract.
    pub clause: String,
    /// The kind of access: load, store or fetch; "any" if the CPU is in user mode and holds the translation; read or
    /// write by a device.
    pub access: String,
    /// The mode of the access: user, kernel, or device.
    pub mode: String,
    /// The device that accessed, by its bus, number and function.
    pub device: Option<String>,
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
    /// The PCID or ASID under which the CPU kept it; 0 if the kernel uses none.
    pub tag: u32,
    /// When the CPU walked the tables for it.
    pub made: u64,
    /// Whether the entry was global.
    pub global: bool,
    /// Whether the CPU had cached the translation speculatively.
    pub speculative: bool,
    /// Whether the CPU was in an NMI's handler.
    pub nmi: bool,
    /// When it was used.
    pub at: u64,
    /// The change that forbade the access. `None` if the translation is that of another address space, or if the change
    /// isn't known any more.
    pub changed: Option<Change>,
    /// The moment at which the kernel freed or handed out the frame, if it did.
    pub reused: Option<FrameReuse>,
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
    /// When its call returned to user mode; 0 if it hasn't.
    pub returned: u64,
    /// Words on the stack when it stored.
    pub stack: Vec<u64>,
}

/// A frame that was freed, or got a new owner, while a CPU had a translation of it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct FrameReuse {
    /// The CPU that freed or handed it out.
    pub cpu: u32,
    /// The kernel's function that did, or its instruction.
    pub pc: u64,
    /// When it did.
    pub at: u64,
    /// Words on the stack then.
    pub stack: Vec<u64>,
}

/// Callers shown of each CPU.
const CALLERS: usize = 8;

/// Describes an entry: its frame and its rights.
fn entry(value: u64, target: Target) -> String {
    let bit = |bit: u32| value >> bit & 1 == 1;
    // On both architectures.
    if !bit(0) {
        return format!("{value:#x}: absent");
    }
    let (frame, rights) = match target {
        Target::X86_64 => (
            value & 0x000f_ffff_ffff_f000,
            [(bit(1), "writable"), (bit(2), "user"), (bit(8), "global"), (!bit(63), "executable")],
        ),
        Target::Aarch64 => (
            value & 0x0000_ffff_ffff_f000,
            [
                // Not read-only, or only until the first store.
                (!bit(7) || bit(51), "writable"),
                (bit(6), "user"),
                (!bit(11), "global"),
                (!bit(if bit(6) { 54 } else { 53 }), "executable"),
            ],
        ),
    };
    let rights = rights.into_iter().filter(|(has, _)| *has).map(|(_, name)| name);
    let rights: Vec<_> = std::iter::once("readable").chain(rights).collect();
    format!("{value:#x}: frame {frame:#x}, {}", rights.join(", "))
}

impl Finding {
    /// Describes the finding in a few lines, for a machine of this architecture. Callers are stack words that point into
    /// functions, so some may be left over from earlier calls.
    pub fn show(&self, symbols: &Symbols, target: Target) -> String {
        if let Some(device) = &self.device {
            return self.show_device(device, symbols);
        }
        let access = match self.access.as_str() {
            "any" => format!("{} mode may access", self.mode),
            made if self.nmi => format!("{} {made} by an NMI handler at", self.mode),
            made => format!("{} {made} at", self.mode),
        };
        let through = self.through();
        let unasked = match self.speculative {
            true => " (filled speculatively)",
            false => "",
        };
        let mut text = format!(
            "{}: CPU {}: {access} {:#x} through {through}{unasked}\n",
            self.clause, self.cpu, self.address
        );
        let since = |time| self.at.saturating_sub(time);
        let _ = match (&self.changed, &self.reused) {
            (Some(Change { at, returned: 0, .. }), _) => writeln!(
                text,
                "  stale for {} instructions, while the call that removed it went on",
                since(*at)
            ),
            (Some(Change { at, returned, .. }), _) => writeln!(
                text,
                "  stale for {} instructions, of which {} after the call that removed it had returned",
                since(*at),
                since(*returned)
            ),
            (None, Some(_)) => writeln!(text, "  kept for {} instructions", since(self.made)),
            (None, None) => writeln!(
                text,
                "  kept for {} instructions under {} {}, which was loaded without a flush",
                since(self.made),
                match target {
                    Target::X86_64 => "PCID",
                    Target::Aarch64 => "ASID",
                },
                self.tag
            ),
        };
        let _ = writeln!(text, "  held entry  {}", entry(self.then, target));
        let _ = writeln!(text, "  entry now   {}", entry(self.now, target));
        if let Some(Change { cpu, pc, stack, .. }) = &self.changed {
            let _ = writeln!(text, "  changed by CPU {cpu} at {}", symbols.show(*pc));
            callers(&mut text, symbols, stack);
        }
        if let Some(reused) = &self.reused {
            reused.show(&mut text, self.at, symbols);
        }
        let _ = writeln!(text, "  held by CPU {} at {}", self.cpu, symbols.show(self.pc));
        if self.mode == "kernel" {
            callers(&mut text, symbols, &self.stack);
        }
        text
    }

    /// Describes what the access went through.
    fn through(&self) -> &'static str {
        match (&self.reused, &self.changed, self.clause.as_str()) {
            (Some(_), _, "C6") => "a page-table page that was freed or has a new owner",
            (Some(_), _, _) => "a translation of a frame that was freed or has a new owner",
            (None, None, "C5") => "a translation of another address space",
            (None, Some(_), "C6") => "a page-table page that was removed",
            (None, Some(_), "break-before-make") => {
                "a translation whose entry leads elsewhere already"
            }
            (None, _, _) => "a translation that was removed",
        }
    }

    /// Describes the access of a device, through a translation that its IOMMU kept.
    fn show_device(&self, device: &str, symbols: &Symbols) -> String {
        let through = self.through();
        let place = |entry: u64| match entry & 1 {
            0 => "nowhere".to_owned(),
            _ => format!("to {:#x}", entry & !1),
        };
        let mut text = format!(
            "{}: device {device}: {} at {:#x} through {through}\n  kept for {} instructions\n  \
             leads {}; the IOMMU's tables lead {} now\n",
            self.clause,
            self.access,
            self.address,
            self.at.saturating_sub(self.made),
            place(self.then),
            place(self.now)
        );
        if let Some(reused) = &self.reused {
            reused.show(&mut text, self.at, symbols);
        }
        text
    }
}

impl FrameReuse {
    fn show(&self, text: &mut String, now: u64, symbols: &Symbols) {
        let FrameReuse { cpu, pc, at, stack } = self;
        let (before, by) = (now.saturating_sub(*at), symbols.show(*pc));
        let _ = writeln!(
            text,
            "  freed or handed out by CPU {cpu}, {before} instructions before, by {by}"
        );
        callers(text, symbols, stack);
    }
}

fn callers(text: &mut String, symbols: &Symbols, stack: &[u64]) {
    // A return address is never at a function's first instruction.
    let code =
        stack.iter().filter(|word| symbols.find(**word).is_some_and(|(_, offset)| offset > 0));
    for word in code.take(CALLERS) {
        let _ = writeln!(text, "      {}", symbols.show(*word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a finding with this clause and these last fields.
    fn shown(clause: &str, rest: &str) -> String {
        let line = format!(
            r#"{{"event":"finding","clause":"{clause}","access":"store","mode":"user","cpu":2,"address":4096,"pc":8192,
            "then":9223372036854779943,"now":0,"level":1,"tag":7,"made":50,"global":false,"speculative":true,"nmi":false,"at":900,
            {rest}"stack":[]}}"#
        );
        let Event::Finding(finding) = serde_json::from_str(&line).unwrap() else {
            panic!("a finding");
        };
        finding.show(&Symbols::default(), Target::X86_64)
    }

    const CHANGED: &str = r#""changed":{"cpu":1,"level":1,"then":4135,"pc":18446744071562067968,"at":100,"returned":600,
        "stack":[1]},"#;

    #[test]
    fn a_report_names_clause_cpus_entries_and_times() {
        let text = shown("C3", CHANGED);
        for part in [
            "C3: CPU 2: user store at 0x1000 through a translation that was removed (filled",
            "stale for 800 instructions, of which 300 after",
            "held entry  0x8000000000001027: frame 0x1000, readable, writable, user\n",
            "now   0x0: absent",
            "changed by CPU 1 at 0xffffffff80000000",
            "held by CPU 2 at 0x2000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn entries_of_aarch64_show_their_frame_and_rights() {
        let shown = |value| entry(value, Target::Aarch64);
        let (clean, text) = (0x00e8_0000_4123_4fc3, 0x0020_0000_4123_4fc3);
        assert_eq!(shown(clean), "0xe8000041234fc3: frame 0x41234000, readable, writable, user");
        assert_eq!(shown(text), "0x20000041234fc3: frame 0x41234000, readable, user, executable");
        assert!(shown(0x2).ends_with(": absent"));
    }

    #[test]
    fn a_report_tells_that_a_frame_was_reused() {
        let reused = r#""reused":{"cpu":3,"pc":12288,"at":700,"stack":[]},"#;
        let text = shown("C1", reused);
        for part in [
            "C1: CPU 2: user store at 0x1000 through a translation of a frame that was freed or has a new owner",
            "kept for 850 instructions\n",
            "freed or handed out by CPU 3, 200 instructions before, by 0x3000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let going_on = CHANGED.replace("\"returned\":600", "\"returned\":0");
        let text = shown("C6", &(going_on + reused));
        for part in [
            "through a page-table page that was freed or has a new owner",
            "stale for 800 instructions, while the call that removed it went on",
            "changed by CPU 1",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_report_names_the_device_that_accessed() {
        let line = r#"{"event":"finding","clause":"C3","access":"write","mode":"device","device":"00:03.0","cpu":0,
            "address":8192,"pc":0,"then":12289,"now":16385,"level":1,"tag":0,"made":50,"global":false,
            "speculative":false,"nmi":false,"at":90,"stack":[]}"#;
        let Ok(Event::Finding(finding)) = serde_json::from_str(line) else {
            panic!("a finding");
        };
        assert_eq!(
            finding.show(&Symbols::default(), Target::X86_64),
            "C3: device 00:03.0: write at 0x2000 through a translation that was removed\n  kept for 40 instructions\n  \
             leads to 0x3000; the IOMMU's tables lead to 0x4000 now\n"
        );
    }

    #[test]
    fn a_report_tells_tables_and_other_address_spaces_apart() {
        let text = shown("C6", CHANGED);
        assert!(text.contains("through a page-table page that was removed"), "{text}");
        let text = shown("C5", "");
        for part in
            ["through a translation of another address space", "850 instructions under PCID 7"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("changed by"), "{text}");
    }
}
