//! A kernel on ostd that revokes memory from running programs and counts the cost.
//!
//! A program on each CPU but the first reads pages of one address space, again and again; the first CPU unmaps and
//! protects them. [`stale`] writes a special word into a frame after its unmapping: a program that reads it has used a
//! stale translation. [`cost`] measures with the clock of an emulator that counts one nanosecond for each instruction.
//! With the feature `conformance` it runs quell's conformance suite instead ([`conformance`]), and with `calls` system
//! calls for `quell hunt` ([`calls`]). Lines that begin with `trial:` are for the program that started the machine.

#![no_std]
#![no_main]
extern crate alloc;

#[cfg(feature = "calls")]
mod calls;
#[cfg(feature = "conformance")]
mod conformance;
#[cfg(not(any(feature = "calls", feature = "conformance")))]
mod cost;
mod pinned;
#[cfg(not(feature = "conformance"))]
mod program;
#[cfg(not(any(feature = "calls", feature = "conformance")))]
mod stale;
#[cfg(not(feature = "conformance"))]
mod world;

use ostd::prelude::*;

#[ostd::main]
fn kernel_main() {
    pinned::start(|| {
        #[cfg(feature = "conformance")]
        conformance::run();
        #[cfg(feature = "calls")]
        calls::run();
        #[cfg(not(any(feature = "calls", feature = "conformance")))]
        measure();
        ostd::power::poweroff(ostd::power::ExitCode::Success);
    });
}

#[cfg(not(any(feature = "calls", feature = "conformance")))]
fn measure() {
    cost::switches();
    let world = world::World::start();
    cost::unmaps(&world);
    cost::protects(&world);
    let sound = stale::check(&world);
    println!("trial: end {}", if sound { "sound" } else { "broken" });
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("trial: panic {}", info);
    ostd::power::poweroff(ostd::power::ExitCode::Failure)
}

#[ostd::global_frame_allocator]
static FRAMES: osdk_frame_allocator::FrameAllocator = osdk_frame_allocator::FrameAllocator;

#[ostd::global_heap_allocator]
static HEAP: osdk_heap_allocator::HeapAllocator = osdk_heap_allocator::HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_of(layout: core::alloc::Layout) -> Option<ostd::mm::heap::SlotInfo> {
    osdk_heap_allocator::type_from_layout(layout)
}
