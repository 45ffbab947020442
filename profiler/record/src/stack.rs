//! Finds a flush's call or kernel reason, and its place in the program.
//!
//! The *site* of a flush is the code that a programmer would change. It begins with the innermost user-mode frame. It
//! continues outwards through the C library, allocators and language runtimes, and ends with the first frame of the
//! program itself. Some stacks have no such frame, for example those of a runtime's own thread, or those that frame
//! pointers don't cover. Then the site contains all known frames. We also keep the whole stack, for flame graphs.

use std::sync::Arc;

use crate::perf::Frame;
use rustc_hash::FxHashMap;

/// The largest number of frames in a site.
const DEEPEST: usize = 24;
/// The largest number of stacks to remember.
const KNOWN: usize = 1 << 15;

/// Kernel functions that flush for their own reason, with the text for that reason. The first match counts, so specific
/// functions come before general ones.
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

/// Functions that are a reason of their own only outside of system calls.
const UNASKED: &[(&str, &str)] = &[
    ("migrate_pages_batch", "migration"),
    ("migrate_pages", "migration"),
    ("migrate_pages_sync", "migration"),
];

/// Internal functions that serve a system call. The function named after the call is missing from the stack if it ended
/// with a tail call to one of these.
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

/// The kernel's common entry functions of system calls.
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

/// Beginnings of names of shared libraries, whose frames don't belong to a program.
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

/// Library functions that may be linked into the program. An entry that ends in a letter or digit is a whole name. Any
/// other is the beginning of names.
const RUNTIMES: &[&str] = &[
    "runtime.",
    "runtime/",
    "je_",
    "_rjem_",
    "arena_decay_",
    "extent_dalloc_",
    "extent_purge_",
    "pac_decay_",
    "pac_purge_",
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

/// The information in a stack.
#[derive(Debug, Default)]
pub struct StackInfo {
    /// The kernel's own reason for the flush.
    pub cause: Option<&'static str>,
    /// The system call that the kernel was in.
    pub call: Option<Arc<str>>,
    /// The function called by the entry of system calls. It's a guess, used only if the call is otherwise unknown.
    pub outermost: Option<Arc<str>>,
    /// Whether the kernel was in a page fault.
    pub fault: bool,
    /// The site's frames, innermost first.
    pub site: Arc<[Arc<str>]>,
    /// All frames, outermost first, for a flame graph. Kernel frames end with `_[k]`.
    pub folded: Arc<str>,
}

/// A cache of the information in stacks.
#[derive(Debug, Default)]
pub struct Stacks {
    // We keep the stack alive, so that no other stack can get its address.
    known: FxHashMap<usize, (Arc<[Frame]>, Arc<StackInfo>)>,
}

impl Stacks {
    /// Returns the information in this stack.
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

/// Removes the compiler's suffix from a kernel function: `.isra.0` or `.constprop.1`, for example.
fn plain(symbol: &str) -> &str {
    symbol.split('.').next().unwrap_or(symbol)
}

fn tell(stack: &[Frame]) -> StackInfo {
    let kernel = || {
        let frames = stack.iter().filter(|frame| frame.kernel);
        frames.filter_map(|frame| frame.symbol.as_deref()).map(plain)
    };
    let call = call(kernel);
    let find = |table: &'static [(&str, &'static str)]| {
        let found = table.iter().find(|(name, _)| kernel().any(|symbol| symbol == *name));
        found.map(|(_, cause)| *cause)
    };
    let cause = find(CAUSES).or_else(|| if call.is_none() { find(UNASKED) } else { None });
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
        call,
        outermost: outermost(kernel),
        site: site(stack, cause),
        folded: folded(stack).into(),
    }
}

/// Returns the system call that the kernel serves. Prefers the function named after the call to internal ones.
///
/// Functions are given innermost first.
fn call<'a, Kernel: Iterator<Item = &'a str>>(kernel: impl Fn() -> Kernel) -> Option<Arc<str>> {
    let served = |symbol: &str| {
        let found = SERVES.iter().find(|(name, _)| symbol == *name);
        found.map(|(_, call)| *call)
    };
    let named = kernel().filter(|symbol| served(symbol).is_none());
    // Takes the outermost one, because a call may use another: `execve` maps memory, for example.
    let serving = || kernel().filter_map(served).last().map(Into::into);
    named.filter_map(call_of).next().or_else(serving)
}

/// Returns the function called by the entry of system calls. Functions are given innermost first.
fn outermost<'a, Kernel: Iterator<Item = &'a str>>(
    kernel: impl Fn() -> Kernel,
) -> Option<Arc<str>> {
    let entry = kernel().position(|symbol| ENTRIES.contains(&symbol))?;
    kernel().nth(entry.checked_sub(1)?).map(Into::into)
}

/// Returns the system call of a function like `__x64_sys_madvise`.
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
    let name = prefixes.iter().find_map(|prefix| symbol.strip_prefix(prefix));
    name.map(Into::into)
}

/// Returns the name of a frame: its function, its file and address, or `[unknown]`.
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

/// Returns whether a frame is the program's own, rather than of a library or runtime.
fn is_own(frame: &Frame) -> bool {
    if let Some(symbol) = &frame.symbol {
        let begins = |name: &str| !name.ends_with(|c: char| c.is_ascii_alphanumeric());
        let is = |name: &str| &**symbol == name || begins(name) && symbol.starts_with(name);
        if RUNTIMES.iter().any(|name| is(name)) {
            return false;
        }
    }
    match &frame.module {
        Some(module) => !LIBRARIES.iter().any(|prefix| base(module).starts_with(prefix)),
        None => frame.symbol.is_some(),
    }
}

