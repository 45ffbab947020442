//! Builds the programs that add up flushes in the kernel, one for each tracepoint.
//!
//! [`flush`] begins a request. It takes the system call from the registers with which the thread entered the kernel
//! and, for a remote flush, also the place. [`queue`] counts the targets. [`entry`] and [`exit`] run on the targets and
//! time the work. They write to the [`slot`] of the request's CPU. That CPU waits for its targets before it can flush
//! again, so it doesn't begin another request there meanwhile.
//!
//! A slot contains the sums of the place that flushed last. When another place flushes, we add them to the sums of all
//! CPUs ([`site`]). So a program that flushes in a loop needs no look-up.

use std::io;

use super::asm::{Assembler, Condition, Helper, Label, Reg, Size};
use super::kernel::{Kind, Map};

/// The largest numbers of places and of processes to keep apart.
const PLACES: usize = 16 << 10;
const PROCESSES: usize = 16 << 10;
/// The largest number of other functions, by process.
const OTHERS: usize = 4 << 10;

/// The maps and addresses that the programs share.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) slots: Map,
    pub(super) sites: Map,
    pub(super) victims: Map,
    /// The number of times that other work was queued, by function and process.
    pub(super) others: Map,
    /// The initiator's CPU plus one, by the address of the queued work.
    pub(super) queued: Map,
    /// The address of the kernel's function that flushes for another CPU.
    flush: u64,
}

impl Maps {
    pub(super) fn new(cpus: usize, flush: u64) -> io::Result<Self> {
        Ok(Self {
            slots: Map::new(Kind::Array, 4, slot::BYTES, cpus, cpus)?,
            sites: Map::new(Kind::EachCpuHash, place::BYTES, site::BYTES, PLACES, cpus)?,
            victims: Map::new(Kind::EachCpuHash, 8, victim::BYTES, PROCESSES, cpus)?,
            others: Map::new(Kind::EachCpuHash, 16, 8, OTHERS, cpus)?,
            // Each CPU has one piece of work for each other CPU.
            queued: Map::new(Kind::Hash, 8, 8, cpus * cpus, cpus)?,
            flush,
        })
    }
}

/// Offsets in the state of a CPU.
pub(super) mod slot {
    /// The place of its last request: see [`place`](super::place).
    pub const PLACE: i16 = 0;
    /// The times of the first target's interrupt, and of the last target's end.
    pub const FIRST: i16 = 24;
    pub const LAST: i16 = 32;
    /// The number of targets.
    pub const TARGETS: i16 = 40;
    /// The thread whose local part of a remote flush is still to come.
    pub const THREAD: i16 = 48;
    /// The time at which work for another CPU began here.
    pub const BEGUN: i16 = 56;
    /// Flushes for whose place there was no room.
    pub const LOST: i16 = 64;
    /// The number of times that sums were added to those of all CPUs.
    pub const ADDED: i16 = 72;
    /// The sums of the place: see [`site`](super::site).
    pub const SITE: i16 = 80;
    /// The process and call that flushed only this CPU, as in a place. The first three sums of a site follow.
    pub const LOCAL: i16 = SITE + super::site::BYTES as i16;
    pub const LOCAL_SITE: i16 = LOCAL + 8;
    pub const BYTES: usize = LOCAL_SITE as usize + 24;
}

pub(super) mod place {
    /// The process, 32 bits.
    pub const PROCESS: i16 = 0;
    /// The system call's number, 32 bits; [`NO_CALL`] outside of calls.
    pub const CALL: i16 = 4;
    /// The instruction after the call, and the return address of the function around it.
    pub const AFTER: i16 = 8;
    pub const RETURN: i16 = 16;
    pub const BYTES: usize = 24;
    pub const NO_CALL: i32 = -1;
}

/// Offsets in the sums of a place.
pub(super) mod site {
    pub const FLUSHES: i16 = 0;
    pub const FULL: i16 = 8;
    pub const PAGES: i16 = 16;
    /// Flushes with remote targets, and the number of these targets.
    pub const REMOTE: i16 = 24;
    pub const INTERRUPTS: i16 = 32;
    /// Nanoseconds from the first interrupt to the last target's end.
    pub const WAITED: i16 = 40;
    /// Nanoseconds of work on targets.
    pub const WORK: i16 = 48;
    /// The bytes of all sums.
    pub const SUMS: usize = 56;
    /// The thread that made the last of these flushes.
    pub const THREAD: i16 = 56;
    pub const BYTES: usize = 64;
}

