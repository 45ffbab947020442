//! From a stack to whose doing it was: the call or the part of the kernel that flushes, and the place in the program.
//!
//! The *site* of a flush is the code that one would change. It begins with the innermost frame of user mode and goes
//! outwards through the C library, allocators and language runtimes up to the first frame that belongs to the program
//! itself, that one included. Where no such frame is (a runtime's own thread, a stack that frame pointers do not
//! reach), it is everything there is. The whole stack is kept beside it, for flame graphs. The file is long because its
//! last third are tests.

use std::sync::Arc;

use crate::perf::Frame;
use rustc_hash::FxHashMap;

/// How many frames a site has at most.
const DEEPEST: usize = 24;
/// How many stacks are remembered.
const KNOWN: usize = 1 << 15;

/// Parts of the kernel that flush for reasons of their own: a function that is on the stack then, and what is said.
/// The first that is found holds, so what is special stands before what is general.
const CAUSES: &[(&str, &str)] = &[
    ("balance_pgdat", "reclaim (kswapd)"),
    ("try_to_free_mem_cgroup_pages", "reclaim (memory cgroup)"),
    ("do_try_to_free_pages", "reclaim (direct)"),
    ("try_to_free_pages", "reclaim (direct)"),
    ("shrink_node", "reclaim"),
    ("task_numa_work", "NUMA balancing"),
    ("change_prot_numa", "NUMA balancing"),
    ("migrate_misplaced_folio", "NUMA balancing"),
    ("migrate_misplaced_page", "NUMA balancing"),
    ("do_numa_page", "NUMA balancing"),
    ("kcompactd", "compaction"),
    ("compact_zone", "compaction"),
    ("ksm_scan_thread", "KSM"),
    ("ksm_do_scan", "KSM"),
    ("try_to_merge_one_page", "KSM"),
    ("khugepaged", "huge pages (khugepaged)"),
    ("kdamond_fn", "DAMON"),
    ("oom_reaper", "out of memory"),
    ("wb_workfn", "write-back"),
    ("writeback_single_inode", "write-back"),
    ("folio_mkclean", "write-back"),
    ("page_mkclean", "write-back"),
    ("folio_clear_dirty_for_io", "write-back"),
    ("clear_page_dirty_for_io", "write-back"),
    ("flush_tlb_kernel_range", "kernel mappings"),
    ("begin_new_exec", "execve"),
    ("exit_mmap", "exit"),
    ("dup_mmap", "fork"),
    ("dup_mm", "fork"),
    ("wp_page_copy", "copy-on-write"),
    ("do_wp_page", "copy-on-write"),
    ("do_huge_pmd_wp_page", "copy-on-write"),
];

/// Causes that hold only where no system call asked for them.
const UNASKED: &[(&str, &str)] = &[
    ("migrate_pages_batch", "migration"),
    ("migrate_pages", "migration"),
    ("migrate_pages_sync", "migration"),
];

/// What serves a system call below the function that has its name, which is no more on the stack where it has ended by
/// calling this.
const SERVES: &[(&str, &str)] = &[
    ("ksys_mmap_pgoff", "mmap"),
    ("vm_mmap_pgoff", "mmap"),
    ("__vm_munmap", "munmap"),
    ("do_mprotect_pkey", "mprotect"),
    ("do_madvise", "madvise"),
    ("vector_madvise", "process_madvise"),
    ("do_mremap", "mremap"),
    ("do_mbind", "mbind"),
    ("kernel_mbind", "mbind"),
    ("kernel_move_pages", "move_pages"),
    ("kernel_migrate_pages", "migrate_pages"),
    ("userfaultfd_ioctl", "ioctl"),
    ("do_execveat_common", "execve"),
];

/// Where the kernel begins to serve a system call, whichever it is.
const ENTRIES: &[&str] = &[
    "x64_sys_call",
    "do_syscall_64",
    "do_syscall_x64",
    "do_int80_emulation",
    "__do_fast_syscall_32",
    "invoke_syscall",
    "el0_svc_common",
    "do_el0_svc",
];

/// Files whose frames are no program's own: by how their names begin.
const LIBRARIES: &[&str] = &[
    "libc.",
    "libc-",
    "libpthread",
    "ld-linux",
    "ld-musl",
    "ld-",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "libm.",
    "libm-",
    "librt",
    "libdl",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libgomp",
    "libtbb",
    "libunwind",
    "[vdso]",
    "[vsyscall]",
    "libasan",
    "libtsan",
];

