//! The documents of `docs/`, which are one book.
//!
//! `cargo test -p quell-book` compiles and runs the `rust` blocks of its chapters, checks every link and every
//! name of the source that a document mentions, and compares its lists with the code. `cargo xtask ci book`
//! writes the pages, to `target/book`.
//!
//! A chapter whose code is part of a crate includes it from there (`{{#include …}}`), in a block that is
//! marked `ignore`: it is compiled where it stands.

/// The chapters that have code; a test holds this list against the folder.
macro_rules! chapters {
    ($($name:ident: $path:literal,)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../", $path))]
            mod $name {}
        )*
    };
}

chapters! {
    architecture: "guide/architecture.md",
    broadcast: "guide/broadcast.md",
    machine_file: "guide/machine-file.md",
    experiment: "guide/experiment.md",
    mutant: "guide/mutant.md",
    violation: "guide/violation.md",
}
