//! A kernel that runs the unit tests that ostd contains when compiled with `ktest`.
//!
//! ostd's own runner runs them and prints the results; this file supplies its requirements.

#![no_std]
#![no_main]

extern crate osdk_test_kernel;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    unsafe extern "Rust" {
        fn __ostd_panic_handler(info: &core::panic::PanicInfo) -> !;
    }
    // SAFETY: the runner defines it.
    unsafe { __ostd_panic_handler(info) }
}

/// Every test of a crate.
#[unsafe(no_mangle)]
pub static KTEST_TEST_WHITELIST: Option<&[&str]> = None;
/// The crates to test.
#[unsafe(no_mangle)]
pub static KTEST_CRATE_WHITELIST: Option<&[&str]> = Some(&["ostd"]);

#[ostd::global_frame_allocator]
static FRAMES: osdk_frame_allocator::FrameAllocator = osdk_frame_allocator::FrameAllocator;

#[ostd::global_heap_allocator]
static HEAP: osdk_heap_allocator::HeapAllocator = osdk_heap_allocator::HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_of(layout: core::alloc::Layout) -> Option<ostd::mm::heap::SlotInfo> {
    osdk_heap_allocator::type_from_layout(layout)
}