/// Offsets in the sums of a process as a target.
pub(super) mod victim {
    pub const INTERRUPTS: i16 = 0;
    pub const WORK: i16 = 8;
    pub const BYTES: usize = 16;
}

/// Offsets of registers in `pt_regs` on x86-64. They're part of the kernel's interface for debuggers.
mod registers {
    pub const CALL: i16 = 120;
    pub const INSTRUCTION: i16 = 128;
    pub const SEGMENT: i16 = 136;
    pub const STACK: i16 = 152;
}

/// The reasons of `tlb_flush` that are counted.
const FIRST_OF_INITIATORS: i32 = 2;
const REMOTE: i32 = 4;
/// `TLB_FLUSH_ALL`, cut to the width of an instruction's number.
const ALL_PAGES: i32 = -1;

/// An address: a register and an offset. The frame's are those of R10.
type Address = (Reg, i16);

fn set_address(asm: &mut Assembler, to: Reg, (base, offset): Address) {
    asm.copy(to, base);
    asm.add(to, offset.into());
}

/// Looks up the element of `map` whose key is at this offset of the frame. The result is in R0. Jumps to `none` if
/// there is no element.
fn look_up(asm: &mut Assembler, map: &Map, key: i16, none: Label) {
    asm.set_map(Reg::R1, map.number());
    set_address(asm, Reg::R2, (Reg::R10, key));
    asm.call(Helper::MapLookup);
    asm.jump_if(Reg::R0, Condition::Equal, 0, none);
}

fn update(asm: &mut Assembler, map: &Map, key: Address, value: Address) {
    asm.set_map(Reg::R1, map.number());
    set_address(asm, Reg::R2, key);
    set_address(asm, Reg::R3, value);
    asm.set(Reg::R4, 0);
    asm.call(Helper::MapUpdate);
}

fn zero(asm: &mut Assembler, (base, offset): Address, bytes: usize) {
    for at in (0..bytes as i16).step_by(8) {
        asm.store_value(base, offset + at, 0);
    }
}

/// Looks up an element like [`look_up`]. If there is none, adds one of zeros first. The zeros use `bytes` at the
/// frame's `zeros`.
fn look_up_or_add(
    asm: &mut Assembler,
    map: &Map,
    key: i16,
    (zeros, bytes): (i16, usize),
    none: Label,
) {
    let (missing, found) = (asm.label(), asm.label());
    look_up(asm, map, key, missing);
    asm.jump(found);
    asm.here(missing);
    zero(asm, (Reg::R10, zeros), bytes);
    update(asm, map, (Reg::R10, key), (Reg::R10, zeros));
    look_up(asm, map, key, none);
    asm.here(found);
}

/// Loads the address of this CPU's slot into R8. Uses four bytes of the frame. Jumps to `none` if there is no slot.
fn own_slot(asm: &mut Assembler, slots: &Map, frame: i16, none: Label) {
    asm.call(Helper::GetSmpProcessorId);
    asm.store(Size::U32, Reg::R10, frame, Reg::R0);
    look_up(asm, slots, frame, none);
    asm.copy(Reg::R8, Reg::R0);
}

/// Adds R1 to the 64 bits at R0 and an offset. No other CPU may write there. Destroys R2.
fn sum(asm: &mut Assembler, offset: i16) {
    asm.load(Size::U64, Reg::R2, Reg::R0, offset);
    asm.add_register(Reg::R2, Reg::R1);
    asm.store(Size::U64, Reg::R0, offset, Reg::R2);
}

/// Adds one to the 64 bits at R0 and an offset. Destroys R2.
fn increment(asm: &mut Assembler, offset: i16) {
    asm.load(Size::U64, Reg::R2, Reg::R0, offset);
    asm.add(Reg::R2, 1);
    asm.store(Size::U64, Reg::R0, offset, Reg::R2);
}

