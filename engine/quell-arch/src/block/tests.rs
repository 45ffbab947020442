//! Runs every block that user mode may run, and compares its changes with its declarations.

use super::Block;
use super::native::{Registers, SCRATCH, STATE, canonical};
use std::collections::BTreeSet;
use std::format;
use std::string::{String, ToString};
use std::sync::{Mutex, PoisonError};
use std::vec;
use std::vec::Vec;

/// Defines blocks that declare only what is in brackets, and the complaint about each.
macro_rules! wrong {
    ($($name:literal: $($text:literal),+; [$($change:literal)?] => $complaint:literal,)+) => {
        pub(super) const WRONG: &[(Block, &str)] = &[$((
            Block {
                name: $name,
                text: &[$($text),+],
                inputs: &[],
                changes: &[$($change)?],
                options: &["nomem", "nostack", "preserves_flags"],
                probe: Some(probe!($($text),+)),
            },
            $complaint,
        )),+];
    };
}

#[cfg(target_arch = "x86_64")]
#[path = "tests/x86_64.rs"]
mod cases;

#[cfg(target_arch = "aarch64")]
#[path = "tests/aarch64.rs"]
mod cases;

#[cfg(target_arch = "riscv64")]
#[path = "tests/riscv64.rs"]
mod cases;

/// The size of the memory that blocks write to: an aligned page.
const PAGE: usize = 4096;
/// The bytes below the stack pointer that belong to the running function.
const RED_ZONE: usize = 128;
/// The stack on either side of a block's stack pointer, in bytes. A signal handler would need some of it.
const STACK: usize = 64 << 10;

/// Only the holder of this lock runs a probe.
static PROBES: Mutex<()> = Mutex::new(());

/// Runs a probe with the registers `before`, and returns the registers after it.
///
/// # Safety
/// `probe` is a probe whose block may run with those inputs, and no other thread runs a probe meanwhile.
unsafe fn run(probe: unsafe extern "C" fn(), before: &Registers) -> Registers {
    let state = &raw mut STATE;
    // SAFETY: no other thread uses the state, and the probe restores the registers that the caller keeps.
    unsafe {
        (*state).before = *before;
        (*state).after = Registers::ZERO;
        probe();
        (*state).after
    }
}

/// Runs a block once. Returns the names of the registers that it changed.
fn changes_of(block: &Block, complement: bool) -> BTreeSet<String> {
    let probe = block.probe.expect("privileged blocks are not run");
    let fill = if complement { !0x5a5a_a5a5_0123_4567 } else { 0x5a5a_a5a5_0123_4567u64 };
    let mut memory = vec![fill; 3 * PAGE / 8];
    let page = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: the offset lies within the three pages.
    let page = unsafe { page.add(page.align_offset(PAGE) + PAGE / 2) };
    let mut stack = vec![fill; 2 * STACK / 8];
    // SAFETY: the middle of the vector.
    let middle = unsafe { stack.as_mut_ptr().add(STACK / 8) };
    let middle = (middle.addr() & !63) as u64;
    let inputs = cases::inputs(block, page);
    let given: BTreeSet<_> = inputs.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        given,
        block.inputs.iter().copied().collect(),
        "{}: inputs given and declared",
        block.name
    );
    let before = Registers::filled(&inputs, middle, complement);
    let after = {
        let _only = PROBES.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the probe is the block's, its inputs point to our memory, and we hold the lock.
        unsafe { run(probe, &before) }
    };
    let mut changed: BTreeSet<String> = before.changes(&after).into_iter().collect();
    let sp = (middle as usize - stack.as_ptr().addr()) / 8;
    stack[sp + SCRATCH[0] / 8..sp + SCRATCH[1] / 8].fill(fill);
    if stack[sp - RED_ZONE / 8..].iter().any(|word| *word != fill) {
        changed.insert("stack".into());
    }
    if memory.iter().any(|word| *word != fill) {
        changed.insert("memory".into());
    }
    changed
}

/// Returns a block's changes, after running it with both values of every bit.
fn all_changes(block: &Block) -> BTreeSet<String> {
    &changes_of(block, false) | &changes_of(block, true)
}

