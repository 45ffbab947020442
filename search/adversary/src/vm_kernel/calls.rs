//! The system calls that programs over the manager make, with pages instead of addresses.

use super::{VmKernel, address};
use crate::context;
use crate::coverage::MachineEvent;
use quell::{Hardware, PageSize};
use quell_vm::{Backing, Call, FileId, ProcessId, Protection};

impl VmKernel<'_> {
    /// Maps zeroed memory.
    pub fn map(&self, page: u64, pages: u64) {
        let backing = Backing::Anonymous { page: PageSize::Base };
        self.map_backed(page, pages, Protection::READ_WRITE, backing);
    }

    /// Maps zeroed memory in large pages.
    pub fn map_large(&self, page: u64, pages: u64) {
        let backing = Backing::Anonymous { page: PageSize::Large };
        self.map_backed(page, pages, Protection::READ_WRITE, backing);
    }

    /// Maps a file from its beginning, shared and read-only.
    pub fn map_file_read(&self, page: u64, pages: u64, file: FileId) {
        let backing = Backing::Shared { file, offset: 0 };
        self.map_backed(page, pages, Protection::READ, backing);
    }

    /// Maps a file from its beginning, shared and writable.
    pub fn map_file(&self, page: u64, pages: u64, file: FileId) {
        let backing = Backing::Shared { file, offset: 0 };
        self.map_backed(page, pages, Protection::READ_WRITE, backing);
    }

    /// Maps a file from its beginning, private and writable.
    pub fn map_file_private(&self, page: u64, pages: u64, file: FileId) {
        let backing = Backing::Private { file, offset: 0 };
        self.map_backed(page, pages, Protection::READ_WRITE, backing);
    }

    /// Creates a file of one page, maps it shared and read-only, and reads it. So the page is clean.
    ///
    /// The page's first word is 1.
    pub fn read_clean_file(&self, page: u64) {
        let file = self.create_clean(1, 1);
        self.map_file_read(page, 1, file);
        self.read(page);
    }

    /// Maps pages with this protection and backing, in place of earlier mappings.
    pub fn map_backed(&self, page: u64, pages: u64, protection: Protection, backing: Backing) {
        self.call(Call::Map {
            address: Some(address(page)),
            bytes: address(pages),
            protection,
            backing,
        });
    }

    /// Maps zeroed memory that programs may also execute.
    pub fn map_code(&self, page: u64, pages: u64) {
        let backing = Backing::Anonymous { page: PageSize::Base };
        let protection = Protection { execute: true, ..Protection::READ_WRITE };
        self.map_backed(page, pages, protection, backing);
    }

    /// Removes the right to execute pages.
    pub fn forbid_execution(&self, page: u64, pages: u64) {
        self.call(Call::Protect {
            address: address(page),
            bytes: address(pages),
            protection: Protection::READ_WRITE,
        });
    }

    /// Unmaps pages.
    pub fn unmap(&self, page: u64, pages: u64) {
        let (address, bytes) = (address(page), address(pages));
        self.call(Call::Unmap { address, bytes });
    }

    /// Drops the content of pages.
    pub fn discard(&self, page: u64, pages: u64) {
        let (address, bytes) = (address(page), address(pages));
        self.call(Call::Discard { address, bytes });
    }

    /// Removes the right to write to pages.
    pub fn protect(&self, page: u64, pages: u64) {
        self.call(Call::Protect {
            address: address(page),
            bytes: address(pages),
            protection: Protection::READ,
        });
    }

    /// Moves 512 pages into a large one. Returns whether it did.
    pub fn collapse(&self, page: u64) -> bool {
        let address = address(page);
        self.call(Call::Collapse { address }) != 0
    }

    /// Removes every right to pages.
    pub fn forbid(&self, page: u64, pages: u64) {
        self.call(Call::Protect {
            address: address(page),
            bytes: address(pages),
            protection: Protection::NONE,
        });
    }

    /// Maps and uses a page beside the scenario's, so that their leaf table isn't freed.
    pub fn keep_table(&self) {
        self.map(100, 1);
        self.write(100, 100);
    }

    /// Takes this CPU offline. It then runs nothing, and its pending interrupt is lost.
    pub fn offline(&self) {
        self.hw.say(|| "goes offline".into());
        self.hw.happen(MachineEvent::Offline);
        self.hw.mask_interrupts();
        self.forget_process();
        self.vm.offline();
        self.hw.offline();
    }

    /// Makes this CPU run no process.
    pub fn leave(&self) {
        self.forget_process();
        self.vm.leave();
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
    pub fn online(&self) {
        self.hw.say(|| "comes online".into());
        self.hw.online();
        self.vm.online();
        self.hw.restore_interrupts(true);
    }

    /// Pages out pages, which may have been unmapped.
    pub fn page_out(&self, page: u64, pages: u64) {
        let (address, bytes) = (address(page), address(pages));
        let _ = self.try_call(Call::PageOut { address, bytes });
    }

    /// Moves pages elsewhere in the address space.
    pub fn remap(&self, page: u64, pages: u64, to: u64) {
        self.call(Call::Remap {
            address: address(page),
            bytes: address(pages),
            to: Some(address(to)),
        });
    }

    /// Moves pages, which may have been unmapped, to a memory node.
    pub fn migrate(&self, page: u64, pages: u64, node: u32) {
        let (address, bytes) = (address(page), address(pages));
        let call = Call::Migrate { address, bytes, node };
        let _ = self.try_call(call);
    }

    /// Creates a file whose first word is `value`. Its first page is in the page cache and dirty.
    pub fn create(&self, pages: u64, value: u64) -> FileId {
        let file = self.call(Call::Create { bytes: address(pages) }) as FileId;
        if value != 0 {
            self.write_file(file, 0, value);
        }
        file
    }

    /// Creates a file whose first word is `value`. Its first page is in the page cache and clean.
    pub fn create_clean(&self, pages: u64, value: u64) -> FileId {
        let file = self.create(pages, value);
        self.sync(file);
        file
    }

    /// Writes the first word of a page of a file.
    pub fn write_file(&self, file: FileId, page: u64, value: u64) {
        let offset = address(page);
        self.call(Call::Write { file, offset, value });
    }

    /// Writes the second word of a page of a file.
    pub fn write_second(&self, file: FileId, page: u64, value: u64) {
        let offset = address(page) + 8;
        self.call(Call::Write { file, offset, value });
    }

    /// Truncates a file after the first word of a page.
    pub fn truncate_behind_first(&self, file: FileId, page: u64) {
        let bytes = address(page) + 8;
        self.call(Call::Truncate { file, bytes });
    }

    /// Reads the first word of a page of a file. Returns `None` beyond its end.
    pub fn read_file(&self, file: FileId, page: u64) -> Option<u64> {
        let offset = address(page);
        self.try_call(Call::Read { file, offset }).ok()
    }

    /// Reads the second word of a page of a file. Returns `None` beyond its end.
    pub fn read_second(&self, file: FileId, page: u64) -> Option<u64> {
        let offset = address(page) + 8;
        self.try_call(Call::Read { file, offset }).ok()
    }

    /// Truncates a file to this number of pages.
    pub fn truncate(&self, file: FileId, pages: u64) {
        let bytes = address(pages);
        self.call(Call::Truncate { file, bytes });
    }

    /// Writes the dirty pages of a file to its device.
    pub fn sync(&self, file: FileId) {
        self.call(Call::Sync { file });
    }

    /// Forks this CPU's process.
    pub fn fork(&self) -> ProcessId {
        self.call(Call::Fork) as ProcessId
    }

    /// Creates a process without any mapping.
    pub fn spawn(&self) -> ProcessId {
        self.call(Call::Spawn) as ProcessId
    }

    /// Continues in another process.
    pub fn enter(&self, process: ProcessId) {
        self.call(Call::Enter { process });
    }

    /// Ends a process once no CPU runs it.
    pub fn exit(&self, process: ProcessId) {
        self.call(Call::Exit { process });
    }

    /// Frees this number of pages that weren't used lately.
    pub fn reclaim(&self, pages: u64) {
        self.call(Call::Reclaim { pages });
    }

    /// Moves this number of pages that weren't used lately to slow memory.
    pub fn demote(&self, pages: u64) {
        self.call(Call::Demote { pages });
    }

    /// Sleeps until an interrupt or the clock wakes the CPU.
    pub fn idle(&self) {
        self.call(Call::Idle { until: 0 });
    }

    /// Runs one iteration of a waiting loop.
    pub fn pause(&self) {
        self.hw.relax();
    }
}
