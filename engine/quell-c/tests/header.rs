//! `include/quell.h` has every function, each says where it may be called, and C and C++ compile it. That it is what
//! the documentation in `src/` makes of it is a test of `xtask`, which needs a parser of Rust.

use crate::support::{compiler, run, source};

/// The texts of the files that may export something.
fn texts() -> impl Iterator<Item = String> {
    let files = std::fs::read_dir(source("src")).expect("a folder");
    files.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("a text"))
}

#[test]
fn no_function_is_missing_from_the_header() {
    let header = std::fs::read_to_string(source("include/quell.h")).expect("the header");
    let mut functions = 0;
    for text in texts() {
        for (_, rest) in text
            .match_indices("fn quell_")
            .map(|(at, _)| text.split_at(at + 3))
        {
            let name = rest.split('(').next().expect("a name");
            assert!(
                header.contains(&format!(" {name}(")) || header.contains(&format!("*{name}(")),
                "{name}"
            );
            functions += 1;
        }
    }
    assert!(functions > 50, "{functions} functions were found");
}

/// Every function says where it may be called, and whether it may wait: "Context: ...".
#[test]
fn every_function_names_its_context() {
    let mut functions = 0;
    for text in texts() {
        let marks = ["\npub unsafe extern \"C\" fn ", "\npub extern \"C\" fn "];
        for (at, mark) in marks.iter().flat_map(|mark| text.match_indices(*mark)) {
            let documentation = text[..at].rsplit("\n\n").next().expect("its lines");
            let name = text[at + mark.len()..].split('(').next();
            assert!(documentation.contains("/// Context: "), "{name:?}");
            functions += 1;
        }
    }
    assert!(functions > 60, "{functions} functions were found");
}

fn compiles(variable: &str, default: &str, flags: &[&str], file: &str) {
    if let Some((ok, output)) = compiled(variable, default, flags, file) {
        assert!(ok, "{output}");
    }
}

/// Whether it compiles, and what the compiler said; `None` if there is none.
fn compiled(variable: &str, default: &str, flags: &[&str], file: &str) -> Option<(bool, String)> {
    let mut compiler = compiler(variable, default)?;
    compiler
        .args(flags)
        .args([
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ])
        .arg(source("include"))
        .arg(source(file));
    Some(run(&mut compiler))
}

#[test]
fn c_compiles_it_freestanding_with_the_sizes_that_it_says() {
    compiles(
        "CC",
        "cc",
        &["-std=c11", "-ffreestanding"],
        "tests/c/sizes.c",
    );
}

#[test]
fn c_compiles_it_for_more_cpus() {
    let flags = ["-std=c11", "-ffreestanding", "-DQUELL_CPUS_8192"];
    compiles("CC", "cc", &flags, "tests/c/sizes.c");
}

#[test]
fn cpp_compiles_it() {
    compiles("CXX", "c++", &["-std=c++17"], "tests/c/sizes.cpp");
}

#[test]
fn enums_that_are_laid_out_otherwise_are_refused() {
    let flags = ["-std=c11", "-ffreestanding", "-fshort-enums"];
    if let Some((ok, output)) = compiled("CC", "cc", &flags, "tests/c/sizes.c") {
        assert!(!ok && output.contains("without -fshort-enums"), "{output}");
    }
}
