//! Boots `examples/boot` on two CPUs in QEMU. No CPU reads a page after its frame has new content, and the conformance
//! suite passes.

use crate::support::{build_c, compiler, run, source, tool};
use std::path::Path;

const FEATURES: &str = "batch,extents,tags,lazy,remote,kernel,start,text,conformance";

/// Builds the kernel, boots it, and returns its exit status and output. Prints a note and returns `None` where a tool
/// is missing.
fn booted(folder: &Path, flags: &[&str]) -> Option<(i32, String)> {
    let library = build_c(&[], &["--debug", "--features", FEATURES])?;
    let mut qemu = tool("qemu-system-x86_64", "apt install qemu-system-x86")?;
    let mut gcc = compiler("CC", "cc")?;
    let kernel = folder.join("kernel");
    gcc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pic"]);
    gcc.args(["-no-pie", "-nostdlib", "-static", "-fno-stack-protector"]);
    gcc.args(["-mgeneral-regs-only", "-mno-red-zone", "-DQUELL_DEBUG_ASSERTIONS"]);
    gcc.arg("-Wl,--gc-sections,--build-id=none,-z,noexecstack,--no-warn-rwx-segments").args(flags);
    gcc.arg("-I").arg(source("include")).arg("-T").arg(source("examples/boot/boot.ld"));
    gcc.arg(source("examples/boot/start.S")).arg(source("examples/boot/boot.c"));
    let (ok, output) = run(gcc.arg(&library).arg("-o").arg(&kernel));
    assert!(ok, "{output}");
    qemu.args(["-cpu", "max", "-smp", "2", "-m", "256", "-accel", "tcg,thread=multi"]);
    qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"]);
    qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel"]).arg(&kernel);
    let output = qemu.output().expect("QEMU runs");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some((output.status.code().expect("QEMU ends by itself"), text))
}

/// Returns the number that follows `words` in a line.
fn number(output: &str, words: &str) -> u64 {
    let rest = output.lines().find_map(|line| line.split_once(words));
    let (_, number) = rest.unwrap_or_else(|| panic!("{words:?} is missing: {output}"));
    number.trim().parse().expect("a number")
}

#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn the_suite_fails_on_a_machine_that_does_not_invalidate() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["-DCONFORMANCE", "-DWITHOUT_INVALIDATE"];
    if let Some((status, output)) = booted(folder.path(), &flags) {
        assert_eq!(status, 3, "{output}");
        assert!(output.contains("FAILED C3 changed_pages"), "{output}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn a_kernel_in_c_reads_no_page_that_is_gone_and_passes_the_suite() {
    let folder = tempfile::tempdir().expect("a folder");
    for (flags, checks) in [(&["-DCONFORMANCE"][..], 14), (&["-DUNIKERNEL"], 0)] {
        let Some((status, output)) = booted(folder.path(), flags) else {
            return;
        };
        assert_eq!(status, 1, "{output}");
        assert_eq!(number(&output, "stale with quell: "), 0, "{output}");
        // The emulator's second CPU may have slept while pages were unmapped, and then nothing is stale. So we boot up
        // to 8 more times on a busy host.
        let mut stale = number(&output, "stale without a flush: ");
        for _ in 0..8 {
            if stale > 0 {
                break;
            }
            let (_, again) = booted(folder.path(), flags).expect("it has booted before");
            assert_eq!(number(&again, "stale with quell: "), 0, "{again}");
            stale = number(&again, "stale without a flush: ");
        }
        assert!(stale > 0, "{output}");
        let kept = output.lines().filter(|line| line.starts_with("kept "));
        assert_eq!(kept.count(), checks, "{output}");
        assert!(!output.contains("FAILED"), "{output}");
    }
}
