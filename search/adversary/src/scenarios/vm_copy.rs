//! The memory manager: copy on write, and fork.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 writes to a page of a file that its process maps privately, and finds the entry empty. While it copies, CPU
    // 1 reads the page itself there, and CPU 2 reclaims it again and hasn't flushed. So the entry is as empty as
    // before.
    //
    // Reclaim would skip a page to which another part of the kernel refers. It treats a marker in another mapping as
    // such a reference.
    Scenario::over_vm("vm-copy-refill")
        .about("private copy against reclaim of the page itself")
        .finds(&["VmFillsUnflushed"])
        .must(Every, &[Machine(Fault)])
        .with_memory([24, 0])
        .vm_start(|k| {
            k.create_clean(1, 1).map_file_read(1, 1, 0).map_file_private(2, 1, 0).read(1);
            k.page_out(1, 1).write_file(0, 0, 0, 2);
        })
        .vm_cpu(|k| _ = k.write(2, 3))
        .vm_cpu(|k| {
            for _ in 0..6 {
                k.read(2);
            }
        })
        .vm_cpu(|k| {
            for _ in 0..2 {
                k.page_out(2, 1);
            }
        }),
    Scenario::over_vm("vm-copy-on-write")
        .about("copy on write against write")
        .bugs(&["21"])
        .must(Every, &[Machine(Captured), Machine(CallReturned)])
        .with_memory([24, 0])
        .vm_start(|k| _ = k.map(0, 1).write(0, 1).keep_table().fork())
        .vm_cpu(|k| _ = k.write(0, 2))
        .vm_cpu(|k| _ = k.write(0, 3).read(0)),
    Scenario::over_vm("vm-copy-on-write-read")
        .about("copy on write against read")
        .finds(&["VmMapsCopyBeforeFlush"])
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([24, 0])
        .vm_start(|k| _ = k.map(0, 1).write(0, 1).keep_table().fork())
        .vm_cpu(|k| _ = k.write(0, 2))
        .vm_cpu(|k| _ = k.write(0, 3))
        .vm_cpu(|k| _ = k.read(0).read(0)),
    // CPU 1 reclaims a page while CPU 0 forks. The child shares the page that is being reclaimed, and copies it before
    // CPU 1 has flushed. CPU 2 still writes for the parent through the old entry.
    Scenario::over_vm("vm-reclaim-fork-copy")
        .about("reclaim against fork and copy")
        .bugs(&["21"])
        .finds(&["VmForksUnflushed"])
        .must(Every, &[Machine(Captured)])
        .must(Interrupts, &[Machine(StaleUse)])
        .with_memory([24, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.fork().enter(CHILD).write(0, 2))
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.write(0, 3)),
    // CPU 0 forks. CPU 1 enters the child as soon as it exists and writes to a shared page. CPU 2 is still in the
    // parent, and writes through an entry whose write protection may not have been flushed.
    Scenario::over_vm("vm-fork-write")
        .about("fork against write")
        .bugs(&["21"])
        .finds(&["VmForkReturnsUnflushed"])
        .must(Every, &[Machine(Captured)])
        .with_memory([24, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.fork())
        .vm_cpu(|k| _ = k.make_at_last(Call::Enter { process: 2 }).write(0, 2).read(0))
        .vm_cpu(|k| _ = k.write(0, 3)),
    // CPU 0 forks. CPU 1, in the parent, finds the page write-protected and copies it. CPU 2 may still write to the
    // page through an entry whose write protection wasn't flushed.
    Scenario::over_vm("vm-fork-copy")
        .about("fork against a copy in the parent")
        .bugs(&["21"])
        .finds(&["VmCopiesUnflushed"])
        .must(Every, &[Machine(Captured), Machine(Fault)])
        .with_memory([24, 0])
        .vm_start(written_page)
        .vm_cpu(|k| _ = k.fork())
        .vm_cpu(|k| _ = k.write(0, 2))
        .vm_cpu(|k| _ = k.write(0, 3).write(0, 4)),
    Scenario::over_vm("vm-unmap-tables")
        .about("unmap across leaf tables against access")
        .finds(&["VmUnmapForgetsEntry"])
        .must(Every, &[Machine(CallReturned)])
        .vm_start(|k| _ = k.map(511, 2).write(511, 1).write(512, 1))
        .vm_cpu(|k| _ = k.unmap(511, 2))
        .vm_cpu(|k| _ = k.read(512).write(511, 2)),
];
