//! CPUs that become idle, leave their root, return, and go offline.

use super::{BareKernel, Space};
use crate::coverage::MachineEvent;
use quell::Hardware;

impl BareKernel<'_> {
    /// Makes this CPU run a space again that it has kept loaded lazily. If it has left the space, loads it.
    pub fn resume(&self, space: usize) {
        self.hw.say(|| format!("returns to space {space}"));
        if !self.engine.this_cpu().resume(&self.spaces[space]) {
            self.switch(space);
        }
    }

    /// Leaves the loaded root, as for a long idle time.
    pub fn leave(&self) {
        self.hw.say(|| "leaves its root".into());
        let me = self.hw.this_cpu().index();
        if let Some(space) = self.current[me].get() {
            self.engine.this_cpu().leave(&self.spaces[space]);
        }
    }

    /// Makes this CPU return to its program. From now on, changes of kernel mappings don't interrupt the CPU.
    pub fn enter_user(&self) {
        if self.hw.kind().breaks_by_interrupt() {
            return;
        }
        self.hw.say(|| "returns to its program".into());
        let were_on = self.hw.mask_interrupts();
        // SAFETY: this kernel uses no page of its half while it enters and leaves, and NMI handlers enter the kernel
        // first.
        unsafe { self.engine.this_cpu().enter_user() };
        self.hw.restore_interrupts(were_on);
    }

    /// Makes this CPU enter the kernel, and flush the kernel mappings that have changed meanwhile.
    pub fn enter_kernel(&self) {
        self.hw.say(|| "enters the kernel".into());
        let were_on = self.hw.mask_interrupts();
        self.engine.this_cpu().enter_kernel();
        self.hw.restore_interrupts(were_on);
    }

    /// Takes this CPU offline.
    pub fn offline(&self) {
        let me = self.hw.this_cpu().index();
        let current = self.current[me].take().map(|space| &self.spaces[space]);
        self.go_offline(current);
    }

    /// Takes this CPU offline without naming the space that it loaded last.
    ///
    /// A kernel may do that if the CPU was evicted from the space.
    pub fn offline_unnamed(&self) {
        self.current[self.hw.this_cpu().index()].set(None);
        self.go_offline(None);
    }

    fn go_offline(&self, current: Option<&Space>) {
        self.hw.say(|| "goes offline".into());
        self.hw.happen(MachineEvent::Offline);
        self.hw.mask_interrupts();
        self.engine.cpu_offline(current);
        self.hw.offline();
    }

    /// Brings this CPU online.
    pub fn online(&self) {
        self.hw.say(|| "comes online".into());
        self.hw.online();
        self.engine.cpu_online();
        self.hw.restore_interrupts(true);
    }
}
