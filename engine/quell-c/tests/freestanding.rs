//! Checks that the library for kernels refers to no function outside except those that the header leaves to the
//! embedder.

use crate::support::{kernel_library, objects, source};
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;

/// Functions that every compiler assumes and each kernel has.
const MEMORY: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];

/// Returns the functions that the header leaves to the embedder, except those of libraries with debug assertions.
fn supplied() -> BTreeSet<String> {
    let header = std::fs::read_to_string(source("include/quell.h")).expect("the header");
    let mut names = BTreeSet::new();
    let mut debug = false;
    for line in header.lines() {
        match line {
            "#if defined(QUELL_DEBUG_ASSERTIONS)" => debug = true,
            "#endif" => debug = false,
            _ => {}
        }
        let name = line.split('(').next().unwrap_or_default();
        let name = name.rsplit([' ', '*']).next().unwrap_or_default();
        let theirs = name.starts_with("quell_hw_") || name == "quell_panic";
        if theirs && line.starts_with(char::is_alphabetic) && line.contains('(') && !debug {
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn what_is_undefined_is_what_the_header_leaves_to_the_embedder() {
    let Some(library) = kernel_library() else {
        return;
    };
    let data = std::fs::read(library).expect("a library");
    let (mut defined, mut undefined) = (BTreeSet::new(), BTreeSet::new());
    for (_, file) in objects(&data) {
        for symbol in file.symbols().filter(|symbol| symbol.is_global()) {
            let name = symbol.name().expect("a name").to_owned();
            if symbol.is_undefined() {
                undefined.insert(name);
            } else {
                defined.insert(name);
            }
        }
    }
    let mut wanted: BTreeSet<String> = undefined.difference(&defined).cloned().collect();
    for name in MEMORY {
        wanted.remove(name);
    }
    assert_eq!(wanted, supplied());
    // The library also defines functions that the header declares.
    for name in
        ["quell_engine_new", "quell_batch_finish", "quell_flush_before_reuse", "quell_stats"]
    {
        assert!(defined.contains(name), "{name}");
    }
}