/// Functions that are no program's own where they are linked into the program: whole names, and beginnings of names
/// where the last letter is none.
const RUNTIMES: &[&str] = &[
    "runtime.",
    "runtime/",
    "je_",
    "_rjem_",
    "tc_",
    "tcmalloc::",
    "mi_",
    "_mi_",
    "__libc_",
    "__GI_",
    "std::sys::",
    "core::",
    "alloc::",
    "std::alloc",
    "<alloc::",
    "<core::",
    "operator new(",
    "operator delete(",
    "operator new[",
    "operator delete[",
    "malloc",
    "free",
    "calloc",
    "realloc",
    "__madvise",
    "__munmap",
    "__mmap",
    "__mprotect",
    "madvise",
    "munmap",
    "mmap",
    "mprotect",
    "syscall",
    "__syscall",
    "internal/runtime/",
    "syscall.",
    "libc::",
];

/// What a stack tells.
#[derive(Debug, Default)]
pub struct StackInfo {
    /// The part of the kernel that flushed for a reason of its own.
    pub cause: Option<&'static str>,
    /// The system call that the kernel was in.
    pub call: Option<Arc<str>>,
    /// The outermost function behind the entry of calls: a guess, for where nothing else says which call it is.
    pub outermost: Option<Arc<str>>,
    /// Whether the kernel was in a page fault.
    pub fault: bool,
    /// Whether the kernel was flushing a TLB.
    pub flush: bool,
    /// The site's frames, innermost first.
    pub site: Arc<[Arc<str>]>,
    /// Whether the site ends in a frame of the program's own.
    pub own: bool,
    /// All frames, outermost first, for a flame graph; frames of the kernel end with `_[k]`.
    pub folded: Arc<str>,
}

/// What stacks tell, each looked at once.
#[derive(Debug, Default)]
pub struct Stacks {
    // The stack is kept with what it tells, so no other can get its address.
    known: FxHashMap<usize, (Arc<[Frame]>, Arc<StackInfo>)>,
}

impl Stacks {
    /// What this stack tells.
    pub fn tell(&mut self, stack: &Arc<[Frame]>) -> Arc<StackInfo> {
        let key = Arc::as_ptr(stack).cast::<()>() as usize;
        if let Some((_, told)) = self.known.get(&key) {
            return told.clone();
        }
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        let told = Arc::new(tell(stack));
        self.known.insert(key, (stack.clone(), told.clone()));
        told
    }
}

/// A function of the kernel without what the compiler appended: `.isra.0`, `.constprop.1`.
fn plain(symbol: &str) -> &str {
    symbol.split('.').next().unwrap_or(symbol)
}

fn tell(stack: &[Frame]) -> StackInfo {
    let kernel = || {
        let frames = stack.iter().filter(|frame| frame.kernel);
        frames
            .filter_map(|frame| frame.symbol.as_deref())
            .map(plain)
    };
    let call = call(kernel);
    let find = |table: &'static [(&str, &'static str)]| {
        let found = table
            .iter()
            .find(|(name, _)| kernel().any(|symbol| symbol == *name));
        found.map(|(_, cause)| *cause)
    };
    let cause = find(CAUSES).or_else(|| if call.is_none() { find(UNASKED) } else { None });
    let (site, own) = site(stack, cause);
    StackInfo {
        cause,
        fault: kernel().any(|symbol| {
            matches!(
                symbol,
                "exc_page_fault"
                    | "do_user_addr_fault"
                    | "asm_exc_page_fault"
                    | "do_page_fault"
                    | "do_mem_abort"
            )
        }),
        flush: kernel()
            .any(|symbol| symbol.contains("flush_tlb") || symbol.contains("tlbbatch_flush")),
        call,
        outermost: outermost(kernel),
        site,
        own,
        folded: folded(stack).into(),
    }
}

/// The call that the kernel serves, of its functions from inside out: by the function that has its name, or one that
/// has taken that one's place.
fn call<'a, Kernel: Iterator<Item = &'a str>>(kernel: impl Fn() -> Kernel) -> Option<Arc<str>> {
    let served = |symbol: &str| {
        let found = SERVES.iter().find(|(name, _)| symbol == *name);
        found.map(|(_, call)| *call)
    };
    let named = kernel().filter(|symbol| served(symbol).is_none());
    // The outermost: to load a program, too, maps memory.
    let serving = || kernel().filter_map(served).last().map(Into::into);
    named.filter_map(call_of).next().or_else(serving)
}

