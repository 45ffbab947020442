//! Runs programs in C, linked to the library for the host and, in `cargo xtask ci c`, to the library for kernels. For
//! example: the example program, which must fail if its machine stops invalidating; misuse of the interface; the
//! kernel's own mappings; and panics.

use crate::support::{
    build_c, host_library, kernel_library, kernel_library_of, kernel_library_with, program, run,
};
use std::path::PathBuf;
use std::process::Command;

/// Runs `judge` on the program, linked to each library. Its flag is set for the kernel's library, which we build only
/// where C is required: that takes as long as many tests.
fn with_libraries(file: &str, flags: &[&str], judge: impl Fn(bool, &mut Command)) {
    let required = std::env::var_os("QUELL_REQUIRE_C");
    let libraries: [Option<PathBuf>; 2] =
        [Some(host_library()), required.and_then(|_| kernel_library())];
    for (index, library) in libraries.into_iter().enumerate() {
        let Some(library) = library else { continue };
        let directory = tempfile::tempdir().expect("a directory");
        let Some(mut command) = program(directory.path(), file, &library, flags) else {
            return;
        };
        judge(index == 1, &mut command);
    }
}

const EXAMPLE: &str = "examples/embed.c";

fn assert_has_a_new_owner(command: &mut Command) {
    let (ok, output) = run(command);
    assert!(ok && output.contains("has a new owner"), "{output}");
    assert!(output.contains("shootdowns 1"), "{output}");
}

#[test]
fn the_example_gives_a_frame_a_new_owner() {
    with_libraries(EXAMPLE, &[], |_, command| assert_has_a_new_owner(command));
}

#[test]
fn the_example_fails_without_invalidations() {
    with_libraries(EXAMPLE, &["-DWITHOUT_INVALIDATE"], |_, command| {
        let (ok, output) = run(command);
        assert!(!ok && output.contains("has used a frame that has a new owner"), "{output}");
    });
}

fn assert_right(command: &mut Command) {
    let (ok, output) = run(command);
    assert!(ok && output.contains("answers were right"), "{output}");
}

/// Runs programs that check each answer of the library.
#[test]
fn every_answer_is_right() {
    for file in ["misuse", "extend", "agree", "callbacks", "kernel", "passed_on", "change"] {
        with_libraries(&format!("tests/c/{file}.c"), &[], |_, command| assert_right(command));
    }
}

#[test]
fn a_debug_library_notices_a_batch_that_was_left_and_memory_in_use() {
    with_libraries("tests/c/left.c", &[], |kernel, command| {
        let (ok, output) = run(command);
        assert_eq!(output.contains("the memory is in use"), !kernel, "{output}");
        if kernel {
            return assert!(ok && output.contains("nothing was noticed"), "{output}");
        }
        let space = output.split("space at ").nth(1).expect("its address");
        let space = space.lines().next().expect("a line");
        let says = format!("was left with changes of the space at {space}");
        assert!(!ok && output.contains(&says), "{output}");
    });
}

/// Checks that a program finds every answer of a library for kernels right, compiled with each of these flags.
fn answers_rightly_on(library: Option<PathBuf>, file: &str, each_flag: &[&[&str]]) {
    let Some(library) = library else { return };
    let directory = tempfile::tempdir().expect("a directory");
    for flags in each_flag {
        if let Some(mut command) = program(directory.path(), file, &library, flags) {
            assert_right(&mut command);
        }
    }
}

/// A library for 8192 CPUs and the header for 8192 agree on sets and sizes, and CPU 8191 is interrupted. With the
/// header for 1024 CPUs, the library refuses to make an engine.
#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn eight_thousand_cpus_are_told_apart() {
    let library = kernel_library_with("batch,extents,tags,lazy,remote,secondary,cpus-8192");
    answers_rightly_on(library, "tests/c/many.c", &[&["-DQUELL_CPUS_8192"], &[]]);
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn the_embedder_chooses_how_much_a_batch_and_a_request_hold() {
    let library = kernel_library_of(&[("QUELL_BATCH_SPACES", "1"), ("QUELL_RANGES", "2")]);
    answers_rightly_on(library, "tests/c/capacity.c", &[&["-DQUELL_BATCH_SPACES=1"], &[]]);
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn what_a_library_was_built_without_is_refused_before_any_memory_is_written() {
    for (features, flags) in [("batch,text", &[][..]), ("batch", &["-DWITHOUT_TEXT"])] {
        answers_rightly_on(kernel_library_with(features), "tests/c/left_out.c", &[flags]);
    }
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn a_library_that_takes_its_callers_word_refuses_no_misuse() {
    for (unchecked, flags) in [("", &["-DREFUSES"][..]), ("1", &[])] {
        let library = kernel_library_of(&[("QUELL_UNCHECKED", unchecked)]);
        answers_rightly_on(library.clone(), "tests/c/unchecked.c", &[flags]);
        let Some(library) = library else { return };
        let directory = tempfile::tempdir().expect("a directory");
        if let Some(mut command) = program(directory.path(), EXAMPLE, &library, &[]) {
            assert_has_a_new_owner(&mut command);
        }
    }
}

/// A small library takes the engine's general path, with the same results.
#[test]
#[ignore = "builds the library from Rust's source: `cargo xtask ci c`"]
fn a_small_library_does_what_a_fast_one_does() {
    let features = "batch,extents,tags,lazy,remote,broadcast,secondary,kernel,start,text";
    for file in ["tests/c/passed_on.c", "tests/c/callbacks.c"] {
        answers_rightly_on(build_c(&[], &["--small", "--features", features]), file, &[&[]]);
    }
}

#[test]
fn a_panic_ends_in_the_embedders_function() {
    with_libraries("tests/c/panic.c", &[], |kernel, command| {
        let (ok, output) = run(command);
        assert!(!ok && !output.contains("quell went on"), "{output}");
        assert!(output.contains("the engine was made for fewer CPUs"), "{output}");
        assert_eq!(output.contains("quell_panic: "), kernel, "{output}");
        assert!(output.contains(".rs:"), "{output}");
    });
}