/// Stores the process, whose number is in R9, and its call at the frame's `at`. Leaves the address of the thread's
/// registers in R6.
fn find_call(asm: &mut Assembler, at: i16) {
    let [user, call, end] = [(); 3].map(|()| asm.label());
    asm.copy(Reg::R1, Reg::R9);
    asm.shift_right(Reg::R1, 32);
    asm.store(Size::U32, Reg::R10, at + place::PROCESS, Reg::R1);
    asm.set(Reg::R1, place::NO_CALL);
    asm.store(Size::U32, Reg::R10, at + place::CALL, Reg::R1);
    asm.call(Helper::GetCurrentTaskBtf);
    asm.copy(Reg::R1, Reg::R0);
    asm.call(Helper::TaskPtRegs);
    asm.copy(Reg::R6, Reg::R0);
    // A kernel thread has no user registers. Then the segment doesn't have user privilege.
    asm.load(Size::U64, Reg::R1, Reg::R6, registers::SEGMENT);
    asm.mask(Reg::R1, 3);
    asm.jump_if(Reg::R1, Condition::Equal, 3, user);
    asm.jump(end);
    asm.here(user);
    asm.load(Size::U64, Reg::R1, Reg::R6, registers::CALL);
    // Page faults have -1 there, and interrupts have a number that is as large.
    asm.jump_if(Reg::R1, Condition::Below, 1024, call);
    asm.jump(end);
    asm.here(call);
    asm.store(Size::U32, Reg::R10, at + place::CALL, Reg::R1);
    asm.here(end);
}

/// Stores the addresses of a call, or zeros outside of calls. They follow the data of [`find_call`] at `at`.
///
/// Uses eight bytes at `scratch`.
fn find_addresses(asm: &mut Assembler, at: i16, scratch: i16) {
    let [none, done, is_call] = [(); 3].map(|()| asm.label());
    zero(asm, (Reg::R10, at + place::AFTER), 16);
    asm.load(Size::U32, Reg::R1, Reg::R10, at + place::CALL);
    asm.jump_if(Reg::R1, Condition::Above, 1024, done);
    asm.load(Size::U64, Reg::R1, Reg::R6, registers::INSTRUCTION);
    asm.store(Size::U64, Reg::R10, at + place::AFTER, Reg::R1);
    // The C library's system call functions have no frame: the return address is on top of the stack.
    set_address(asm, Reg::R1, (Reg::R10, at + place::RETURN));
    asm.set(Reg::R2, 8);
    asm.load(Size::U64, Reg::R3, Reg::R6, registers::STACK);
    asm.call(Helper::ProbeReadUser);
    asm.load(Size::U64, Reg::R3, Reg::R10, at + place::RETURN);
    // The return address of the slot's last place was checked before.
    asm.load(Size::U64, Reg::R1, Reg::R8, slot::PLACE + place::RETURN);
    asm.jump_if_register(Reg::R1, Condition::Equal, Reg::R3, done);
    // If the function has a frame, the word may be anything. A return address has a call instruction before it.
    set_address(asm, Reg::R1, (Reg::R10, scratch));
    asm.set(Reg::R2, 8);
    asm.add(Reg::R3, -8);
    asm.call(Helper::ProbeReadUser);
    asm.jump_if(Reg::R0, Condition::Different, 0, none);
    for (before, first) in [(5, 0xe8), (6, 0xff), (3, 0xff), (2, 0xff)] {
        asm.load(Size::U8, Reg::R1, Reg::R10, scratch + 8 - before);
        asm.jump_if(Reg::R1, Condition::Equal, first, is_call);
    }
    asm.here(none);
    asm.store_value(Reg::R10, at + place::RETURN, 0);
    asm.here(is_call);
    asm.here(done);
}

