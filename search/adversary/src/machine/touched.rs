//! Computes the footprint of an action: two actions with disjoint footprints commute.

use super::Core;
use super::buffer::Target;
use crate::action::{Action, Footprint, Kind};
use crate::kind::Stores;
use crate::op::Op;
use std::sync::atomic::Ordering;

impl Core {
    /// Returns whether anything waits for a barrier of this CPU to take effect: a store to a table, or a broadcast.
    pub(super) fn has_to_wait(&self, cpu: usize) -> bool {
        self.mmu.lags() || !self.cpus[cpu].broadcasts.is_empty()
    }

    pub(crate) fn footprint(&self, action: Action) -> Footprint {
        let index = action.cpu();
        let cpu = &self.cpus[index];
        let mut print = Footprint {
            cpu: index as u8,
            drain: false,
            address: 0,
            writes: false,
            looks: false,
            many_words: false,
            translation: 0,
            lines: 0,
        };
        match action.kind() {
            Kind::Interrupt => print.lines = 1 << index,
            Kind::Nmi | Kind::Preempt => {}
            Kind::Drain(place) => {
                print.drain = true;
                print.writes = true;
                if let Some(entry) = cpu.buffer.get(place) {
                    match entry.target {
                        Target::Word(word) => {
                            print.address = word as usize;
                            print.translation = 2 * u8::from(self.arena.place(word).is_some());
                        }
                        Target::Content { used, .. } => {
                            print.address = used.frame as usize + 1;
                            print.translation = 1;
                        }
                        Target::Invalidation { .. } => print.translation = 1,
                        Target::Fill(fill) => {
                            print.address = fill.first as usize + 1;
                            let tables =
                                fill.zeroes && self.mmu.written_words(fill.first).next().is_some();
                            let many = fill.frames > 1;
                            print.translation = 1 + u8::from(many || tables);
                            print.many_words = many || tables;
                        }
                    }
                }
            }
            Kind::Step => match cpu.pending {
                Op::Start | Op::Mask | Op::Fence | Op::Halt | Op::Park => {}
                Op::Relax => print.looks = true,
                Op::Touch { place, writes } => {
                    print.address = place;
                    print.writes = writes;
                }
                Op::Load(word, _) => print.address = word as usize,
                Op::Store(word, order) => {
                    if order == Ordering::SeqCst && self.kind.stores == Stores::Ordered {
                        print.address = word as usize;
                        print.writes = true;
                        print.translation = 2 * u8::from(self.arena.place(word).is_some());
                    }
                }
                Op::Modify(word, _) => {
                    print.address = word as usize;
                    print.writes = true;
                    print.translation = 2 * u8::from(self.arena.place(word).is_some());
                }
                Op::Barrier | Op::Complete => {
                    let waits = self.has_to_wait(index);
                    print.translation = 2 * u8::from(waits);
                    print.looks = waits && self.kind.reorders;
                }
                Op::Invalidate | Op::Root | Op::Broadcast => print.translation = 1,
                Op::Note => print.translation = 2,
                Op::Send(lines) => print.lines = lines,
                // A walker may set bits in a table, and we don't know which frame a load reads.
                Op::Access(_) => print.translation = 2,
                Op::Content { frame, store } => {
                    print.address = frame as usize + 1;
                    print.writes = store;
                    print.translation = 1;
                }
            },
        }
        // Early loads can distinguish the order of two stores.
        print.looks |= print.writes && self.kind.reorders;
        print
    }
}