/// The outermost function behind the entry of calls, of the kernel's functions from inside out: where nothing else says
/// which call it is.
fn outermost<'a, Kernel: Iterator<Item = &'a str>>(
    kernel: impl Fn() -> Kernel,
) -> Option<Arc<str>> {
    let entry = kernel().position(|symbol| ENTRIES.contains(&symbol))?;
    kernel().nth(entry.checked_sub(1)?).map(Into::into)
}

/// The call that `__x64_sys_madvise` serves.
fn call_of(symbol: &str) -> Option<Arc<str>> {
    let prefixes = [
        "__x64_sys_",
        "__arm64_sys_",
        "__riscv_sys_",
        "__ia32_sys_",
        "__se_sys_",
        "__do_sys_",
        "ksys_",
    ];
    let name = prefixes
        .iter()
        .find_map(|prefix| symbol.strip_prefix(prefix));
    name.map(Into::into)
}

/// What a frame is called: its function, or its file and address, or nothing known.
pub fn label(frame: &Frame) -> Arc<str> {
    match (&frame.symbol, &frame.module) {
        (Some(symbol), _) => symbol.clone(),
        (None, Some(module)) if module.starts_with("//anon") || module.starts_with("[jit") => {
            "[jit]".into()
        }
        (None, Some(module)) => format!("{}+{:#x}", base(module), frame.address).into(),
        (None, None) => "[unknown]".into(),
    }
}

fn base(module: &str) -> &str {
    module.rsplit('/').next().unwrap_or(module)
}

/// Whether a frame is the program's own, not of a library or runtime that it shares with all others.
fn is_own(frame: &Frame) -> bool {
    if let Some(symbol) = &frame.symbol {
        let begins = |name: &str| !name.ends_with(|c: char| c.is_ascii_alphanumeric());
        let is = |name: &str| &**symbol == name || begins(name) && symbol.starts_with(name);
        if RUNTIMES.iter().any(|name| is(name)) {
            return false;
        }
    }
    match &frame.module {
        Some(module) => !LIBRARIES
            .iter()
            .any(|prefix| base(module).starts_with(prefix)),
        None => frame.symbol.is_some(),
    }
}

fn site(stack: &[Frame], cause: Option<&'static str>) -> (Arc<[Arc<str>]>, bool) {
    let user: Vec<&Frame> = stack.iter().filter(|frame| !frame.kernel).collect();
    if let Some(last) = user.iter().take(DEEPEST).position(|frame| is_own(frame)) {
        return (
            user[..=last].iter().map(|frame| label(frame)).collect(),
            true,
        );
    }
    if !user.is_empty() {
        // Without frame pointers, what is behind the innermost frame is often no frame at all.
        let known = user.iter().take(DEEPEST);
        let known = known.take_while(|frame| frame.symbol.is_some() || frame.module.is_some());
        let mut site: Vec<Arc<str>> = known.map(|frame| label(frame)).collect();
        if site.len() < user.len().min(DEEPEST) {
            site.push("[unknown]".into());
        }
        return (site.into(), false);
    }
    // A thread of the kernel: the function that is the cause.
    let cause = CAUSES
        .iter()
        .chain(UNASKED)
        .filter(|(_, said)| cause == Some(said));
    let named = cause.map(|(name, _)| *name).find(|name| {
        let mut symbols = stack.iter().filter_map(|frame| frame.symbol.as_deref());
        symbols.any(|symbol| plain(symbol) == *name)
    });
    (named.into_iter().map(Into::into).collect(), false)
}