/// Returns the complaints about a block: undeclared changes, and declared changes that don't happen.
fn complaints(block: &Block) -> Vec<String> {
    let changed = all_changes(block);
    let mut declared: BTreeSet<String> = block.changes.iter().map(|name| canonical(name)).collect();
    let has = |option| block.options.contains(&option);
    for (option, covers) in
        [("preserves_flags", "flags"), ("nostack", "stack"), ("nomem", "memory")]
    {
        // Omitting the option allows the change without requiring it.
        if !has(option) && changed.contains(covers) {
            declared.insert(covers.into());
        }
    }
    if has("readonly") {
        declared.remove("memory");
    }
    let undeclared = changed
        .difference(&declared)
        .map(|name| format!("{} changes {name} and does not say so", block.name));
    let untouched = declared
        .difference(&changed)
        .map(|name| format!("{} leaves {name} alone and says it changes it", block.name));
    undeclared.chain(untouched).collect()
}

/// Returns every block of this architecture.
fn all() -> Vec<&'static Block> {
    cases::TABLES.iter().copied().flatten().collect()
}

/// Returns every block that may run on this processor.
fn runnable() -> Vec<&'static Block> {
    let mut blocks = Vec::new();
    for block in all() {
        if block.probe.is_none() {
            continue;
        }
        if cases::exists(block) {
            blocks.push(block);
        } else {
            std::eprintln!("SKIPPED: this processor has no {}", block.name);
        }
    }
    blocks
}

#[test]
fn blocks_change_what_they_declare_and_nothing_else() {
    let blocks = runnable();
    assert!(!blocks.is_empty());
    for block in &blocks {
        assert_eq!(complaints(block), [""; 0]);
    }
}

#[test]
fn no_declaration_can_be_left_out() {
    for block in runnable() {
        for missing in block.changes {
            let changes: Vec<_> = block.changes.iter().copied().filter(|c| c != missing).collect();
            let wrong = Block { changes: changes.leak(), ..*block };
            let expected =
                format!("{} changes {} and does not say so", block.name, canonical(missing));
            assert_eq!(complaints(&wrong), [expected]);
        }
        let wrong = Block { options: &["nomem", "nostack", "preserves_flags"], ..*block };
        let changed = all_changes(block);
        for effect in ["memory", "flags"] {
            assert_eq!(
                complaints(&wrong).iter().any(|c| c.contains(effect)),
                changed.contains(effect),
                "{}: {effect}",
                block.name
            );
        }
    }
}

#[test]
fn wrong_blocks_are_caught() {
    for (block, expected) in cases::WRONG {
        if !cases::exists(block) {
            std::eprintln!("SKIPPED: this processor has no {}", block.name);
            continue;
        }
        let found = complaints(block);
        assert!(
            found.iter().any(|complaint| complaint.contains(expected)),
            "{}: {found:?} instead of {expected}",
            block.name
        );
    }
}

/// For blocks that fault in user mode, the manual replaces the probe.
#[test]
fn privileged_blocks_declare_what_the_manual_says() {
    let mut unused: BTreeSet<_> = cases::PRIVILEGED.iter().map(|(start, ..)| *start).collect();
    for block in all().into_iter().filter(|block| block.probe.is_none()) {
        let (mut flags, mut order) = (false, false);
        let mut writes = BTreeSet::new();
        for line in block.text {
            let (start, result, changes_flags, orders) = cases::PRIVILEGED
                .iter()
                .find(|(start, ..)| line.starts_with(start))
                .unwrap_or_else(|| panic!("{}: nothing is known of {line}", block.name));
            unused.remove(start);
            flags |= changes_flags;
            order |= orders;
            if *result {
                let operand = line[start.len()..].trim_start().split(',').next();
                writes.insert(operand.expect("an operand").trim().to_string());
            }
        }
        let declared: BTreeSet<_> = block.changes.iter().map(|c| c.to_string()).collect();
        let has = |option| block.options.contains(&option);
        assert_eq!(declared, writes, "{}: registers", block.name);
        assert_eq!(has("preserves_flags"), !flags, "{}: flags", block.name);
        assert_eq!(has("nomem"), !order, "{}: order of accesses", block.name);
        assert!(!has("readonly") && !has("pure"), "{}", block.name);
        assert!(has("nostack"), "{}: no instruction here pushes", block.name);
    }
    assert!(unused.is_empty(), "no block uses {unused:?}");
}

#[test]
fn assembly_stands_in_declared_blocks_alone() {
    fn visit(directory: &std::path::Path, found: &mut Vec<String>) {
        for file in std::fs::read_dir(directory).expect("the sources are here") {
            let path = file.expect("readable").path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "block") {
                    visit(&path, found);
                }
            } else if path.file_name().is_some_and(|name| name != "block.rs") {
                let text = std::fs::read_to_string(&path).expect("readable");
                if text.contains("asm!") {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    let mut found = Vec::new();
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    visit(&sources, &mut found);
    assert_eq!(found, [""; 0], "assembly outside of blocks!");
}
