//! The state of tables besides their words.

use crate::oracle::Moment;
use quell_vm::machine::TABLE_WORDS;

/// The state of all tables besides their words. A run uses few of the tables that it could have, so the others take no
/// memory.
pub(super) struct TableStates {
    /// The tables with words that may not be zero, as bits.
    used: Box<[u64]>,
    /// The state of each table that has had such words, in this run or an earlier one.
    sides: Box<[Option<Box<TableState>>]>,
}

struct TableState {
    /// The words that may not be zero, as bits.
    nonzero: [u64; TABLE_WORDS / 64],
    /// When each word was last written.
    written: [Moment; TABLE_WORDS],
}

impl TableStates {
    pub(super) fn of(tables: usize) -> Self {
        TableStates {
            used: vec![0; tables.div_ceil(64)].into(),
            sides: (0..tables).map(|_| None).collect(),
        }
    }

    pub(super) fn tables(&self) -> u32 {
        self.sides.len() as u32
    }

    /// Returns the moment at which a word was last written.
    #[inline]
    pub(super) fn written(&self, (table, index): (u32, usize)) -> Moment {
        let side = &self.sides[table as usize];
        side.as_ref().map_or(0, |side| side.written[index])
    }

    /// Records that a word that may not be zero was written at `now`.
    #[inline]
    pub(super) fn set_written(&mut self, (table, index): (u32, usize), now: Moment) {
        if let Some(side) = &mut self.sides[table as usize] {
            side.written[index] = now;
        }
    }

    /// Records that a word may not be zero from now on.
    #[inline]
    pub(super) fn use_word(&mut self, (table, index): (u32, usize)) {
        let table = table as usize;
        self.used[table / 64] |= 1 << (table % 64);
        let side = self.sides[table].get_or_insert_with(|| {
            Box::new(TableState { nonzero: [0; TABLE_WORDS / 64], written: [0; TABLE_WORDS] })
        });
        side.nonzero[index / 64] |= 1 << (index % 64);
    }

    /// Returns the words of a frame that may not be zero: none if the frame isn't a table.
    pub(super) fn words(&self, frame: u32) -> impl Iterator<Item = usize> + use<> {
        let side = self.sides.get(frame as usize).and_then(Option::as_ref);
        let nonzero = side.map_or([0; TABLE_WORDS / 64], |side| side.nonzero);
        let blocks = nonzero.into_iter().enumerate();
        blocks.flat_map(|(block, words)| bits(words).map(move |bit| block * 64 + bit))
    }

    /// Resets all words to zero, as if never written. Calls `zero` for each word that may not be zero.
    pub(super) fn clear(&mut self, mut zero: impl FnMut(u32, usize)) {
        for (block, used) in self.used.iter_mut().enumerate() {
            for table in bits(std::mem::take(used)).map(|bit| block * 64 + bit) {
                let Some(side) = &mut self.sides[table] else {
                    continue;
                };
                for (block, words) in side.nonzero.iter_mut().enumerate() {
                    for index in bits(std::mem::take(words)).map(|bit| block * 64 + bit) {
                        side.written[index] = 0;
                        zero(table as u32, index);
                    }
                }
            }
        }
    }
}

/// Returns the positions of the bits that are set.
#[inline]
fn bits(of: u64) -> impl Iterator<Item = usize> {
    let mut left = of;
    std::iter::from_fn(move || {
        let bit = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}
