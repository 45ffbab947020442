//! CPUs that are idle, leave, come back, and go offline.

use super::BareKernel;
use crate::coverage::Happening;
use quell::Hardware;

impl BareKernel<'_> {
    /// Comes back to the space that this CPU has kept lazily, or loads it.
    pub fn resume(&self, space: usize) {
        self.hw.say(|| format!("comes back to space {space}"));
        if !self.engine.resume(&self.spaces[space]) {
            self.switch(space);
        }
    }

    /// Leaves the root that it has loaded, to be idle for long.
    pub fn leave(&self) {
        self.hw.say(|| "leaves its root".into());
        let me = self.hw.this_cpu().index();
        if let Some(space) = self.current[me].get() {
            self.engine.leave(&self.spaces[space]);
        }
    }

    /// This CPU goes offline.
    pub fn offline(&self) {
        let me = self.hw.this_cpu().index();
        self.hw.say(|| "goes offline".into());
        self.hw.happen(Happening::Offline);
        let current = self.current[me].take().map(|space| &self.spaces[space]);
        self.hw.mask_interrupts();
        self.engine.cpu_offline(current);
        self.hw.offline();
    }

    /// This CPU comes online.
    pub fn online(&self) {
        self.hw.say(|| "comes online".into());
        self.hw.online();
        self.engine.cpu_online();
        self.hw.restore_interrupts(true);
    }
}
