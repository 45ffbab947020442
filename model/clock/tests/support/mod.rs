//! A kernel of a few lines, for testing the machine without the manager.
//!
//! It has one address space per root, tables written by hand, and faults that map zeroed frames. The test supplies the
//! rest.

use quell::{Frame, Hardware, Page, PageSize, Tag, Word};
use quell_clock::{
    BuiltMachine, Kernel, MachineFile, Model, ModelUser, ModelWord, RunError, RunResult, Setup,
    built_in,
};
use quell_vm::{Access, Call, Entry, Error, Event, Fault, Level, Machine};
use std::sync::atomic::Ordering::SeqCst;

pub fn haswell() -> MachineFile {
    built_in("haswell-server").expect("built in")
}

/// The test's handlers of calls and interrupts.
pub struct Hooks<'t> {
    pub interrupt: &'t dyn Fn(&Toy<'_>),
    pub call: &'t dyn Fn(&Toy<'_>, Call) -> Result<u64, Error>,
    pub peek: &'t dyn Fn(&Toy<'_>, u64) -> Option<u64>,
    pub nmi: &'t dyn Fn(&Toy<'_>),
}

impl Default for Hooks<'_> {
    fn default() -> Self {
        Hooks { interrupt: &|_| {}, call: &|_, _| Ok(0), peek: &|_, _| None, nmi: &|_| {} }
    }
}

/// The next frame to allocate, on its own cache line.
#[repr(align(64))]
struct NextFrame(ModelWord);

pub struct Toy<'m> {
    pub model: &'m Model,
    pub root: Frame,
    next: NextFrame,
    hooks: &'m Hooks<'m>,
}

impl<'m> Toy<'m> {
    pub fn new(model: &'m Model, hooks: &'m Hooks<'m>) -> Self {
        let first = model.memory().nodes()[0].extent.first;
        let toy = Toy { model, root: first, next: NextFrame(ModelWord::new(first.0 + 1)), hooks };
        toy.new_table(first, Level::ROOT);
        toy
    }

    fn new_table(&self, frame: Frame, level: Level) {
        self.model.note(Event::TableAllocated { frame, level });
    }

    /// Returns a frame without an owner.
    pub fn take(&self, pages: u64) -> Frame {
        let word = &self.next.0;
        loop {
            let next = word.load(SeqCst);
            let frame = next.next_multiple_of(pages);
            if word.compare_exchange(next, frame + pages, SeqCst, SeqCst).is_ok() {
                return Frame(frame);
            }
        }
    }

    /// Returns a frame with an owner.
    pub fn allocate(&self, size: PageSize) -> Frame {
        let frames = size.pages();
        let frame = self.take(frames);
        self.model.note(Event::FrameAllocated { frame, frames });
        frame
    }

    /// Returns a root without entries.
    pub fn new_root(&self) -> Frame {
        let frame = self.take(1);
        self.new_table(frame, Level::ROOT);
        frame
    }

    /// Returns the word that maps a page of the size, and makes its tables.
    pub fn entry(&self, root: Frame, page: Page, size: PageSize) -> (Frame, usize) {
        let mut table = root;
        let mut level = Level::ROOT;
        while level != Level::of(size) {
            let word = &self.model.table(table)[level.index(page)];
            let held = word.load(SeqCst);
            let mut entry = self.model.decode(held, level);
            if !entry.present {
                entry =
                    Entry { present: true, table: true, frame: self.take(1), ..Entry::default() };
                self.new_table(entry.frame, Level(level.0 - 1));
                let raw = self.model.encode(entry, level);
                if let Err(other) = word.compare_exchange(held, raw, SeqCst, SeqCst) {
                    entry = self.model.decode(other, level);
                }
            }
            table = entry.frame;
            level = Level(level.0 - 1);
        }
        (table, level.index(page))
    }

    pub fn set(&self, root: Frame, page: Page, size: PageSize, frame: Frame, writable: bool) {
        let (table, index) = self.entry(root, page, size);
        let entry = Entry {
            present: true,
            frame,
            writable,
            user: true,
            accessed: true,
            dirty: writable,
            ..Entry::default()
        };
        let raw = self.model.encode(entry, Level::of(size));
        self.model.table(table)[index].store(raw, SeqCst);
    }

    pub fn clear(&self, root: Frame, page: Page, size: PageSize) {
        let (table, index) = self.entry(root, page, size);
        self.model.table(table)[index].store(0, SeqCst);
    }

    /// Maps zeroed memory.
    pub fn populate(&self, first: Page, pages: u64) {
        for page in first.0..first.0 + pages {
            let frame = self.allocate(PageSize::Base);
            self.set(self.root, Page(page), PageSize::Base, frame, true);
        }
    }
}

impl Kernel for Toy<'_> {
    fn interrupt(&self) {
        (self.hooks.interrupt)(self);
    }
    fn nmi(&self) {
        (self.hooks.nmi)(self);
    }
    fn fault(&self, address: u64, _access: Access) -> Result<(), Fault> {
        if address >= 1 << 40 {
            return Err(Fault::NotMapped);
        }
        let frame = self.allocate(PageSize::Base);
        self.model.note(Event::FrameZeroed { frame, frames: 1 });
        self.set(self.root, Page::containing(address), PageSize::Base, frame, true);
        Ok(())
    }
    fn call(&self, call: Call) -> Result<u64, Error> {
        (self.hooks.call)(self, call)
    }
    fn peek(&self, address: u64) -> Option<u64> {
        (self.hooks.peek)(self, address)
    }
    fn online(&self) {
        // SAFETY: in this machine in software a root is a number, and every number is valid.
        unsafe { self.model.load_root(self.root, Tag(1), false) };
    }
}

/// Runs `program` on a toy kernel that `prepare` has set up.
pub fn run(
    setup: &Setup<'_>,
    hooks: &Hooks<'_>,
    prepare: &dyn Fn(&Toy<'_>),
    program: &dyn Fn(&Toy<'_>, &ModelUser<'_>),
) -> Result<RunResult, RunError> {
    setup.run(|bench: &BuiltMachine<'_>| {
        let toy = Toy::new(bench.model(), hooks);
        prepare(&toy);
        bench.go(&toy, &|user| program(&toy, user))
    })
}

/// Runs `program` on a machine of this many CPUs.
pub fn run_on(
    file: &MachineFile,
    cpus: usize,
    hooks: &Hooks<'_>,
    program: &dyn Fn(&Toy<'_>, &ModelUser<'_>),
) -> Result<RunResult, RunError> {
    run(&Setup { cpus: Some(cpus), ..Setup::new(file) }, hooks, &|_| {}, program)
}
