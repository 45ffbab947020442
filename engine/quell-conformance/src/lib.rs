#![cfg_attr(not(test), no_std)]
//! Tests a kernel's [`Hardware`](quell::Hardware), and the engine on it, inside the running kernel.
//!
//! The tests detect a `Hardware` that breaks a promise of its trait, and an engine that breaks its contract on this
//! machine. The contract consists of the clauses C1 to C8, which `docs/contract.md` explains.
//!
//! A kernel that uses the engine already implements `Hardware`, and [`PhysicalMemory`](quell_zero::PhysicalMemory) for
//! zeroing memory. For this suite it also implements [`Bench`]: operations that the engine never performs, such as
//! writing table entries and accessing memory. It creates an engine and a [`Suite`] from it, and every CPU calls
//! [`Suite::run`].
//!
//! The suite needs no page allocator, no processes and no user mode. The kernel itself may make the accesses, for
//! example, through the user half of the loaded root.
//!
//! In this example a machine with one CPU runs the suite. Its TLB and memory are maps. Its `Hardware` is like the one
//! in `quell`'s example, and is hidden here:
//!
//! ```
//! # use quell::{CpuId, CpuSet, Features, Hardware, Invalidation, NoBroadcasts, Tag, Tagging};
//! # use std::sync::atomic::{AtomicU64, Ordering};
//! use quell::{Engine, LedgerEntry, Extent, Frame, Page, PerCpuData, Policy};
//! use quell_conformance::{Bench, Rights, Suite};
//! use quell_zero::{PhysicalMemory, Strategy};
//! use std::collections::HashMap;
//! use std::sync::{Mutex, MutexGuard};
//!
//! #[derive(Default)]
//! struct State {
//!     /// The tables: the entries of each root.
//!     entries: HashMap<(Frame, Page), (Frame, Rights)>,
//!     /// The TLB, and the root that it is filled from.
//!     tlb: HashMap<Page, (Frame, Rights)>,
//!     root: Option<Frame>,
//!     /// Words that are not zero.
//!     memory: HashMap<(Frame, usize), u64>,
//!     taken: u64,
//! }
//!
//! #[derive(Default)]
//! struct Machine(Mutex<State>);
//!
//! impl Machine {
//!     fn state(&self) -> MutexGuard<'_, State> {
//!         self.0.lock().unwrap()
//!     }
//!
//!     /// Returns the word that an access reaches through the TLB, which is filled from the loaded root.
//!     fn translate(&self, address: u64, store: bool) -> Option<(Frame, usize)> {
//!         let (state, page) = (&mut *self.state(), Page::containing(address));
//!         if let (None, Some(root)) = (state.tlb.get(&page), state.root) {
//!             let entry = state.entries.get(&(root, page)).copied();
//!             state.tlb.extend(entry.map(|entry| (page, entry)));
//!         }
//!         let &(frame, rights) = state.tlb.get(&page)?;
//!         (rights == Rights::Write || !store).then_some((frame, (address % 4096 / 8) as usize))
//!     }
//! }
//!
//! impl PhysicalMemory for Machine {
//!     unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
//!         let within = |frame: Frame| frame.0.wrapping_sub(extent.first.0) < extent.frames;
//!         self.state().memory.retain(|&(frame, _), _| !within(frame));
//!     }
//! }
//!
//! // SAFETY: frames and roots are names in maps of this machine's own.
//! unsafe impl Bench for Machine {
//!     fn cpus(&self) -> usize {
//!         1
//!     }
//!     fn take_frames(&self, frames: u64) -> Extent {
//!         let mut state = self.state();
//!         state.taken += frames;
//!         Extent { first: Frame(state.taken - frames), frames }
//!     }
//!     fn new_root(&self) -> Frame {
//!         self.take_frames(1).first
//!     }
//!     fn set(&self, root: Frame, page: Page, to: Option<(Frame, Rights)>) {
//!         match to {
//!             Some(entry) => drop(self.state().entries.insert((root, page), entry)),
//!             None => drop(self.state().entries.remove(&(root, page))),
//!         }
//!     }
//!     fn unlink_table(&self, root: Frame, page: Page) -> Frame {
//!         let below = |of: Frame, at: Page| of == root && at.0 / 512 == page.0 / 512;
//!         self.state().entries.retain(|&(of, at), _| !below(of, at));
//!         self.new_root()
//!     }
//!     fn word(&self, frame: Frame, index: usize) -> u64 {
//!         self.state().memory.get(&(frame, index)).copied().unwrap_or(0)
//!     }
//!     fn set_word(&self, frame: Frame, index: usize, value: u64) {
//!         self.state().memory.insert((frame, index), value);
//!     }
//!     fn try_read(&self, address: u64) -> Option<u64> {
//!         let (frame, index) = self.translate(address, false)?;
//!         Some(self.word(frame, index))
//!     }
//!     fn try_write(&self, address: u64, value: u64) -> bool {
//!         let place = self.translate(address, true);
//!         place.map(|(frame, index)| self.set_word(frame, index, value)).is_some()
//!     }
//! }
//!
//! # // SAFETY: `invalidate` drops what it is told to, and the features are what the machine has.
//! # unsafe impl Hardware for Machine {
//! #     type Word = AtomicU64;
//! #     type Broadcasts = NoBroadcasts;
//! #     fn this_cpu(&self) -> CpuId {
//! #         CpuId(0)
//! #     }
//! #     fn features(&self) -> Features {
//! #         Features { tagging: Tagging::None, broadcast: false, full_above: 33 }
//! #     }
//! #     fn fence(&self) {
//! #         std::sync::atomic::fence(Ordering::SeqCst);
//! #     }
//! #     fn invalidate(&self, what: Invalidation) {
//! #         self.state().tlb.retain(|&page, _| match what {
//! #             Invalidation::Range { range, .. } => !range.contains(page),
//! #             _ => false,
//! #         });
//! #     }
//! #     unsafe fn load_root(&self, root: Frame, _tag: Tag, _keep: bool) {
//! #         self.invalidate(Invalidation::All);
//! #         self.state().root = Some(root);
//! #     }
//! #     fn unload_root(&self) {
//! #         self.invalidate(Invalidation::All);
//! #         self.state().root = None;
//! #     }
//! #     fn interrupt(&self, targets: &CpuSet) {
//! #         assert!(targets.is_empty(), "there is one CPU");
//! #     }
//! #     fn mask_interrupts(&self) -> bool {
//! #         false
//! #     }
//! #     fn restore_interrupts(&self, _were_on: bool) {}
//! #     fn relax(&self) {}
//! # }
//! #
//! let machine = Machine::default();
//! let (cpus, ledger) = ([PerCpuData::new()], [(); 4].map(|()| LedgerEntry::new()));
//! let engine = Engine::new(&machine, &cpus, &ledger, Policy::ALL)?;
//! let suite = Suite::new(&engine);
//!
//! // On every CPU, at once, with the space that it has loaded, if any:
//! engine.cpu_online();
//! suite.run(None, |check| {
//!     assert_eq!(check.failures, 0, "{} failed: {}", check.name, check.saw);
//! });
//! # Ok::<(), quell::EngineError>(())
//! ```
//!
//! Each check makes one change as a kernel would, on every CPU in turn. All CPUs read through their translations
//! before, during and after the change. While the targets read, the suite masks their interrupts for a moment: this
//! catches an initiator that doesn't wait.
//!
//! # Limits
//!
//! The suite detects a broken promise only if a stale translation is visible *on this machine*. [`Check::kept`] is the
//! number of CPUs that still used a translation after its entry was changed and before the flush, as they may. If it's
//! 0, the machine kept nothing stale, so that check proves little. Few emulators, for example, model speculative fills,
//! walker caches, or entries under tags that aren't loaded. The machine of `quell-adversary` does.
//!
//! The suite can't end a flush that never ends (C7). So the kernel's own watchdog must end such a hang.

#[cfg(feature = "suite")]
extern crate alloc;

#[cfg(feature = "suite")]
mod bench;
#[cfg(feature = "suite")]
mod checks;
#[cfg(feature = "suite")]
mod part;
pub mod policy_text;
#[cfg(feature = "suite")]
mod promises;
#[cfg(feature = "suite")]
mod suite;
#[cfg(feature = "suite")]
pub mod verdict;

#[cfg(feature = "suite")]
pub use bench::{Bench, Rights};
pub use policy_text::{PolicyError, PolicyText, parse_policy};
#[cfg(feature = "suite")]
pub use suite::{Check, Suite};
