//! The manager's races: its locks, the names of its tables, and the length of a file.
//!
//! The manager as a whole is too long for loom. Its orderings are in three small files, which we compile here
//! unchanged. In each race, a line replaces the code around them.

#[path = "../../../../testbed/vm/src/length.rs"]
mod length;
#[allow(dead_code, reason = "the manager looks into locks without taking them, too")]
#[path = "../../../../testbed/vm/src/lock.rs"]
mod lock;
#[allow(dead_code, reason = "the manager clears names, too")]
#[path = "../../../../testbed/vm/src/table_id.rs"]
mod table_id;

#[allow(dead_code, reason = "the manager looks whether a table is locked, too")]
#[path = "../../../../testbed/vm/src/table_lock.rs"]
mod table_lock;

use crate::machine::{Machine, be, leak};
use crate::word::LoomWord;
use length::Length;
use lock::{Lock, RwLock};
use loom::cell::UnsafeCell;
use loom::thread;
use quell::Level;
use quell::{Page, Word};
use std::sync::atomic::Ordering::Relaxed;
use table_id::{TableId, TableName};
use table_lock::{Places, TableLock};

/// Memory protected by the tested code. Loom reports unordered accesses.
struct Memory(UnsafeCell<u64>);

// SAFETY: loom panics before it lets two accesses race.
unsafe impl Sync for Memory {}
// SAFETY: loom panics before it lets two accesses race.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Self {
        Memory(UnsafeCell::new(0))
    }

    fn read(&self) -> u64 {
        // SAFETY: loom reports it if another thread writes at the same time.
        self.0.with(|cell| unsafe { *cell })
    }

    fn write(&self, value: u64) {
        // SAFETY: loom reports it if another thread accesses it at the same time.
        self.0.with_mut(|cell| unsafe { *cell = value });
    }
}

/// Runs two programs, each on its own CPU.
fn meet<S: Sync + 'static>(shared: S, here: fn(&S, &Machine), there: fn(&S, &Machine)) {
    let (shared, machine) = (leak(shared), leak(Machine::new(2, false, false)));
    let other = thread::spawn(move || {
        be(1);
        there(shared, machine);
    });
    be(0);
    here(shared, machine);
    other.join().expect("it ended");
}

/// Makes one CPU wait for the lock, while the other only tries it.
pub fn lock() {
    type SharedState = (Lock<LoomWord, ()>, Memory);
    fn wait((lock, memory): &SharedState, machine: &Machine) {
        let _held = lock.lock(machine);
        memory.write(1);
    }
    fn attempt((lock, memory): &SharedState, _: &Machine) {
        if let Some(_held) = lock.try_lock() {
            memory.write(2);
        }
    }
    meet((Lock::new(()), Memory::new()), wait, attempt);
}

/// Makes both wait for the lock of a table, one of them twice.
pub fn lock_table() {
    type SharedState = (TableLock<LoomWord>, Places<LoomWord>, Memory);
    fn once((lock, places, memory): &SharedState, machine: &Machine) {
        let _held = lock.lock(machine, places);
        memory.write(1);
    }
    fn twice(shared: &SharedState, machine: &Machine) {
        once(shared, machine);
        once(shared, machine);
    }
    meet((TableLock::new(), Places::new(2), Memory::new()), once, twice);
}

/// Races a reader with a writer, twice.
pub fn read_and_write() {
    type SharedState = RwLock<LoomWord, Memory>;
    fn read(lock: &SharedState, machine: &Machine) {
        let first = lock.read(machine).read();
        assert!(lock.read(machine).read() >= first, "C1: a write was lost");
    }
    fn write(lock: &SharedState, machine: &Machine) {
        let held = lock.write(machine);
        held.write(1);
        assert_eq!(held.downgrade().read(), 1, "C1: a writer got in");
        lock.write(machine).write(2);
    }
    meet(RwLock::new(Memory::new()), read, write);
}

/// Races two writers.
pub fn write_twice() {
    type SharedState = RwLock<LoomWord, Memory>;
    fn write(lock: &SharedState, machine: &Machine) {
        lock.write(machine).write(1);
    }
    meet(RwLock::new(Memory::new()), write, write);
}

/// Makes a CPU prepare a table and link it. A walk on another CPU follows the link.
pub fn walk() {
    type SharedState = (TableName<LoomWord>, Memory);
    fn name() -> TableId {
        TableId::new(1, Level::LEAF, Page(0))
    }
    fn link((table, words): &SharedState, _: &Machine) {
        words.write(1);
        table.set(name());
    }
    fn walk((table, words): &SharedState, _: &Machine) {
        if table.get() == name() {
            assert_eq!(words.read(), 1, "C6: a table that is not prepared");
        }
    }
    meet((TableName::new(), Memory::new()), link, walk);
}

/// Makes a truncation skip a missing slot, while a fault creates and uses it. Only the CPU that creates the slot uses
/// it, as if it were locked.
pub fn truncate() {
    struct SharedState {
        length: Length<LoomWord>,
        made: LoomWord,
        passed_by: LoomWord,
        used: LoomWord,
    }
    fn cut(file: &SharedState, _: &Machine) {
        file.length.set(0);
        let passed_by = file.made.load(Relaxed) == 0;
        file.passed_by.store(passed_by.into(), Relaxed);
    }
    fn fault(file: &SharedState, _: &Machine) {
        file.made.store(1, Relaxed);
        let used = file.length.get() > 0;
        file.used.store(used.into(), Relaxed);
    }
    let word = || LoomWord::new(0);
    let file: &'static SharedState =
        leak(SharedState { length: Length::new(0), made: word(), passed_by: word(), used: word() });
    file.length.extend(1);
    let machine = leak(Machine::new(2, false, false));
    let other = thread::spawn(move || fault(file, machine));
    cut(file, machine);
    other.join().expect("it ended");
    let both = file.passed_by.load(Relaxed) == 1 && file.used.load(Relaxed) == 1;
    assert!(!both, "C3: a page beyond the end of the file is in use");
}