/// Adds the slot's sums to those of the place at `key`, and clears them. They have `bytes` bytes at offset `sums`.
///
/// A place without sums starts with the value at `new`. Destroys R0 to R5.
fn add_up(asm: &mut Assembler, sites: &Map, key: Address, sums: i16, bytes: usize, new: Address) {
    let [found, lost, end] = [(); 3].map(|()| asm.label());
    asm.copy(Reg::R0, Reg::R8);
    increment(asm, slot::ADDED);
    asm.set_map(Reg::R1, sites.number());
    set_address(asm, Reg::R2, key);
    asm.call(Helper::MapLookup);
    asm.jump_if(Reg::R0, Condition::Different, 0, found);
    update(asm, sites, key, new);
    asm.jump_if(Reg::R0, Condition::Different, 0, lost);
    asm.jump(end);
    asm.here(found);
    for at in (0..bytes as i16).step_by(8) {
        asm.load(Size::U64, Reg::R1, Reg::R8, sums + at);
        sum(asm, at);
    }
    if bytes == site::SUMS {
        asm.load(Size::U64, Reg::R1, Reg::R8, sums + site::THREAD);
        asm.store(Size::U64, Reg::R0, site::THREAD, Reg::R1);
    }
    asm.jump(end);
    asm.here(lost);
    asm.load(Size::U64, Reg::R1, Reg::R8, sums + site::FLUSHES);
    asm.copy(Reg::R0, Reg::R8);
    sum(asm, slot::LOST);
    asm.here(end);
    zero(asm, (Reg::R8, sums), bytes);
}

/// Counts a flush of R7 pages in the sums at this offset of the slot.
fn count(asm: &mut Assembler, sums: i16) {
    let [full, end] = [(); 2].map(|()| asm.label());
    asm.copy(Reg::R0, Reg::R8);
    increment(asm, sums + site::FLUSHES);
    asm.jump_if(Reg::R7, Condition::Equal, ALL_PAGES, full);
    asm.copy(Reg::R1, Reg::R7);
    sum(asm, sums + site::PAGES);
    asm.jump(end);
    asm.here(full);
    increment(asm, sums + site::FULL);
    asm.here(end);
}

/// Ends this CPU's last request, whose targets are done.
fn end_request(asm: &mut Assembler) {
    let end = asm.label();
    asm.load(Size::U64, Reg::R1, Reg::R8, slot::TARGETS);
    asm.jump_if(Reg::R1, Condition::Equal, 0, end);
    asm.copy(Reg::R0, Reg::R8);
    sum(asm, slot::SITE + site::INTERRUPTS);
    increment(asm, slot::SITE + site::REMOTE);
    asm.load(Size::U64, Reg::R1, Reg::R8, slot::LAST);
    asm.load(Size::U64, Reg::R2, Reg::R8, slot::FIRST);
    asm.store_value(Reg::R8, slot::TARGETS, 0);
    asm.store_value(Reg::R8, slot::FIRST, 0);
    asm.store_value(Reg::R8, slot::LAST, 0);
    asm.jump_if_register(Reg::R2, Condition::Above, Reg::R1, end);
    asm.subtract(Reg::R1, Reg::R2);
    sum(asm, slot::SITE + site::WAITED);
    asm.here(end);
}