fn site(stack: &[Frame], cause: Option<&'static str>) -> Arc<[Arc<str>]> {
    let user: Vec<&Frame> = stack.iter().filter(|frame| !frame.kernel).collect();
    if let Some(last) = user.iter().take(DEEPEST).position(|frame| is_own(frame)) {
        return user[..=last].iter().map(|frame| label(frame)).collect();
    }
    if !user.is_empty() {
        // Without frame pointers, frames beyond the innermost one are often garbage.
        let known = user.iter().take(DEEPEST);
        let known = known.take_while(|frame| frame.symbol.is_some() || frame.module.is_some());
        let mut site: Vec<Arc<str>> = known.map(|frame| label(frame)).collect();
        if site.len() < user.len().min(DEEPEST) {
            site.push("[unknown]".into());
        }
        return site.into();
    }
    // In a kernel thread the site is the function that is the cause.
    let cause = CAUSES.iter().chain(UNASKED).filter(|(_, said)| cause == Some(said));
    let named = cause.map(|(name, _)| *name).find(|name| {
        let mut symbols = stack.iter().filter_map(|frame| frame.symbol.as_deref());
        symbols.any(|symbol| plain(symbol) == *name)
    });
    named.into_iter().map(Into::into).collect()
}

fn folded(stack: &[Frame]) -> String {
    let mut out = String::new();
    for frame in stack.iter().rev() {
        if !out.is_empty() {
            out.push(';');
        }
        // Semicolons separate frames, and newlines separate stacks.
        out.extend(label(frame).chars().map(|c| if matches!(c, ';' | '\n') { ',' } else { c }));
        if frame.kernel {
            out.push_str("_[k]");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the information in a stack. Functions of the kernel end with `_[k]`, others with `@` and their file.
    /// Unknown frames are `?`.
    fn told(stack: &str) -> StackInfo {
        let frame = |word: &str| {
            let kernel = word.strip_suffix("_[k]").map(|symbol| (symbol, "[kernel]"));
            let known = kernel.or(word.split_once('@'));
            Frame {
                address: 0x1234,
                kernel: kernel.is_some(),
                symbol: known.map(|(symbol, _)| symbol.into()),
                module: known.map(|(_, module)| module.into()),
            }
        };
        tell(&stack.split(' ').map(frame).collect::<Vec<_>>())
    }

    #[test]
    fn a_site_ends_at_the_programs_own_frame() {
        let madvise = "flush_tlb_mm_range_[k] __x64_sys_madvise_[k] __madvise@/usr/lib/libc.so.6";
        let own = "decommit@/usr/lib/libjemalloc.so.2 handle_request@/opt/server main@/opt/server";
        for (stack, site) in [
            (format!("{madvise} {own}"), "__madvise decommit handle_request"),
            // A runtime that is linked in isn't the program's own. Without its last frame it's a thread of the runtime.
            (
                "runtime.madvise@/opt/go runtime.sysUnused@/opt/go main.work@/opt/go".to_owned(),
                "runtime.madvise runtime.sysUnused main.work",
            ),
            (
                "runtime.madvise@/opt/go runtime.sysUnused@/opt/go".to_owned(),
                "runtime.madvise runtime.sysUnused",
            ),
            // A stack that breaks off.
            ("__madvise@/usr/lib/libc.so.6 ? ?".to_owned(), "__madvise [unknown]"),
            // In a kernel thread, the site is the cause.
            ("balance_pgdat.isra.0_[k] kswapd_[k]".to_owned(), "balance_pgdat"),
        ] {
            assert_eq!(told(&stack).site.join(" "), site, "{stack}");
        }
        let info = told(&format!("{madvise} {own}"));
        assert_eq!((info.call.as_deref(), info.cause), (Some("madvise"), None));
        let folded =
            "main;handle_request;decommit;__madvise;__x64_sys_madvise_[k];flush_tlb_mm_range_[k]";
        assert_eq!(&*info.folded, folded);
    }

    #[test]
    fn the_kernels_own_reasons_come_before_the_call() {
        for (stack, cause) in [
            (
                "do_try_to_free_pages_[k] __x64_sys_read_[k] main@/opt/server",
                Some("reclaim (direct)"),
            ),
            ("reclaim_pages_[k] __x64_sys_madvise_[k]", None),
            // Migration that was asked for is a call.
            ("migrate_pages_[k] __x64_sys_move_pages_[k]", None),
            ("migrate_pages_[k]", Some("migration")),
        ] {
            assert_eq!(told(stack).cause, cause, "{stack}");
        }
    }

    #[test]
    fn a_call_whose_own_function_has_left_the_stack_is_known_by_what_serves_it() {
        for (stack, call) in [
            ("do_mmap_[k] vm_mmap_pgoff_[k] do_syscall_64_[k]", Some("mmap")),
            (
                "vm_mmap_pgoff_[k] ksys_mmap_pgoff_[k] __x64_sys_mmap_[k] do_syscall_64_[k]",
                Some("mmap"),
            ),
            (
                "vm_mmap_pgoff_[k] elf_load_[k] __x64_sys_execve_[k] do_syscall_64_[k]",
                Some("execve"),
            ),
            (
                "vm_mmap_pgoff_[k] elf_load_[k] do_execveat_common_[k] do_syscall_64_[k]",
                Some("execve"),
            ),
            ("vm_munmap_[k] do_new_[k] x64_sys_call_[k] do_syscall_64_[k]", Some("do_new")),
            // A page fault isn't a system call.
            ("handle_mm_fault_[k] exc_page_fault_[k]", None),
        ] {
            let info = told(&format!("flush_tlb_mm_range_[k] {stack} entry_SYSCALL_64_[k]"));
            assert_eq!(info.call.or(info.outermost).as_deref(), call, "{stack}");
        }
    }
}
