# Sourced by `run` and `run-debian`, which define `hunt CALL OPTION ...`, and by `run-mutants`.

# Compiles calls.c and packs it as initial files, FOLDER/root.cpio.
pack_calls() {
    local compiler=$1 folder=$2
    mkdir -p "$folder/root"/{proc,sys,dev}
    "$compiler" -O1 -Wall -static -pthread -o "$folder/root/init" kernels/boot/hunt/linux/calls.c
    (cd "$folder/root" && find init proc sys dev | cpio --quiet -o -H newc) >"$folder/root.cpio"
}

# A call of calls.c, and what to leave out: FUNCTION@CALLER, or INSTRUCTION@FUNCTION. With FUNCTION=VALUE@CALLER, the
# function that is left out returns VALUE.
flushes_x86_64='
munmap   flush_tlb_mm_range@__vm_munmap
discard  flush_tlb_mm_range@do_madvise
mprotect flush_tlb_mm_range@do_mprotect_pkey
mremap   flush_tlb_mm_range@move_page_tables
fork     flush_tlb_mm_range@kernel_clone
copy     flush_tlb_mm_range@handle_mm_fault
collapse flush_tlb_mm_range@madvise_collapse
compact  arch_tlbbatch_flush@migrate_pages_batch
merge    flush_tlb_mm_range@ksm_scan_thread
pageout  arch_tlbbatch_flush@shrink_folio_list
msync    flush_tlb_mm_range@folio_mkclean
uffd     flush_tlb_mm_range@mwriteprotect_range
unshare  flush_tlb_mm_range@hugetlb_change_protection
tables   flush_tlb_mm_range@__vm_munmap
switch   cr3@__schedule
lazy     switch_mm_irqs_off@__flush_smp_call_function_queue
split    flush_tlb_mm_range@deferred_split_scan
exec     flush_tlb_mm_range@relocate_vma_down
offline  arch_tlbbatch_flush@offline_pages
disk     cache_tag_flush_range@__iommu_dma_unmap
nmi      nmi_uaccess_okay=1@perf_callchain_user'

flushes_aarch64='
munmap   tlbi@__arm64_sys_munmap
munmap   dsb@__arm64_sys_munmap
discard  tlbi@__arm64_sys_madvise
mprotect tlbi@do_mprotect_pkey
mremap   tlbi@__arm64_sys_mremap
fork     tlbi@kernel_clone
copy     tlbi@handle_mm_fault
collapse tlbi@madvise_collapse
compact  tlbi@try_to_migrate_one
uffd     tlbi@mwriteprotect_range
unshare  tlbi@hugetlb_change_protection
tables   tlbi@__arm64_sys_munmap
split    tlbi@deferred_split_scan
exec     tlbi@relocate_vma_down
contiguous tlbi@contpte_convert
munmap   dsb-stores@__arm64_sys_munmap'

# Leaves out one flush at a time, and prints a table of what was found. Then hunts with no flush left out. Takes a list
# of calls and what to leave out, and the calls to try: all if there is none. Returns 1 if a flush was missed, or
# something else was found.
hunt_plants() {
    local flushes=$1 failed=0 call flush with output found
    shift
    echo '| test | left out | found: entry changed in |'
    echo '| --- | --- | --- |'
    while read -r call flush; do
        [ -n "$call" ] || continue
        [ $# -eq 0 ] || [[ " $* " == *" $call "* ]] || continue
        with=()
        [ "$call" != nmi ] || with=("${nmis[@]}")
        output=$(hunt "$call" --skip "$flush" "${with[@]}" 2>&1) || true
        found=$(sed -n 's/^  changed by CPU [0-9]* at 0x[0-9a-f]* \([a-z_0-9]*\).*/`\1`/p
                        s/^C3: device .*/the IOMMU/p' <<<"$output" | head -n1)
        if [ -z "$found" ]; then
            failed=1
            found="**missed**: $(tail -n1 <<<"$output")"
        fi
        echo "| \`$call\` | \`$flush\` | $found |"
    done <<<"$flushes"
    if [ $# -eq 0 ]; then
        hunt all || failed=1
        [[ $flushes != *nmi* ]] || hunt nmi "${nmis[@]}" || failed=1
    fi
    return $failed
}

# What the call `nmi` needs.
nmis=(--nmi 64 --hold 64)
