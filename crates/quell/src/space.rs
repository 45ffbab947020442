//! An address space as the engine sees it: a generation, the CPUs that use it, and its debts.
//!
//! # Generations
//!
//! Each change of an entry that needs a flush takes the next *flush generation* of the space, after
//! the table was written and before the set of CPUs is read. Each CPU remembers for each of its
//! tags up to which generation it has caught up. So three numbers meet at a target (what the
//! request says, what this CPU has done, what the space is at), and whatever happens to the
//! message, lost sight of, merged, late or doubled, the comparison makes it harmless: a request
//! that is the next step is flushed as it says, one that is behind is ignored, a gap is closed by
//! a flush of the whole tag.
//!
//! # Who is interrupted
//!
//! `loaded` names the CPUs that may have the space's root loaded. A CPU enters it *before* it reads
//! the generation and loads the root, and leaves it after another root was loaded: it may be named
//! in vain, never missed. CPUs that merely keep tagged entries are not named; they compare
//! generations when they load the space again.
//!
//! # Debts
//!
//! `debt` is the one word that a second actor looks at when it meets a cleared entry: zero means
//! that every cleared entry of this space has been flushed. Its low bits count the batches whose
//! flush is still to come (S0); the rest is the latest stamp of the flush clock owed until reuse
//! (S3).

use crate::addr::Frame;
use crate::cpu_set::AtomicCpuSet;
use crate::hardware::{Hardware, Word};
use core::sync::atomic::Ordering;

/// The name of an address space, never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceId(pub u64);

/// An address space. Made by [`Engine::new_space`](crate::Engine::new_space).
///
/// It owns neither its root nor its tables: after [`Engine::retire`](crate::Engine::retire) the
/// embedder frees them.
#[repr(align(64))]
pub struct AddressSpace<H: Hardware> {
    /// Written by initiators, read by CPUs that load the space.
    pub(crate) generation: H::Word,
    pub(crate) debt: H::Word,
    /// The system-wide tag and the tag generation it belongs to; 0 before the first load.
    pub(crate) tag: H::Word,
    id: SpaceId,
    root: Frame,
    pub(crate) loaded: AtomicCpuSet<H::Word>,
}

/// The debt word of a space, taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Debt(pub(crate) u64);

const DEFERRED_BITS: u32 = 12;

impl Debt {
    /// How many batches still have to flush.
    pub(crate) fn deferred(self) -> u64 {
        self.0 & ((1 << DEFERRED_BITS) - 1)
    }
    /// The latest stamp owed until reuse; 0 if none.
    pub(crate) fn stamp(self) -> u64 {
        self.0 >> DEFERRED_BITS
    }
    pub(crate) fn without_stamp(self) -> Debt {
        Debt(self.deferred())
    }
}

impl<H: Hardware> AddressSpace<H> {
    pub(crate) fn new(id: SpaceId, root: Frame) -> Self {
        AddressSpace {
            generation: H::Word::new(1),
            debt: H::Word::new(0),
            tag: H::Word::new(0),
            id,
            root,
            loaded: AtomicCpuSet::new(),
        }
    }

    /// The space's name.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The frame of the space's root table.
    pub fn root(&self) -> Frame {
        self.root
    }

    /// The name of the word at this address, if it is one of this space's: for whoever shows people
    /// what the engine does, word by word.
    #[doc(hidden)]
    pub fn word_name(&self, address: usize) -> Option<&'static str> {
        let at = |word: &H::Word| core::ptr::from_ref(word) as usize == address;
        let start = core::ptr::from_ref(self) as usize;
        match () {
            () if at(&self.generation) => Some("generation"),
            () if at(&self.debt) => Some("debt"),
            () if at(&self.tag) => Some("tag"),
            () if (start..start + size_of_val(self)).contains(&address) => Some("loaded"),
            () => None,
        }
    }

    /// A batch has cleared an entry of the space and will flush later. Called under the lock of the
    /// table, so that whoever takes that lock next and finds the entry cleared finds the debt too.
    pub(crate) fn defer(&self) {
        self.debt.fetch_add(1, Ordering::SeqCst);
    }

    /// The batch has flushed. Release: whoever sees the debt gone sees the flush done.
    pub(crate) fn deferred_done(&self) {
        self.debt.fetch_add(u64::MAX, Ordering::SeqCst);
    }

    /// The batch will not flush: its debt is owed until reuse, as of `stamp`.
    pub(crate) fn deferred_owed(&self, stamp: u64) {
        self.update_debt(|debt| {
            let others = debt.deferred().saturating_sub(1);
            Debt(others | stamp.max(debt.stamp()) << DEFERRED_BITS)
        });
    }

    pub(crate) fn update_debt(&self, change: impl Fn(Debt) -> Debt) {
        let mut held = self.debt.load(Ordering::Relaxed);
        while let Err(now) = self.debt.compare_exchange(
            held,
            change(Debt(held)).0,
            Ordering::SeqCst,
            Ordering::Relaxed,
        ) {
            held = now;
        }
    }
}