/// Builds the program for `tlb_flush`, with the reason and the number of pages.
pub(super) fn flush(maps: &Maps) -> Vec<u64> {
    const CPU: i16 = -8;
    const SCRATCH: i16 = -16;
    const PLACE: i16 = SCRATCH - place::BYTES as i16;
    const NEW: i16 = PLACE - site::BYTES as i16;
    let asm = &mut Assembler::default();
    let [end, local, same, other, same_local, first_local] = [(); 6].map(|()| asm.label());
    asm.load(Size::U64, Reg::R6, Reg::R1, 0);
    asm.load(Size::U64, Reg::R7, Reg::R1, 8);
    asm.mask(Reg::R6, 0xff);
    // Context switches and targets aren't initiators.
    asm.jump_if(Reg::R6, Condition::Below, FIRST_OF_INITIATORS, end);
    asm.jump_if(Reg::R6, Condition::Above, REMOTE, end);
    own_slot(asm, &maps.slots, CPU, end);
    asm.call(Helper::GetCurrentPidTgid);
    asm.copy(Reg::R9, Reg::R0);
    asm.jump_if(Reg::R6, Condition::Different, REMOTE, local);

    asm.store(Size::U64, Reg::R8, slot::THREAD, Reg::R9);
    end_request(asm);
    find_call(asm, PLACE);
    find_addresses(asm, PLACE, SCRATCH);
    for at in (0..place::BYTES as i16).step_by(8) {
        asm.load(Size::U64, Reg::R1, Reg::R10, PLACE + at);
        asm.load(Size::U64, Reg::R2, Reg::R8, slot::PLACE + at);
        asm.jump_if_register(Reg::R1, Condition::Different, Reg::R2, other);
    }
    asm.jump(same);
    asm.here(other);
    let first = asm.label();
    asm.load(Size::U64, Reg::R1, Reg::R8, slot::SITE + site::FLUSHES);
    asm.jump_if(Reg::R1, Condition::Equal, 0, first);
    let key = (Reg::R8, slot::PLACE);
    let new = (Reg::R8, slot::SITE);
    add_up(asm, &maps.sites, key, slot::SITE, site::SUMS, new);
    asm.here(first);
    for at in (0..place::BYTES as i16).step_by(8) {
        asm.load(Size::U64, Reg::R1, Reg::R10, PLACE + at);
        asm.store(Size::U64, Reg::R8, slot::PLACE + at, Reg::R1);
    }
    asm.here(same);
    count(asm, slot::SITE);
    asm.store(Size::U64, Reg::R8, slot::SITE + site::THREAD, Reg::R9);
    asm.jump(end);

    asm.here(local);
    // The local part of a remote flush doesn't count as a flush of its own.
    asm.load(Size::U64, Reg::R1, Reg::R8, slot::THREAD);
    asm.store_value(Reg::R8, slot::THREAD, 0);
    asm.jump_if_register(Reg::R1, Condition::Equal, Reg::R9, end);
    find_call(asm, PLACE);
    asm.load(Size::U64, Reg::R1, Reg::R10, PLACE);
    asm.load(Size::U64, Reg::R2, Reg::R8, slot::LOCAL);
    asm.jump_if_register(Reg::R1, Condition::Equal, Reg::R2, same_local);
    asm.load(Size::U64, Reg::R9, Reg::R10, PLACE);
    asm.load(Size::U64, Reg::R3, Reg::R8, slot::LOCAL_SITE + site::FLUSHES);
    asm.jump_if(Reg::R3, Condition::Equal, 0, first_local);
    asm.store(Size::U64, Reg::R10, PLACE, Reg::R2);
    zero(asm, (Reg::R10, PLACE + place::AFTER), 16);
    zero(asm, (Reg::R10, NEW), site::BYTES);
    for at in [site::FLUSHES, site::FULL, site::PAGES] {
        asm.load(Size::U64, Reg::R1, Reg::R8, slot::LOCAL_SITE + at);
        asm.store(Size::U64, Reg::R10, NEW + at, Reg::R1);
    }
    let (key, new) = ((Reg::R10, PLACE), (Reg::R10, NEW));
    add_up(asm, &maps.sites, key, slot::LOCAL_SITE, 24, new);
    asm.here(first_local);
    asm.store(Size::U64, Reg::R8, slot::LOCAL, Reg::R9);
    asm.here(same_local);
    count(asm, slot::LOCAL_SITE);
    asm.here(end);
    asm.finish()
}

/// Builds the program for `csd_queue_cpu`, with the target, the caller, the function and the work.
pub(super) fn queue(maps: &Maps) -> Vec<u64> {
    const CPU: i16 = -8;
    const WORK: i16 = -16;
    const OTHER: i16 = -32;
    const ZEROS: i16 = -40;
    let asm = &mut Assembler::default();
    let [end, other, asked, known, unknown] = [(); 5].map(|()| asm.label());
    asm.load(Size::U64, Reg::R6, Reg::R1, 16);
    asm.load(Size::U64, Reg::R7, Reg::R1, 24);
    asm.set_wide(Reg::R1, maps.flush);
    asm.jump_if_register(Reg::R6, Condition::Different, Reg::R1, other);
    own_slot(asm, &maps.slots, CPU, end);
    asm.copy(Reg::R0, Reg::R8);
    increment(asm, slot::TARGETS);
    asm.load(Size::U64, Reg::R1, Reg::R8, slot::FIRST);
    asm.jump_if(Reg::R1, Condition::Different, 0, asked);
    asm.call(Helper::KtimeGetNs);
    asm.store(Size::U64, Reg::R8, slot::FIRST, Reg::R0);
    asm.here(asked);
    // A piece of work belongs to one CPU for good, so its entry is never removed. It is 0 while nothing is queued.
    asm.store(Size::U64, Reg::R10, WORK, Reg::R7);
    asm.load(Size::U32, Reg::R9, Reg::R10, CPU);
    asm.add(Reg::R9, 1);
    asm.store(Size::U64, Reg::R10, ZEROS, Reg::R9);
    look_up(asm, &maps.queued, WORK, unknown);
    asm.store(Size::U64, Reg::R0, 0, Reg::R9);
    asm.jump(known);
    asm.here(unknown);
    update(asm, &maps.queued, (Reg::R10, WORK), (Reg::R10, ZEROS));
    asm.here(known);
    asm.jump(end);
    asm.here(other);
    asm.store(Size::U64, Reg::R10, OTHER, Reg::R6);
    asm.call(Helper::GetCurrentPidTgid);
    asm.shift_right(Reg::R0, 32);
    asm.store(Size::U64, Reg::R10, OTHER + 8, Reg::R0);
    look_up_or_add(asm, &maps.others, OTHER, (ZEROS, 8), end);
    increment(asm, 0);
    asm.here(end);
    asm.finish()
}

