//! A machine with one CPU, for the examples in the documentation. It's not part of the interface.

use crate::addr::{Frame, Page};
use crate::cpu_set::{CpuId, CpuSet};
use crate::features::{Features, Tagging};
use crate::hardware::{Hardware, Invalidation, NoBroadcasts, Tag};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};

/// A CPU without tags whose TLB caches translations of pages 0 to 63.
#[derive(Default)]
pub struct OneCpu {
    tlb: AtomicU64,
}

impl OneCpu {
    /// Uses a page, so the TLB caches its translation.
    pub fn access(&self, page: Page) {
        self.tlb.fetch_or(1 << page.0, SeqCst);
    }

    /// Returns whether the TLB caches a translation of the page.
    pub fn caches(&self, page: Page) -> bool {
        self.tlb.load(SeqCst) & 1 << page.0 != 0
    }
}

// SAFETY: `invalidate` drops what it is asked to, at once, and the features are those of this machine.
#[allow(unsafe_code)]
unsafe impl Hardware for OneCpu {
    type Word = AtomicU64;
    type Broadcasts = NoBroadcasts;

    fn this_cpu(&self) -> CpuId {
        CpuId(0)
    }
    fn features(&self) -> Features {
        Features { tagging: Tagging::None, broadcast: false, full_above: 33 }
    }
    fn fence(&self) {
        fence(SeqCst);
    }
    fn invalidate(&self, what: Invalidation) {
        let drops = |page: &u64| match what {
            Invalidation::Range { range, .. } => range.contains(Page(*page)),
            _ => true,
        };
        for page in (0..64).filter(drops) {
            self.tlb.fetch_and(!(1 << page), SeqCst);
        }
    }
    unsafe fn load_root(&self, _root: Frame, _tag: Tag, _keep: bool) {
        self.invalidate(Invalidation::All);
    }
    fn unload_root(&self) {
        self.invalidate(Invalidation::All);
    }
    fn interrupt(&self, targets: &CpuSet) {
        assert!(targets.is_empty(), "there is one CPU");
    }
    fn mask_interrupts(&self) -> bool {
        false
    }
    fn restore_interrupts(&self, _were_on: bool) {}
    fn relax(&self) {}
}

/// Makes a machine, an engine on it and a space that its CPU runs.
#[doc(hidden)]
#[macro_export]
macro_rules! one_cpu {
    ($machine:ident, $engine:ident, $space:ident) => {
        let $machine = $crate::example::OneCpu::default();
        let cpus = [$crate::PerCpuData::new()];
        let ledger = [(); 4].map(|()| $crate::LedgerEntry::new());
        let $engine = $crate::Engine::new(&$machine, &cpus, &ledger, $crate::Policy::ALL).unwrap();
        // SAFETY: this machine walks no tables.
        let $space = unsafe { $engine.new_space($crate::Frame(1)) };
        $engine.cpu_online();
        $engine.this_cpu().mask_interrupts().switch(None, &$space);
    };
}
