//! The user program: loading it, and running it on a CPU.

use crate::arch::traps::Context;
use crate::layout::{self, Control};
use crate::trap;
use crate::trap::{Exit, Fault};
use crate::{arch, attached, clock, cpu, memory, sched, tables};
use alloc::string::String;
use core::ops::Range;
use core::sync::atomic::Ordering;
use elf::{ElfBytes, abi, endian::LittleEndian};
use quell::PAGE_BYTES;
use quell::{Entry, Frame, Level};

static ENTRY: spin::Once<u64> = spin::Once::new();
static CONTROL: spin::Once<Frame> = spin::Once::new();
static FILE: spin::Once<&'static str> = spin::Once::new();

/// Maps a page of the program for user mode in every address space. Call this before any root is made.
fn map(page: u64, frame: Frame, writable: bool, executable: bool) {
    let leaf = Entry { executable, global: true, ..tables::leaf(frame, writable) };
    assert!(page >= layout::PROGRAM, "the program is above its start address");
    // SAFETY: from this address on, the kernel's half is the program's, and we took the frame for it.
    unsafe { tables::map_kernel(arch::paging::kernel_root(), page, leaf, Level::LEAF) };
}

/// Loads the program from its file and maps it with its stacks and control page. Call this once, at boot, before any
/// root is prepared. Fails if the file is invalid.
///
/// # Safety
/// `file` is the boot loader's file, in physical memory that is never reused.
pub unsafe fn load(file: Range<u64>) -> Result<(), &'static str> {
    // SAFETY: as the caller promises. The direct map covers the file.
    let bytes = unsafe {
        core::slice::from_raw_parts(
            memory::pointer::<u8>(file.start),
            (file.end - file.start) as usize,
        )
    };
    let text = attached::text(bytes);
    let image = ElfBytes::<LittleEndian>::minimal_parse(bytes).map_err(|_| "not an ELF file")?;
    let segments = image.segments().ok_or("no segments")?;
    for segment in segments.iter().filter(|segment| segment.p_type == abi::PT_LOAD) {
        let data = image.segment_data(&segment).map_err(|_| "truncated")?;
        let first = segment.p_vaddr & !(PAGE_BYTES - 1);
        for page in (first..segment.p_vaddr + segment.p_memsz).step_by(PAGE_BYTES as usize) {
            let frame = memory::take_frame();
            // This is the part of the file in this page.
            let from = page.max(segment.p_vaddr) - segment.p_vaddr;
            let to = (page + PAGE_BYTES - segment.p_vaddr).min(segment.p_filesz);
            if from < to {
                let part = &data[from as usize..to as usize];
                let offset = page.max(segment.p_vaddr) - page;
                memory::write(frame, offset as usize, part);
            }
            arch::paging::publish_instructions(frame);
            let flag = |flag| segment.p_flags & flag != 0;
            map(page, frame, flag(abi::PF_W), flag(abi::PF_X));
        }
    }
    for slot in 0..layout::SLOTS as u64 {
        let end = layout::STACKS + (slot + 1) * layout::STACK_STRIDE;
        for page in (end - layout::STACK_BYTES..end).step_by(PAGE_BYTES as usize) {
            map(page, memory::take_frame(), true, false);
        }
    }
    let pages = (size_of::<Control>() as u64).div_ceil(PAGE_BYTES);
    let control = memory::take_frames(pages).first;
    for page in 0..pages {
        map(layout::CONTROL + page * PAGE_BYTES, control.plus(page), true, false);
    }
    CONTROL.call_once(|| control);
    if let Some(text) = text {
        for (page, part) in (layout::FILE..)
            .step_by(PAGE_BYTES as usize)
            .zip(text.as_bytes().chunks(PAGE_BYTES as usize))
        {
            let frame = memory::take_frame();
            memory::write(frame, 0, part);
            map(page, frame, false, false);
        }
        self::control().file_bytes.store(text.len() as u64, Ordering::Relaxed);
        FILE.call_once(|| text);
    }
    ENTRY.call_once(|| image.ehdr.e_entry);
    let shared = self::control();
    shared.ticks_per_ms.store(arch::cpu::ticks_per_ms(), Ordering::Relaxed);
    shared.ticks_at_start.store(clock::begin(), Ordering::Relaxed);
    Ok(())
}

/// Returns the workload file that came with the program, if there is one.
pub fn file() -> Option<&'static str> {
    FILE.get().copied()
}