fn folded(stack: &[Frame]) -> String {
    let mut out = String::new();
    for frame in stack.iter().rev() {
        if !out.is_empty() {
            out.push(';');
        }
        // Semicolons are what parts frames, and line ends stacks.
        out.extend(
            label(frame)
                .chars()
                .map(|c| if matches!(c, ';' | '\n') { ',' } else { c }),
        );
        if frame.kernel {
            out.push_str("_[k]");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kernel: bool, symbol: &str, module: &str) -> Frame {
        let text = |text: &str| (!text.is_empty()).then(|| Arc::from(text));
        Frame {
            address: 0x1234,
            kernel,
            symbol: text(symbol),
            module: text(module),
        }
    }

    fn site_of(stack: &[Frame]) -> Vec<String> {
        tell(stack).site.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_site_ends_at_the_programs_own_frame() {
        let stack = [
            frame(true, "flush_tlb_mm_range", "[kernel]"),
            frame(true, "__x64_sys_madvise", "[kernel]"),
            frame(false, "__madvise", "/usr/lib/libc.so.6"),
            frame(false, "pages_decommit", "/usr/lib/libjemalloc.so.2"),
            frame(false, "handle_request", "/opt/server"),
            frame(false, "main", "/opt/server"),
        ];
        let told = tell(&stack);
        assert_eq!(
            site_of(&stack),
            ["__madvise", "pages_decommit", "handle_request"]
        );
        assert_eq!(
            (told.call.as_deref(), told.cause, told.flush),
            (Some("madvise"), None, true)
        );
        assert_eq!(
            &*told.folded,
            "main;handle_request;pages_decommit;__madvise;__x64_sys_madvise_[k];flush_tlb_mm_range_[k]"
        );
    }

    #[test]
    fn a_runtime_that_is_linked_in_is_not_the_programs_own() {
        let stack = [
            frame(false, "runtime.madvise", "/opt/go"),
            frame(false, "runtime.sysUnused", "/opt/go"),
            frame(false, "main.work", "/opt/go"),
        ];
        assert_eq!(site_of(&stack).len(), 3);
        // Its own thread: everything.
        assert_eq!(site_of(&stack[..2]).len(), 2);
        assert!(!tell(&stack[..2]).own);
    }

    #[test]
    fn a_stack_that_breaks_off_says_so() {
        let stack = [
            frame(false, "__madvise", "/usr/lib/libc.so.6"),
            frame(false, "", ""),
            frame(false, "", ""),
        ];
        assert_eq!(site_of(&stack), ["__madvise", "[unknown]"]);
        assert!(!tell(&stack).own);
    }

    #[test]
    fn the_kernels_own_reasons_come_before_the_call() {
        let stack = [
            frame(true, "try_to_unmap_flush", "[kernel]"),
            frame(true, "do_try_to_free_pages", "[kernel]"),
            frame(true, "__x64_sys_read", "[kernel]"),
            frame(false, "main", "/opt/server"),
        ];
        assert_eq!(tell(&stack).cause, Some("reclaim (direct)"));
        let pageout = [
            frame(true, "reclaim_pages", "[kernel]"),
            frame(true, "__x64_sys_madvise", "[kernel]"),
        ];
        assert_eq!(tell(&pageout).cause, None);
        let kswapd = [
            frame(true, "balance_pgdat.isra.0", "[kernel]"),
            frame(true, "kswapd", "[kernel]"),
        ];
        assert_eq!(site_of(&kswapd), ["balance_pgdat"]);
    }

    #[test]
    fn a_call_whose_own_function_has_left_the_stack_is_known_by_what_serves_it() {
        let served_by = |symbols: &[&str]| {
            let mut stack = vec![frame(true, "flush_tlb_mm_range", "[kernel]")];
            stack.extend(symbols.iter().map(|symbol| frame(true, symbol, "[kernel]")));
            stack.push(frame(true, "entry_SYSCALL_64_after_hwframe", "[kernel]"));
            let told = tell(&stack);
            told.call.or(told.outermost).map(|call| call.to_string())
        };
        for (symbols, call) in [
            (&["do_mmap", "vm_mmap_pgoff", "do_syscall_64"][..], "mmap"),
            (
                &[
                    "vm_mmap_pgoff",
                    "ksys_mmap_pgoff",
                    "__x64_sys_mmap",
                    "do_syscall_64",
                ],
                "mmap",
            ),
            (
                &[
                    "do_mmap",
                    "vm_mmap_pgoff",
                    "elf_load",
                    "__x64_sys_execve",
                    "do_syscall_64",
                ],
                "execve",
            ),
            (
                &[
                    "do_mmap",
                    "vm_mmap_pgoff",
                    "elf_load",
                    "do_execveat_common",
                    "do_syscall_64",
                ],
                "execve",
            ),
            (
                &[
                    "vm_munmap",
                    "do_something_new",
                    "x64_sys_call",
                    "do_syscall_64",
                ],
                "do_something_new",
            ),
        ] {
            assert_eq!(served_by(symbols).as_deref(), Some(call), "{symbols:?}");
        }
        // A page fault is no call.
        assert_eq!(served_by(&["handle_mm_fault", "exc_page_fault"]), None);
    }

    #[test]
    fn migration_that_was_asked_for_is_a_call() {
        let asked = [
            frame(true, "migrate_pages", "[kernel]"),
            frame(true, "__x64_sys_move_pages", "[kernel]"),
        ];
        assert_eq!(tell(&asked).cause, None);
        assert_eq!(tell(&asked[..1]).cause, Some("migration"));
    }
}
