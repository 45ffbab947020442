/* The calls from QEMU into quell's hunt: see hunt.c. All are cheap and do nothing unless QUELL_HUNT is set. */
#ifndef QUELL_HUNT_H
#define QUELL_HUNT_H

#include "exec/cpu-common.h"
#include "exec/hwaddr.h"
#include "hw/core/cpu.h"

/* A translation that a CPU kept, as the TLB of TCG takes it. */
typedef struct HuntFill {
    hwaddr paddr;
    int prot;
    int size;
    bool guarded;
} HuntFill;

/* Returns whether the CPU's hoard answers this access, and how. Judges the answer. */
bool hunt_hit(CPUState *cs, vaddr addr, MMUAccessType access, int mmu_idx, bool probe, uintptr_t ra, HuntFill *fill);
/*
 * x86-64: returns whether an access faults although the tables permit it, because the CPU keeps a translation with fewer
 * rights; and the error code of that fault.
 */
bool hunt_faults(CPUState *cs, vaddr addr, MMUAccessType access, int mmu_idx, bool probe);
int hunt_error(CPUArchState *env, MMUAccessType access, int mmu_idx);
/* Keeps the translation that a walk has just found, or drops the old one because the walk faulted. */
void hunt_walked(CPUState *cs, vaddr addr, int mmu_idx, bool found);

/* The architecture drops translations: those of a page, all of them. */
void hunt_drop_page(CPUState *cs, vaddr addr, uintptr_t ra);
void hunt_drop_all(CPUState *cs);

/* MOV to CR3 is about to load this value. Its bit 63 keeps the translations of the PCID that it loads. */
void hunt_set_cr3(CPUState *cs, uint64_t value, uintptr_t ra);
/* CR3, TTBR0 or TTBR1 was loaded. */
void hunt_load(CPUState *cs);

/* The CPU has returned to user mode; registers are the user's. */
void hunt_user(CPUState *cs);

/*
 * x86-64: a system call, an interrupt or an exception is about to enter the kernel, if the CPU is in user mode, which
 * would go on at this address. The stack pointer is still the user's.
 */
void hunt_enter_from(CPUState *cs, uint64_t pc);

/* AArch64: a TLBI was issued, of EL1. A DSB completes it. */
void hunt_tlbi(CPUState *cs, unsigned crm, unsigned opc2, uint64_t value, uintptr_t ra);
/* AArch64: an exception was taken from this level, and ERET has returned to user mode. */
void hunt_enter(CPUState *cs, int from_level);
void hunt_leave(CPUState *cs);
/* AArch64: the rights that a stage-1 entry gives, by QEMU's rule. */
int hunt_rights(CPUArchState *env, int mmu_idx, int ap, bool nx, bool kernel_nx);

/* Returns whether stores to this page of RAM must be shown to `hunt_store`. */
bool hunt_watches(ram_addr_t ram);
/* A store to a watched page is about to happen. */
void hunt_store(CPUState *cs, ram_addr_t ram, unsigned size, uintptr_t ra);

/*
 * Returns whether a function begins here whose calls may be left out or hand out frames, or whether such a call returns
 * to here: then `helper_hunt_note` runs first.
 */
bool hunt_notes(vaddr pc);

/* The CPU takes an interrupt. It may be held, or take an NMI, from its next instruction on. */
void hunt_may_hold(CPUState *cs);
/* Returns whether the CPU is held, so that it misses this turn. */
bool hunt_holds(CPUState *cs);

/* The CPU halts. It may be held, so that it wakes late, or an NMI may wake it at once. */
void hunt_halts(CPUState *cs);
/* The registers of performance counters, which exist with NMIs. Others are 0 and stay so. */
uint64_t hunt_counter(CPUState *cs, uint32_t number);
void hunt_set_counter(CPUState *cs, uint32_t number, uint64_t value);

/* Returns whether this machine hunts. */
bool hunt_is_on(void);
/* The IOMMU keeps a translation to this address, for its record of it. `mask` has 0 for the bits of an offset. */
void hunt_dma_keep(const void *entry, hwaddr address, hwaddr mask);
/* The IOMMU drops a translation. Frees its record. */
void hunt_dma_drop(void *entry);
/* A device uses a kept translation. It leads to `then`; the tables lead to `now_there`, or nowhere: -1. */
void hunt_dma(const void *entry, unsigned device, uint64_t address, bool writes, hwaddr then, hwaddr now_there);

/* The time for decisions of QEMU that change a run: instructions instead of nanoseconds. */
int64_t hunt_clock(void);

/* Shortens a turn of this CPU, in instructions, so that the seed decides when CPUs alternate. */
int64_t hunt_turn(CPUState *cs, int64_t most);

#endif
