//! Measures the text (code) of each mechanism: we build the library for kernels with that mechanism alone, and link
//! everything that C may call and nothing else.
//!
//! ```text
//! cargo test --test c size -- --ignored --nocapture
//! ```
//!
//! prints the table in `docs/guide/adopt.md`. The test compares the sizes with that table. If a size differs by more
//! than a [`SLACK`]th, with another compiler or another engine, review it and update the table.

use crate::support::{build_c, compiler, kernel_library_with, objects, run, source};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use std::path::Path;
use std::process::Command;

/// The row of the small library.
const SMALL: &str = "a small library, for the calls of `tests/c/small.c`";

/// Mechanisms to build with: a name of the table, and the features.
const BUILDS: [(&str, &str); 6] = [
    ("S0 alone", "batch"),
    ("S1 alone", "extents"),
    ("S2 alone", "tags"),
    ("S3 alone", "lazy"),
    ("S4 alone", "remote"),
    ("all", "batch,extents,tags,lazy,remote,broadcast,secondary,kernel,start,text"),
];

/// A size may differ by one part in this many with another compiler.
const SLACK: u64 = 20;

/// Returns the size in the guide for a build.
fn documented(name: &str) -> u64 {
    let guide = std::fs::read_to_string(source("../../docs/guide/adopt.md")).expect("the guide");
    let row = format!("| {name} | ");
    let line = guide.lines().find_map(|line| line.strip_prefix(&row));
    let bytes = line.and_then(|rest| rest.trim_end_matches(" |").parse().ok());
    bytes.unwrap_or_else(|| panic!("docs/guide/adopt.md has no row \"{row}...\""))
}

/// Returns the functions that a library exports to C.
fn functions(archive: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for (_, file) in objects(archive) {
        let exported = file.symbols().filter(|symbol| symbol.is_global() && symbol.is_definition());
        let names_of = exported.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
        names.extend(names_of.filter(|name| name.starts_with("quell_")));
    }
    names
}

/// Returns the bytes of text in a kernel that calls every function of the library.
fn text(library: &Path, folder: &Path) -> u64 {
    let archive = std::fs::read(library).expect("a library");
    let linked = folder.join("linked.o");
    let mut ld = Command::new("ld");
    ld.args(["-r", "--gc-sections", "-o"]).arg(&linked);
    for function in functions(&archive) {
        ld.args(["-u", &function, "-e", &function]);
    }
    let (ok, said) = run(ld.arg(library));
    assert!(ok, "{said}");
    let bytes = std::fs::read(&linked).expect("what was linked");
    let object = object::File::parse(&*bytes).expect("an object");
    let sections = object.sections();
    let code = sections.filter(|section| section.kind() == SectionKind::Text);
    code.map(|section| section.size()).sum()
}

#[test]
#[ignore = "builds the library six times: `cargo xtask ci c`"]
fn a_mechanism_that_is_left_out_takes_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sizes = Vec::new();
    for (name, mechanisms) in BUILDS {
        let Some(library) = kernel_library_with(mechanisms) else {
            return;
        };
        sizes.push((name, text(&library, folder.path())));
    }
    println!("| mechanisms | bytes of text |\n| --- | ---: |");
    for (name, bytes) in &sizes {
        println!("| {name} | {bytes} |");
    }
    let &(_, all) = sizes.last().expect("the last build");
    for (name, bytes) in &sizes[..sizes.len() - 1] {
        assert!(bytes < &all, "{name}: {bytes} bytes, {all} with all");
    }
    for (name, bytes) in &sizes {
        let said = documented(name);
        assert!(
            bytes.abs_diff(said) <= said / SLACK,
            "{name}: {bytes} bytes of text, and docs/guide/adopt.md says {said}: if that is meant, put the table above there"
        );
    }
}

/// Returns the text of a program, as `size` counts it: code and constants.
fn loaded(object: &Path) -> u64 {
    let (ok, output) = run(Command::new("size").arg(object));
    assert!(ok, "{output}");
    let line = output.lines().last().expect("a line for the program");
    let text = line.split_whitespace().next().expect("its first column");
    text.parse().expect("a number")
}

/// A kernel with batches, remote flushes and tags, and without messages, takes no more than the guide documents.
#[test]
#[ignore = "builds the library from Rust's source: `cargo xtask ci c`"]
fn a_small_library_has_no_text_and_no_panics() {
    let Some(library) = build_c(&[], &["--small", "--features", "batch,tags,remote"]) else {
        return;
    };
    let Some(mut compiler) = compiler("CC", "cc") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (object, linked) = (folder.path().join("small.o"), folder.path().join("small"));
    compiler.args(["-std=c11", "-O2", "-ffreestanding", "-Wall", "-Wextra", "-Werror", "-c", "-I"]);
    compiler.arg(source("include")).arg(source("tests/c/small.c"));
    let (ok, output) = run(compiler.arg("-o").arg(&object));
    assert!(ok, "{output}");
    let mut ld = Command::new("ld");
    ld.args(["--gc-sections", "--unresolved-symbols=ignore-all", "-o"]);
    let (ok, output) = run(ld.arg(&linked).arg(&object).arg(&library));
    assert!(ok, "{output}");
    let bytes = loaded(&linked) - loaded(&object);
    println!("| {SMALL} | {bytes} |");
    assert!(bytes <= 16 << 10, "{bytes} bytes are more than 16 KB");
    let (said, names) = (documented(SMALL), names(&linked));
    assert!(
        bytes.abs_diff(said) <= said / SLACK,
        "{bytes} bytes of text and constants, and docs/guide/adopt.md says {said}"
    );
    assert!(names.iter().any(|name| name.contains("quell_batch_finish")));
    for left_out in ["core3fmt", "policy_text", "panicking", "from_utf8"] {
        assert!(!names.iter().any(|name| name.contains(left_out)), "{left_out} is linked");
    }
}

/// Returns the mangled names of a program's symbols.
fn names(program: &Path) -> Vec<String> {
    let bytes = std::fs::read(program).expect("a program");
    let file = object::File::parse(&*bytes).expect("a program");
    let symbols = file.symbols().filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    symbols.collect()
}
