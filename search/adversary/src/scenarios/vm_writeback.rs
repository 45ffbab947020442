//! The memory manager: writeback and protection.

use super::*;

pub(super) const ALL: &[Scenario] = &[
    // CPU 0 writes a dirty page back while CPU 1 writes to it. Content that isn't on the device must leave the page
    // dirty.
    Scenario::over_vm("vm-sync-write")
        .about("writeback against write")
        .bugs(&["22"])
        .finds(&["VmCleansBeforeFlush"])
        .must(Every, &[Machine(Captured)])
        .with_memory([16, 0])
        .vm_start(written_file)
        .vm_cpu(|k| _ = k.sync(0).page_out(0, 1))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // CPU 0 unmaps a dirty page and hasn't flushed yet. CPU 1 finds no writable entry and cleans the page. CPU 2 still
    // writes through the old entry.
    Scenario::over_vm("vm-unmap-sync")
        .about("unmap against writeback")
        .bugs(&["22"])
        .finds(&["VmCleansUnflushed", "VmUnlinksBeforeFlush"])
        .must(Every, &[Machine(Captured), Engine(FlushedPending)])
        .vm_start(written_file)
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.sync(0))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // CPU 0 protects a dirty page and hasn't flushed yet. CPU 1 finds no writable entry and cleans the page. CPU 2
    // still writes through the old entry.
    Scenario::over_vm("vm-protect-sync")
        .about("protect against writeback")
        .bugs(&["22"])
        .finds(&["VmCleansUnflushed"])
        .must(Every, &[Machine(Captured), Engine(FlushedPending)])
        .vm_start(written_file)
        .vm_cpu(|k| _ = k.protect(0, 1))
        .vm_cpu(|k| _ = k.sync(0))
        .vm_cpu(|k| _ = k.write(0, 2)),
    Scenario::over_vm("vm-execute-sync")
        .about("mprotect without PROT_EXEC against instruction fetch")
        .finds(&["VmExecutionUnflushed"])
        .must(Every, &[Machine(CallReturned), Machine(Fault)])
        .vm_start(|k| _ = k.map_code(0, 1).write(0, 1))
        .vm_cpu(|k| _ = k.forbid_execution(0, 1).fetch(0))
        .vm_cpu(|k| _ = k.fetch(0).fetch(0)),
    // CPU 0 unmaps a dirty file page and hasn't flushed yet. CPU 1 reclaims the page. CPU 2 still writes through the
    // old entry.
    Scenario::over_vm("vm-unmap-reclaim")
        .about("unmap against reclaim")
        .finds(&["VmReclaimsUnflushed"])
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([6, 0])
        .vm_start(|k| _ = k.create(1, 1).map_file(0, 1, 0).write(0, 1))
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.reclaim(1))
        .vm_cpu(|k| _ = k.write(0, 2)),
    // CPU 0 unmaps a dirty file page and hasn't flushed yet. CPU 1 demotes the page to slow memory. CPU 2 still writes
    // through the old entry.
    Scenario::over_vm("vm-unmap-demote")
        .about("unmap against demotion")
        .finds(&["VmMigratesUnflushed", "VmDefersDirtyPages"])
        .must(Every, &[Machine(Captured), Machine(StaleUse)])
        .with_memory([6, 2])
        .vm_start(|k| _ = k.create(1, 1).map_file(0, 1, 0).write(0, 1))
        .vm_cpu(|k| _ = k.unmap(0, 1))
        .vm_cpu(|k| _ = k.demote(1))
        .vm_cpu(|k| _ = k.write(0, 2)),
];