/// Builds the program for `csd_function_entry`, with the function and the work. The initiator's own part has no work.
pub(super) fn entry(maps: &Maps) -> Vec<u64> {
    const CPU: i16 = -8;
    let asm = &mut Assembler::default();
    let end = asm.label();
    flushes_for_another(asm, maps, end);
    own_slot(asm, &maps.slots, CPU, end);
    asm.call(Helper::KtimeGetNs);
    asm.store(Size::U64, Reg::R8, slot::BEGUN, Reg::R0);
    asm.here(end);
    asm.finish()
}

/// Builds the program for `csd_function_exit`, with the arguments of [`entry`].
pub(super) fn exit(maps: &Maps) -> Vec<u64> {
    const CPU: i16 = -8;
    const WORK: i16 = -16;
    const VICTIM: i16 = -24;
    const ZEROS: i16 = -24 - victim::BYTES as i16;
    let asm = &mut Assembler::default();
    let [end, unknown] = [(); 2].map(|()| asm.label());
    flushes_for_another(asm, maps, end);
    asm.store(Size::U64, Reg::R10, WORK, Reg::R7);
    own_slot(asm, &maps.slots, CPU, end);
    asm.load(Size::U64, Reg::R6, Reg::R8, slot::BEGUN);
    // The work began before the programs were attached.
    asm.jump_if(Reg::R6, Condition::Equal, 0, end);
    asm.call(Helper::KtimeGetNs);
    asm.copy(Reg::R9, Reg::R0);
    asm.copy(Reg::R7, Reg::R0);
    asm.subtract(Reg::R7, Reg::R6);
    // From here R9 is the time of the end, and R7 the duration.
    look_up(asm, &maps.queued, WORK, unknown);
    // Linux flushes once in a while without a `csd_queue_cpu` before. The last request has ended long before that.
    asm.load(Size::U64, Reg::R1, Reg::R0, 0);
    asm.jump_if(Reg::R1, Condition::Equal, 0, unknown);
    asm.store_value(Reg::R0, 0, 0);
    asm.add(Reg::R1, -1);
    asm.store(Size::U32, Reg::R10, CPU, Reg::R1);
    look_up(asm, &maps.slots, CPU, unknown);
    asm.store(Size::U64, Reg::R0, slot::LAST, Reg::R9);
    asm.add_to_memory(Reg::R0, slot::SITE + site::WORK, Reg::R7);
    asm.here(unknown);
    asm.call(Helper::GetCurrentPidTgid);
    asm.shift_right(Reg::R0, 32);
    asm.store(Size::U64, Reg::R10, VICTIM, Reg::R0);
    look_up_or_add(asm, &maps.victims, VICTIM, (ZEROS, victim::BYTES), end);
    increment(asm, victim::INTERRUPTS);
    asm.copy(Reg::R1, Reg::R7);
    sum(asm, victim::WORK);
    asm.here(end);
    asm.finish()
}

/// Jumps to `end` unless this CPU flushes for another. Leaves the work in R7.
fn flushes_for_another(asm: &mut Assembler, maps: &Maps, end: Label) {
    asm.load(Size::U64, Reg::R6, Reg::R1, 0);
    asm.load(Size::U64, Reg::R7, Reg::R1, 8);
    asm.set_wide(Reg::R1, maps.flush);
    asm.jump_if_register(Reg::R6, Condition::Different, Reg::R1, end);
    asm.jump_if(Reg::R7, Condition::Equal, 0, end);
}
