//! The kernel's own half, which is walked under any root, and the effects of unloading a root.

use super::Mmu;
use super::held::GLOBAL_TAG;
use super::leaves::{Leaf, Path};
use crate::oracle::Moment;
use crate::tables::{Arena, PRESENT};

impl Mmu {
    pub(super) fn walk_kernel(&mut self, arena: &Arena, cpu: usize) {
        if let Some(kernel) = self.kernel {
            self.walk_from(arena, cpu, kernel);
        }
    }

    /// Gives the kernel its own half under this root. This CPU's TLB holds junk for the page `junk`.
    pub(crate) fn use_kernel(&mut self, arena: &Arena, cpu: usize, root: u32, junk: Option<u64>) {
        self.kernel = Some(root);
        self.tlbs[cpu].leaves.extend(junk.map(|page| Leaf {
            tag: GLOBAL_TAG,
            level: 0,
            page,
            from: page,
            word: PRESENT,
            via: root,
            root: root + 1,
            written: 0,
            until: 0,
            path: Path { since: 0, cut: 0 },
        }));
        self.walk_kernel(arena, cpu);
    }

    /// Returns the root of the kernel's half.
    pub(crate) fn kernel(&self) -> Option<u32> {
        self.kernel
    }

    /// Unloads the loaded root. If the kernel has its own half, that one stays loaded alone, under tag 0.
    pub(crate) fn unload_root(&mut self, arena: &Arena, cpu: usize, now: Moment) {
        if self.leave(cpu, now) && self.kernel.is_some() {
            let tlb = &mut self.tlbs[cpu];
            tlb.drop_tag(0);
            tlb.tag = 0;
            self.walk_kernel(arena, cpu);
        }
    }

    /// Ends all walks from the loaded root. Returns whether there was one.
    pub(super) fn leave(&mut self, cpu: usize, now: Moment) -> bool {
        let tlb = &mut self.tlbs[cpu];
        // Without a root, only the kernel's half was walked.
        let left = tlb.root.take().is_some();
        if !left && self.kernel.is_none() {
            return false;
        }
        for p in &mut tlb.pointers {
            p.until = p.until.min(now);
            // The root of the kernel's half still leads to its tables.
            if self.kernel != Some(p.root) {
                p.path.cut = p.path.cut.min(now);
            }
        }
        for l in tlb.leaves.iter_mut().filter(|l| l.tag != GLOBAL_TAG) {
            l.until = l.until.min(now);
            if self.kernel != Some(l.root) {
                l.path.cut = l.path.cut.min(now);
            }
        }
        left
    }
}
