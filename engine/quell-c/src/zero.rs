//! Zeroes memory by extents, runs of adjacent frames.
//!
//! This small part of the interface also works without an engine. `quell_arch` has the instructions, and `quell_zero`
//! chooses the order.

use crate::place::{QUELL_WORD_ALIGN, content, engine, places, quell_engine, room};
use crate::status::{answer, quell_status};
use core::ffi::c_void;
use core::mem::{MaybeUninit, align_of, size_of};
use quell::PAGE_BYTES;
use quell::{Extent, Frame};
use quell_zero::{Chooser, ClearPolicy, Clearer, PhysicalMemory, Strategy};

/// Bytes of a `struct quell_zero_plan`.
pub const QUELL_ZERO_PLAN_SIZE: usize = 72;

/// A plan for zeroing memory on this processor. quell_zero_plan_new makes it.
#[repr(C, align(8))]
pub struct quell_zero_plan {
    opaque: [u8; QUELL_ZERO_PLAN_SIZE],
}

places! { quell_zero_plan: PlanCell = QUELL_ZERO_PLAN_SIZE / QUELL_WORD_ALIGN }

/// Marks memory that holds a plan.
const SEAL: u64 = 0x0071_7565_6c6c_0c01;

/// A plan. The seal records whether the rest is initialised.
pub(crate) struct PlanCell {
    seal: u64,
    policy: MaybeUninit<ClearPolicy>,
}

/// Returns the plan in this memory.
///
/// # Errors
/// If the pointer is refused, or if there is no plan.
///
/// # Safety
/// The memory is initialised, and if it holds a plan, keeps it for as long as `'a`; or, in a library that checks for
/// misuse, the pointer is NULL.
unsafe fn planned<'a>(place: *const quell_zero_plan) -> Result<&'a ClearPolicy, quell_status> {
    // SAFETY: every pattern of bits is a `PlanCell` whose seal records whether the rest is initialised.
    let planned = unsafe { content(place) }?;
    if planned.seal != SEAL {
        return Err(quell_status::NoPlan);
    }
    // SAFETY: the seal was written with the policy.
    Ok(unsafe { planned.policy.assume_init_ref() })
}

/// Memory that C has mapped. Frame numbers count from its first byte.
struct MappedMemory(*mut u8);

impl PhysicalMemory for MappedMemory {
    unsafe fn zero(&self, extent: Extent, strategy: Strategy) {
        let start = self.0.wrapping_add(extent.first.address() as usize);
        // SAFETY: the caller owns the extent. quell_zero_plan_new found the strategy on this processor, and its caller
        // allowed it.
        unsafe { quell_arch::zero::zero(start, extent.bytes() as usize, strategy) };
    }
}

/// Plans how quell_zero zeroes memory, from the processor's instructions and caches.
///
/// The policy of `engine` decides whether quell_zero zeroes whole extents or single pages, and how long a run may be.
/// If `engine` is NULL, it zeroes whole extents in runs of at most 32 MB. `plan` is memory of any content.
///
/// If `vectors` is set, zeroing may overwrite vector registers: pass false in a kernel that doesn't save them.
///
/// Context: any but an NMI. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_zero_plan_new(
    plan: *mut quell_zero_plan,
    engine: *const quell_engine,
    vectors: bool,
) -> quell_status {
    answer(|| {
        let place = room(plan)?;
        let available = quell_arch::zero::available();
        let chooser = Chooser {
            available: if vectors { available } else { available.without_vectors() },
            caches: quell_arch::zero::caches(),
        };
        let mut policy = ClearPolicy::cooperative(chooser.defaults());
        if !engine.is_null() {
            // SAFETY: C vouches for its memory.
            let wanted = unsafe { self::engine(engine) }?.policy();
            policy.whole_extents = wanted.extents;
            policy.cap_bytes = wanted.cap_bytes;
        }
        // SAFETY: C vouches for the memory behind `place`.
        unsafe {
            place.write(PlanCell { seal: SEAL, policy: MaybeUninit::new(policy) });
        }
        Ok(())
    })
}

/// Zeroes `bytes` bytes from `start`.
///
/// The bytes are ordinary memory of the caller that no other code accesses meanwhile. The page at `fault` and its
/// neighbours are zeroed last and are in the caches afterwards. If `fault` is NULL or outside the memory, no
/// page is. The rest may bypass the caches. A later release by the caller makes the zeroes visible to a CPU that acquires it.
///
/// If `preempt` isn't NULL, quell calls it between two runs. It may sleep, and return on another CPU of the same kind.
///
/// Refuses a `start` that isn't a multiple of 4096, and a `bytes` that is 0 or isn't a multiple of 4096.
///
/// Context: any but an NMI, if `preempt` may be called in it. Does not wait.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_zero(
    plan: *const quell_zero_plan,
    start: *mut c_void,
    bytes: usize,
    fault: *const c_void,
    preempt: Option<unsafe extern "C" fn()>,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let policy = unsafe { planned(plan) }?;
        let page = PAGE_BYTES as usize;
        if start.is_null() {
            return Err(quell_status::Null);
        }
        if !(start as usize).is_multiple_of(page) {
            return Err(quell_status::Misaligned);
        }
        let ends = (start as usize).checked_add(bytes).is_some();
        if bytes == 0 || !bytes.is_multiple_of(page) || !ends {
            return Err(quell_status::Range);
        }
        let extent = Extent { first: Frame(0), frames: bytes as u64 / PAGE_BYTES };
        let fault = (fault as usize).checked_sub(start as usize);
        let fault = fault.map(|offset| Frame::containing(offset as u64));
        let preempt = || {
            if let Some(preempt) = preempt {
                // SAFETY: C vouches for its function.
                unsafe { preempt() };
            }
        };
        // SAFETY: C vouches for its memory.
        unsafe { Clearer::new(&MappedMemory(start.cast()), policy).extent(extent, fault, preempt) };
        Ok(())
    })
}
