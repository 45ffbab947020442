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

#[test]
fn the_example_gives_a_frame_a_new_owner() {
    with_libraries(EXAMPLE, &[], |_, command| {
        let (ok, output) = run(command);
        assert!(
            ok && output.contains("has a new owner") && output.contains("shootdowns 1"),
            "{output}"
        );
    });
}

#[test]
fn the_example_fails_without_invalidations() {
    with_libraries(EXAMPLE, &["-DWITHOUT_INVALIDATE"], |_, command| {
        let (ok, output) = run(command);
        assert!(!ok && output.contains("has used a frame that has a new owner"), "{output}");
    });
}

/// Checks that a program finds every answer of each library right.
fn answers_rightly(file: &str) {
    with_libraries(file, &[], |_, command| assert_right(command));
}

fn assert_right(command: &mut Command) {
    let (ok, output) = run(command);
    assert!(ok && output.contains("answers were right"), "{output}");
}

#[test]
fn misuse_is_refused() {
    answers_rightly("tests/c/misuse.c");
}

#[test]
fn pages_that_follow_reach_the_machine_as_one_range() {
    answers_rightly("tests/c/extend.c");
}

#[test]
fn inline_functions_do_what_the_librarys_do() {
    answers_rightly("tests/c/agree.c");
}

#[test]
fn started_flushes_call_back_once() {
    answers_rightly("tests/c/callbacks.c");
}

#[test]
fn a_batch_that_was_left_is_noticed_by_a_debug_library() {
    with_libraries("tests/c/left.c", &[], |kernel, command| {
        let (ok, output) = run(command);
        if kernel {
            return assert!(ok && output.contains("nothing was noticed"), "{output}");
        }
        let space = output.split("space at ").nth(1).expect("its address");
        let space = space.lines().next().expect("a line");
        let says = format!("was left with changes of the space at {space}");
        assert!(!ok && output.contains(&says), "{output}");
    });
}

#[test]
fn the_kernels_own_mappings_reach_the_machine() {
    answers_rightly("tests/c/kernel.c");
}

#[test]
fn what_c_says_reaches_the_engine_as_it_was_said() {
    answers_rightly("tests/c/passed_on.c");
}

#[test]
fn changes_of_entries_need_what_the_rules_say() {
    answers_rightly("tests/c/change.c");
}

/// A library for 8192 CPUs and the header for 8192 agree on sets and sizes, and CPU 8191 is interrupted. With the
/// header for 1024 CPUs, the library refuses to make an engine.
#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn eight_thousand_cpus_are_told_apart() {
    let Some(library) = kernel_library_with("batch,extents,tags,lazy,remote,secondary,cpus-8192")
    else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    for flags in [&["-DQUELL_CPUS_8192"][..], &[]] {
        let file = "tests/c/many.c";
        let Some(mut command) = program(directory.path(), file, &library, flags) else {
            return;
        };
        assert_right(&mut command);
    }
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn the_embedder_chooses_how_much_a_batch_and_a_request_hold() {
    let few = [("QUELL_BATCH_SPACES", "1"), ("QUELL_RANGES", "2")];
    let Some(library) = kernel_library_of(&few) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    for flags in [&["-DQUELL_BATCH_SPACES=1"][..], &[]] {
        let file = "tests/c/capacity.c";
        let Some(mut command) = program(directory.path(), file, &library, flags) else {
            return;
        };
        assert_right(&mut command);
    }
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn what_a_library_was_built_without_is_refused_before_any_memory_is_written() {
    for (features, flags) in [("batch,text", &[][..]), ("batch", &["-DWITHOUT_TEXT"])] {
        let Some(library) = kernel_library_with(features) else {
            return;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let file = "tests/c/left_out.c";
        let Some(mut command) = program(directory.path(), file, &library, flags) else {
            return;
        };
        assert_right(&mut command);
    }
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn a_library_that_takes_its_callers_word_refuses_no_misuse() {
    for (unchecked, flags) in [("", &["-DREFUSES"][..]), ("1", &[])] {
        let Some(library) = kernel_library_of(&[("QUELL_UNCHECKED", unchecked)]) else {
            return;
        };
        let directory = tempfile::tempdir().expect("a directory");
        for (file, flags, says) in [
            ("tests/c/unchecked.c", flags, "answers were right"),
            (EXAMPLE, &[], "has a new owner"),
        ] {
            let Some(mut command) = program(directory.path(), file, &library, flags) else {
                return;
            };
            let (ok, output) = run(&mut command);
            assert!(ok && output.contains(says), "{output}");
        }
    }
}

/// A small library takes the engine's general path, with the same results.
#[test]
#[ignore = "builds the library from Rust's source: `cargo xtask ci c`"]
fn a_small_library_does_what_a_fast_one_does() {
    let features = "batch,extents,tags,lazy,remote,broadcast,secondary,kernel,start,text";
    let Some(library) = build_c(&[], &["--small", "--features", features]) else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    for file in ["tests/c/passed_on.c", "tests/c/callbacks.c"] {
        let Some(mut command) = program(directory.path(), file, &library, &[]) else {
            return;
        };
        let (ok, output) = run(&mut command);
        assert!(ok, "{output}");
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
