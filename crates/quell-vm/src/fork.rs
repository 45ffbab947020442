//! Fork: a copy of a process whose anonymous pages are shared until one side writes.
//!
//! The parent's pages lose the right to be written, and the child can be entered only after that was
//! flushed: before, a thread of the parent could still write a page through an old translation
//! while another CPU copies it for the child (C2). File pages are not copied; the child finds them by faults.

use crate::area::Source;
use crate::entry::View;
use crate::frame::Owner;
use crate::gather::Gather;
use crate::machine::{Entry, Level, Machine};
use crate::process::Process;
use crate::table::Migrating;
use crate::user::{Call, Error};
use crate::vm::Vm;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::mutant::Mutant;
use quell::{Page, Purpose};

impl<'m, M: Machine> Vm<'m, M> {
    pub(crate) fn fork(&self, parent: &Arc<Process<M>>) -> Result<u64, Error> {
        let machine = self.machine();
        let areas = parent.areas.write(machine);
        let child = self.new_process(areas.clone())?;
        let mut gather = Gather::new(self, Purpose::Call);
        let mut result = Ok(u64::from(child.id));
        for area in areas.iter() {
            if matches!(area.source, Source::File { shared: true, .. }) {
                continue;
            }
            if let Err(error) = self.share(parent, &child, area.start, area.end, &mut gather) {
                result = Err(error);
                break;
            }
        }
        if !machine.mutant(Mutant::VmForkReturnsUnflushed) {
            gather.flush();
        }
        self.publish(child.clone());
        drop(areas);
        if result.is_err() {
            drop(gather);
            self.call(Call::Exit { process: child.id })?;
        }
        result
    }

    /// Shares the anonymous pages of a range with the child.
    fn share<'v>(
        &'v self,
        parent: &Arc<Process<M>>,
        child: &Arc<Process<M>>,
        start: Page,
        end: Page,
        gather: &mut Gather<'v, 'm, M>,
    ) -> Result<(), Error> {
        // The child's tables are made without the parent's lock; until then references keep what
        // the child is to map.
        let mut found: Vec<(Page, Level, View)> = Vec::new();
        self.each_entry(
            parent,
            start,
            end,
            Migrating::Wait,
            |guard, page, view| match view {
                View::Page(entry) => {
                    let mut state = self.frames.info(entry.frame).state(self.machine());
                    if state.owner == Owner::Anonymous {
                        state.references += 1;
                        drop(state);
                        guard.update(page, Some(gather), |entry| entry.writable = false);
                        found.push((guard.range(page).start, guard.level, view));
                    }
                }
                View::Swapped(slot) => {
                    self.swap_hold(slot);
                    found.push((page, guard.level, view));
                }
                _ => {}
            },
        );
        let mut result = Ok(());
        for (page, level, view) in found {
            let guard = match result {
                Ok(()) => self.table_for(child, page, level),
                Err(_) => None,
            };
            match (guard, view) {
                (Some(guard), View::Page(entry)) => {
                    guard.map(
                        page,
                        Entry {
                            writable: false,
                            ..entry
                        },
                    );
                }
                (Some(guard), view) => guard.put(page, view),
                (None, View::Page(entry)) => {
                    result = Err(Error::OutOfMemory);
                    self.put(entry.frame);
                }
                (None, View::Swapped(slot)) => {
                    result = Err(Error::OutOfMemory);
                    self.swap_put(slot);
                }
                (None, _) => {}
            }
        }
        result
    }
}