/// Returns the memory shared with the program.
///
/// # Panics
/// If no program has been loaded.
pub fn control() -> &'static Control {
    let frame = CONTROL.get().expect("the program is loaded");
    // SAFETY: this is open memory, which was zeroed when it was taken for this and is never freed. It contains only
    // atomics.
    unsafe { &*memory::pointer(frame.address()) }
}

/// Returns the program, ready to start with `slot`'s stack. No other thread may use that stack. The slot is also the
/// number by which the program identifies itself, as one of `cpus` CPUs.
pub fn start(what: u64, slot: usize, cpus: usize) -> Context {
    let stack = layout::STACKS + (slot as u64 + 1) * layout::STACK_STRIDE;
    let entry = *ENTRY.get().expect("the program is loaded");
    Context::new(entry, stack, [what, slot as u64, cpus as u64])
}

/// A thread of the program that performs single accesses in user mode on request.
pub struct Puppet {
    context: Context,
    slot: usize,
}

impl Puppet {
    /// Creates a puppet with `slot`'s stack and command. No other thread may use these.
    pub fn new(slot: usize) -> Self {
        let mut puppet = Puppet { context: start(layout::entry::PUPPET, slot, cpu::count()), slot };
        // The puppet's first call has no result, and only requests a command.
        let _ = puppet.until_next();
        puppet
    }

    fn until_next(&mut self) -> Result<u64, Fault> {
        let mut refused = None;
        loop {
            match self.context.run() {
                Exit::Call([layout::NEXT, value, error, ..]) => {
                    return match (error, refused) {
                        (0, _) => Ok(value),
                        (_, Some(fault)) => Err(fault),
                        _ => panic!("a puppet met an error without a fault"),
                    };
                }
                Exit::Call(words) => panic!("a puppet called {words:x?}"),
                Exit::Fault(fault) => {
                    trap::note_fault(&fault);
                    refused = Some(fault);
                    self.context.refuse_access(1);
                }
                Exit::Interrupt => {
                    if sched::others_ready() {
                        sched::yield_now();
                    }
                }
            }
        }
    }

    fn command(&mut self, what: u64, address: u64, value: u64) -> Result<u64, Fault> {
        let command = &control().commands[self.slot];
        command.what.store(what, Ordering::Relaxed);
        command.address.store(address, Ordering::Relaxed);
        command.value.store(value, Ordering::Release);
        self.until_next()
    }

    /// Loads a word in user mode. Returns the fault if the handler refused it.
    pub fn load(&mut self, address: u64) -> Result<u64, Fault> {
        self.command(layout::command::LOAD, address, 0)
    }

    /// Stores a word in user mode. Returns the fault if the handler refused it.
    pub fn store(&mut self, address: u64, value: u64) -> Result<(), Fault> {
        self.command(layout::command::STORE, address, value).map(|_| ())
    }

    /// Stays in user mode until control word `index` contains `value`.
    pub fn spin(&mut self, index: usize, value: u64) {
        let _ = self.command(layout::command::SPIN, index as u64, value);
    }
}

/// Runs the program until it ends, on this thread.
///
/// `exit` handles page faults and the manager's system calls. It returns `false` to end the program. If
/// the program panicked, this returns its message.
pub fn run(
    context: &mut Context,
    mut exit: impl FnMut(&mut Context, Exit) -> bool,
) -> Result<(), String> {
    loop {
        let left = context.run();
        match left {
            Exit::Call([layout::EXIT, ..]) => return Ok(()),
            Exit::Call([layout::WRITE, address, bytes, ..]) => {
                crate::console::line(format_args!("user: {}", text(address, bytes)));
                context.answer(0, 0);
            }
            Exit::Call([layout::PANIC, address, bytes, ..]) => return Err(text(address, bytes)),
            Exit::Interrupt => {
                if sched::others_ready() {
                    sched::yield_now();
                }
            }
            other => {
                if !exit(context, other) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns text in the program's own memory.
pub fn text(address: u64, bytes: u64) -> String {
    if bytes == 0 {
        return String::new();
    }
    let mine = layout::PROGRAM..layout::CONTROL;
    let end = address.saturating_add(bytes.min(4096));
    if !mine.contains(&address) || end >= mine.end {
        return String::from("(text outside the program)");
    }
    let mut text = alloc::vec![0; (end - address) as usize];
    // SAFETY: if a program passes memory that it doesn't have, it faults here, which ends the run with a report. Its
    // own memory is always mapped, and it may store there meanwhile.
    unsafe { arch::cpu::copy(address as *const u8, text.as_mut_ptr(), text.len()) };
    String::from_utf8_lossy(&text).into_owned()
}
