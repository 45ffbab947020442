//! Passes any value that the types allow to the functions for formats and operands. They may panic only as documented.
//! We build tests with overflow checks, so an arithmetic overflow is a panic, too.

use any_value::scope;
use proptest::prelude::*;
use quell::{Entry, Frame, Invalidation, Level, PageRange, PageSize, Tag};
use quell_arch::{aarch64, riscv64, x86_64};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[path = "../../quell/tests/support/any.rs"]
mod any_value;

/// A limit for numbers that fit into any table.
const FEW: u64 = 2000;

fn number() -> impl Strategy<Value = u64> {
    any_value::number(FEW)
}

fn range() -> impl Strategy<Value = PageRange> {
    any_value::range(FEW)
}

/// Returns a strategy for any present entry.
fn entry() -> impl Strategy<Value = Entry> {
    any_value::entry(FEW).prop_map(|entry| Entry { present: true, ..entry })
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![4 => 0..5u8, 1 => any::<u8>()].prop_map(Level)
}

/// Returns whether the call panics.
fn panics<R>(call: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

/// Returns whether `encode` panics by its documentation: because of the frame, its alignment, or a root that maps a
/// page.
fn refuses(entry: &Entry, level: Level, most: u64) -> bool {
    let unaligned = |size: PageSize| !entry.frame.0.is_multiple_of(size.pages());
    entry.frame.address() / 4096 > most
        || !entry.table && level.size().is_none_or(|size| cfg!(debug_assertions) && unaligned(size))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn entries_panic_as_documented_alone(entry in entry(), level in level(), raw in any::<u64>(), bit in 0..64u32) {
        let low_table = cfg!(debug_assertions) && entry.table && level == Level::LEAF;
        prop_assert_eq!(
            panics(|| x86_64::entry::encode(entry, level)),
            refuses(&entry, level, (1 << 40) - 1) || low_table
        );
        prop_assert_eq!(
            panics(|| aarch64::entry::encode(entry, level)),
            refuses(&entry, level, (1 << 36) - 1)
        );
        let no_right = !entry.table
            && !entry.writable
            && !entry.executable
            && entry.special & riscv64::entry::UNREADABLE != 0;
        let beyond = entry.frame.0 > (1 << 44) - 1;
        prop_assert_eq!(
            panics(|| riscv64::entry::encode(entry, level)),
            beyond || refuses(&entry, level, u64::MAX) || no_right
        );
        let _ = (x86_64::entry::decode(raw, level), aarch64::entry::decode(raw, level), riscv64::entry::decode(raw, level));
        let _ = (aarch64::entry::mark_dirty(raw, true), aarch64::entry::mark_dirty(raw, false));
        prop_assert_eq!(panics(|| x86_64::entry::Format::with_encryption_bit(bit)), !(12..52).contains(&bit));
    }

    #[test]
    fn roots_panic_as_documented_alone(root in number(), tag in any::<u16>(), keep in any::<bool>()) {
        let (frame, tag) = (Frame(root), Tag(tag));
        prop_assert_eq!(panics(|| x86_64::tlb::cr3(frame, tag, keep)), root >> 40 != 0 || tag.0 > x86_64::tlb::MAX_TAG);
        prop_assert_eq!(panics(|| aarch64::tlb::ttbr0(frame, tag)), root >> 36 != 0);
        prop_assert_eq!(panics(|| riscv64::tlb::satp(frame, tag)), root >> 44 != 0);
        let lent = (1..=x86_64::isolation::UserHalves::TAGS).contains(&tag.0);
        prop_assert_eq!(panics(|| x86_64::isolation::user_tag(tag)), !lent);
        let halves = x86_64::isolation::UserHalves::new();
        halves.loaded(tag, keep);
        prop_assert_eq!(panics(|| halves.cr3(frame, tag)), !lent || root >> 40 != 0);
    }

    #[test]
    fn no_operand_panics(range in range(), scope in scope(), tag in any::<u16>(), most in any::<u32>(), with in any::<[bool; 3]>()) {
        let tag = Tag(tag);
        let _ = (x86_64::tlb::Broadcast::tag(tag), aarch64::tlb::tag_operand(tag));
        x86_64::tlb::Broadcast::range(tag, range, scope, most).take(40).for_each(drop);
        x86_64::tlb::Broadcast::kernel(range, scope, most).take(40).for_each(drop);
        riscv64::tlb::operations(range, scope).take(40).for_each(drop);
        let [ranges, level_hint, wide_addresses] = with;
        let operands = aarch64::tlb::Operands { range: ranges, level_hint, wide_addresses };
        aarch64::tlb::operations(tag, range, scope, operands).take(40).for_each(drop);
        let halves = x86_64::isolation::UserHalves::new();
        for what in [
            Invalidation::Range { tag, range, scope },
            Invalidation::Tag(tag),
            Invalidation::All,
            Invalidation::Kernel { range, scope },
            Invalidation::Everything,
        ] {
            halves.invalidated(what);
        }
    }

    #[test]
    fn no_processor_panics(registers in any::<[u32; 4]>(), ids in any::<[u64; 5]>(), isa in "[a-z0-9_]{0,40}", asid in any::<u16>()) {
        let _ = x86_64::features::Features::decode(|_, _| registers).list();
        let [mmfr0, mmfr1, mmfr2, isar0, dczid] = ids;
        let ids = aarch64::features::Registers { mmfr0, mmfr1, mmfr2, isar0, dczid };
        let _ = aarch64::features::Features::decode(ids).list();
        let _ = riscv64::features::Features::decode(&isa, asid).list();
    }
}
