//! The system calls that programs over the manager make, with pages instead of addresses.

use super::{VmKernel, address};
use crate::context;
use crate::coverage::MachineEvent;
use quell::{Hardware, PageSize};
use quell_vm::{Backing, Call, FileId, ProcessId, Protection};

/// Zeroed memory in pages of this size.
const fn anonymous(page: PageSize) -> Backing {
    Backing::Anonymous { page }
}

/// Each of these panics if the call fails, unless it may. Words are those of a page.
impl VmKernel<'_> {
    /// Makes a call that must not fail, for its effect.
    fn make(&self, call: Call) -> &Self {
        self.call(call);
        self
    }

    /// Maps pages with this protection and backing, in place of earlier mappings.
    fn map_backed(&self, page: u64, pages: u64, protection: Protection, backing: Backing) -> &Self {
        let (address, bytes) = (Some(address(page)), address(pages));
        self.make(Call::Map { address, bytes, protection, backing })
    }

    /// Maps zeroed memory.
    pub fn map(&self, page: u64, pages: u64) -> &Self {
        self.map_backed(page, pages, Protection::READ_WRITE, anonymous(PageSize::Base))
    }

    /// Maps zeroed memory in large pages.
    pub fn map_large(&self, page: u64, pages: u64) -> &Self {
        self.map_backed(page, pages, Protection::READ_WRITE, anonymous(PageSize::Large))
    }

    /// Maps zeroed memory that programs may also execute.
    pub fn map_code(&self, page: u64, pages: u64) -> &Self {
        let protection = Protection { execute: true, ..Protection::READ_WRITE };
        self.map_backed(page, pages, protection, anonymous(PageSize::Base))
    }

    /// Maps a file from its beginning, shared and read-only.
    pub fn map_file_read(&self, page: u64, pages: u64, file: FileId) -> &Self {
        self.map_backed(page, pages, Protection::READ, Backing::Shared { file, offset: 0 })
    }

    /// Maps a file from its beginning, shared and writable.
    pub fn map_file(&self, page: u64, pages: u64, file: FileId) -> &Self {
        self.map_backed(page, pages, Protection::READ_WRITE, Backing::Shared { file, offset: 0 })
    }

    /// Maps a file from its beginning, private and writable.
    pub fn map_file_private(&self, page: u64, pages: u64, file: FileId) -> &Self {
        self.map_backed(page, pages, Protection::READ_WRITE, Backing::Private { file, offset: 0 })
    }

    /// Creates a file of one page, maps it shared and read-only, and reads it. So the page is clean.
    ///
    /// The page's first word is 1.
    pub fn read_clean_file(&self, page: u64) -> &Self {
        self.create_clean(1, 1).map_file_read(page, 1, 0).read(page)
    }

    fn set_rights(&self, page: u64, pages: u64, protection: Protection) -> &Self {
        self.make(Call::Protect { address: address(page), bytes: address(pages), protection })
    }

    /// Removes the right to execute pages.
    pub fn forbid_execution(&self, page: u64, pages: u64) -> &Self {
        self.set_rights(page, pages, Protection::READ_WRITE)
    }

    /// Removes the right to write to pages.
    pub fn protect(&self, page: u64, pages: u64) -> &Self {
        self.set_rights(page, pages, Protection::READ)
    }

    /// Removes every right to pages.
    pub fn forbid(&self, page: u64, pages: u64) -> &Self {
        self.set_rights(page, pages, Protection::NONE)
    }

    /// Unmaps pages.
    pub fn unmap(&self, page: u64, pages: u64) -> &Self {
        self.make(Call::Unmap { address: address(page), bytes: address(pages) })
    }

    /// Drops the content of pages.
    pub fn discard(&self, page: u64, pages: u64) -> &Self {
        self.make(Call::Discard { address: address(page), bytes: address(pages) })
    }

    /// Moves pages elsewhere in the address space.
    pub fn remap(&self, page: u64, pages: u64, to: u64) -> &Self {
        let (address, bytes, to) = (address(page), address(pages), Some(address(to)));
        self.make(Call::Remap { address, bytes, to })
    }

    /// Moves 512 pages into a large one.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn collapse(&self, page: u64) -> &Self {
        assert_ne!(
            self.call(Call::Collapse { address: address(page) }),
            0,
            "no large page is free"
        );
        self
    }

    /// Pages out pages, which may have been unmapped.
    pub fn page_out(&self, page: u64, pages: u64) -> &Self {
        let _ = self.try_call(Call::PageOut { address: address(page), bytes: address(pages) });
        self
    }

    /// Moves pages, which may have been unmapped, to a memory node.
    pub fn migrate(&self, page: u64, pages: u64, node: u32) -> &Self {
        let (address, bytes) = (address(page), address(pages));
        let _ = self.try_call(Call::Migrate { address, bytes, node });
        self
    }

    /// Maps and uses a page beside the scenario's, so that their leaf table isn't freed.
    pub fn keep_table(&self) -> &Self {
        self.map(100, 1).write(100, 100)
    }

    /// Takes this CPU offline. It then runs nothing, and its pending interrupt is lost.
    pub fn offline(&self) -> &Self {
        self.hw.say(|| "goes offline".into());
        self.hw.happen(MachineEvent::Offline);
        self.hw.mask_interrupts();
        self.forget_process();
        self.vm.offline();
        self.hw.offline();
        self
    }

    /// Makes this CPU run no process.
    pub fn leave(&self) -> &Self {
        self.forget_process();
        self.vm.leave();
        self
    }

    fn forget_process(&self) {
        let me = self.hw.this_cpu().index();
        context::with(|core| {
            if !core.searches {
                core.abstract_machine.leave(me);
            }
        });
    }

    /// Brings this CPU online.
    pub fn online(&self) -> &Self {
        self.hw.say(|| "comes online".into());
        self.hw.online();
        self.vm.online();
        self.hw.restore_interrupts(true);
        self
    }

    /// Creates a file whose first word is `value`. Its first page is in the page cache and dirty.
    ///
    /// Files are numbered from 0, in the order of their creation.
    pub fn create(&self, pages: u64, value: u64) -> &Self {
        let file = self.call(Call::Create { bytes: address(pages) }) as FileId;
        if value != 0 {
            self.write_file(file, 0, 0, value);
        }
        self
    }

    /// Creates a file whose first word is `value`. Its first page is in the page cache and clean.
    pub fn create_clean(&self, pages: u64, value: u64) -> &Self {
        let file = self.call(Call::Create { bytes: address(pages) }) as FileId;
        self.write_file(file, 0, 0, value).sync(file)
    }

    /// Writes a word of a page of a file.
    pub fn write_file(&self, file: FileId, page: u64, word: u64, value: u64) -> &Self {
        self.make(Call::Write { file, offset: address(page) + 8 * word, value })
    }

    /// Reads a word of a page of a file, which may be beyond its end.
    pub fn read_file(&self, file: FileId, page: u64, word: u64) -> &Self {
        let _ = self.try_call(Call::Read { file, offset: address(page) + 8 * word });
        self
    }

    /// Truncates a file to this number of pages and words.
    pub fn truncate(&self, file: FileId, pages: u64, words: u64) -> &Self {
        self.make(Call::Truncate { file, bytes: address(pages) + 8 * words })
    }

    /// Writes the dirty pages of a file to its device.
    pub fn sync(&self, file: FileId) -> &Self {
        self.make(Call::Sync { file })
    }

    /// Forks this CPU's process. Processes are numbered from 1, in the order of their creation.
    pub fn fork(&self) -> &Self {
        self.make(Call::Fork)
    }

    /// Creates a process without any mapping.
    pub fn spawn(&self) -> &Self {
        self.make(Call::Spawn)
    }

    /// Continues in another process.
    pub fn enter(&self, process: ProcessId) -> &Self {
        self.make(Call::Enter { process })
    }

    /// Ends a process once no CPU runs it.
    pub fn exit(&self, process: ProcessId) -> &Self {
        self.make(Call::Exit { process })
    }

    /// Frees this number of pages that weren't used lately.
    pub fn reclaim(&self, pages: u64) -> &Self {
        self.make(Call::Reclaim { pages })
    }

    /// Moves this number of pages that weren't used lately to slow memory.
    pub fn demote(&self, pages: u64) -> &Self {
        self.make(Call::Demote { pages })
    }

    /// Sleeps until an interrupt or the clock wakes the CPU.
    pub fn idle(&self) -> &Self {
        self.make(Call::Idle { until: 0 })
    }

    /// Makes a call again and again until it succeeds.
    pub fn make_at_last(&self, call: Call) -> &Self {
        while self.try_call(call).is_err() {
            self.hw.relax();
        }
        self
    }
}
