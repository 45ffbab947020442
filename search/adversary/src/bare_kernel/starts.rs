//! How programs of more than one scenario start.

use super::{BareKernel, frame};

/// Pages 0 and 1 of space 0 are mapped, and every CPU runs it.
pub fn two_pages(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(0, 1, frame(1), true);
    }
    k.switch(0);
}
