//! Compares the pairs of entries that the rule separates with the manual's list.

use super::*;

const BASE: Entry = Entry { tag: 1, root: 3, level: 0, page: 512, word: 7 << 12 | PRESENT };

/// Returns an entry that maps this frame.
fn frame(frame: u64) -> u64 {
    frame << 12 | PRESENT
}

const LARGE: Entry = Entry { level: 1, ..BASE };

fn table(at: u64) -> Entry {
    Entry { word: frame(at) | TABLE, ..LARGE }
}

#[test]
fn the_manuals_changes_contradict_and_others_do_not() {
    let global = Entry { tag: GLOBAL_TAG, ..BASE };
    let moved = Entry { word: frame(8), ..BASE };
    let writable = Entry { word: BASE.word | WRITABLE, ..BASE };
    let one_of_a_block = Entry { word: BASE.word | CONTIGUOUS, ..BASE };
    for (old, new, contradicts) in [
        (BASE, one_of_a_block, true),
        (one_of_a_block, BASE, true),
        (one_of_a_block, one_of_a_block, false),
        (BASE, BASE, false),
        (BASE, writable, false),
        (writable, BASE, false),
        (BASE, moved, true),
        (BASE, LARGE, true),
        (LARGE, BASE, true),
        (LARGE, table(7), true),
        (table(7), LARGE, true),
        (table(7), table(7), false),
        (table(7), table(8), true),
        // An entry below a table isn't compared with the table.
        (table(7), BASE, false),
        (BASE, table(7), false),
        (BASE, global, true),
        (global, BASE, false),
        (global, global, false),
    ] {
        assert!(new.meets(&old), "{new:?} {old:?}");
        assert_eq!(new.contradicts(&old, Break::Translation), contradicts, "{new:?} over {old:?}");
    }
}

#[test]
fn on_x86_two_sizes_contradict_and_nothing_else_does() {
    let moved = Entry { word: frame(8) | WRITABLE, ..BASE };
    let global = Entry { tag: GLOBAL_TAG, ..BASE };
    for (old, new, contradicts) in [
        (BASE, moved, false),
        (BASE, global, false),
        (table(7), table(8), false),
        (table(7), BASE, false),
        (BASE, table(7), false),
        (BASE, LARGE, true),
        (LARGE, BASE, true),
        (LARGE, table(7), true),
        (table(7), LARGE, true),
    ] {
        let judged = new.contradicts(&old, Break::Size);
        assert_eq!(judged, contradicts, "{new:?} over {old:?}");
    }
}

#[test]
fn only_what_one_lookup_can_find_meets() {
    let elsewhere = [
        Entry { tag: 2, ..BASE },
        Entry { root: 4, ..BASE },
        Entry { page: 513, ..BASE },
        Entry { page: 0, ..LARGE },
    ];
    for other in elsewhere {
        assert!(!BASE.meets(&other) && !other.meets(&BASE), "{other:?}");
    }
    let global = Entry { tag: GLOBAL_TAG, ..BASE };
    assert!(global.meets(&BASE) && BASE.meets(&global));
    assert!(LARGE.meets(&Entry { page: 1023, ..BASE }));
}

#[test]
fn equal_contents_excuse_the_address_alone() {
    let meeting =
        |old: Entry, new: Entry| EntryConflict { cpu: 0, place: (0, 0), new, old, old_written: 0 };
    let moved = Entry { word: frame(8), ..BASE };
    assert_eq!(meeting(BASE, moved).of_equals(), Some((7, 8, 1)));
    let writable = Entry { word: moved.word | WRITABLE, ..BASE };
    assert_eq!(meeting(BASE, writable).of_equals(), None);
    assert_eq!(meeting(writable, moved).of_equals(), None);
    assert_eq!(meeting(BASE, LARGE).of_equals(), None);
    assert_eq!(meeting(LARGE, table(7)).of_equals(), None);
    assert_eq!(meeting(table(7), table(8)).of_equals(), None);
    let global = Entry { tag: GLOBAL_TAG, ..moved };
    assert_eq!(meeting(BASE, global).of_equals(), None);
}
