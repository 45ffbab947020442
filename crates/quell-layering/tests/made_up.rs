//! The checker finds what it is for, in made-up workspaces.

use quell_layering::{crates, length, modules, width};
use std::path::Path;
use tempfile::TempDir;

/// A crate of these files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    folder
}

const MANIFEST: (&str, &str) = ("Cargo.toml", "[package]\nname = \"made-up\"\n");

/// The circles of a crate of these files, each as the names of its files.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tree(&[&[MANIFEST], files].concat());
    let findings = modules::of_crate(folder.path()).expect("Rust");
    let circles = findings.circles();
    let name = |path: &Path| {
        path.file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    let names = circles.iter().map(|circle| {
        let mut files: Vec<_> = circle.iter().map(|import| name(&import.from)).collect();
        files.sort();
        files.dedup();
        files.join(" ")
    });
    names.collect()
}

#[test]
fn a_circle_is_found_however_it_is_tied() {
    let root = ("src/lib.rs", "mod a; mod b; mod c;");
    let (b, c) = (
        ("src/b.rs", "use crate::c::C; pub struct B(C);"),
        ("src/c.rs", "pub struct C;"),
    );
    let straight = ("src/a.rs", "use crate::b::B; pub struct A(B);");
    assert_eq!(circles(&[root, straight, b, c]), [""; 0]);
    for back in [
        "pub struct C; use crate::a::A;",
        "pub struct C; use crate::{a, b::{self as other}};",
        "pub struct C(Box<super::a::A>);",
        "pub struct C; fn f() { println!(\"{}\", crate::a::A::NAME); }",
        "pub struct C; fn f() { use super::a; a::f(); }",
        "pub struct C; mod inner { use super::super::a::A; }",
        "pub struct C; impl Drop for C { fn drop(&mut self) { crate::a::gone(); } }",
    ] {
        let found = circles(&[root, straight, b, ("src/c.rs", back)]);
        assert_eq!(found.len(), 1, "{back}");
        assert!(found[0].ends_with('c'), "{back}: {found:?}");
    }
}

#[test]
fn a_child_and_its_parent_make_a_circle_if_each_uses_the_other() {
    let root = ("src/lib.rs", "mod a;");
    let child = ("src/a/child.rs", "use super::A; pub struct Child(A);");
    let parent = |text| circles(&[root, ("src/a.rs", text), child]);
    assert_eq!(parent("mod child; pub struct A;"), [""; 0]);
    assert_eq!(
        parent("mod child; pub use child::Child; pub struct A;"),
        [""; 0]
    );
    for uses in [
        "mod child; pub struct A; use child::Child;",
        "mod child; pub struct A; fn f() { child::f(); }",
        "mod child; pub use child::Child; pub struct A; fn f(_: &Child) {}",
    ] {
        assert_eq!(parent(uses), ["a child"], "{uses}");
    }
}

#[test]
fn what_is_handed_on_is_followed_to_where_it_is_defined() {
    let files = [
        ("src/lib.rs", "mod a; mod b; pub use a::A; pub use b::*;"),
        ("src/a.rs", "pub struct A;"),
        ("src/b.rs", "use crate::A; pub struct B(A);"),
    ];
    assert_eq!(circles(&files), [""; 0]);
    let mut tied = files;
    tied[1].1 = "pub struct A; use crate::b::B;";
    assert_eq!(circles(&tied), ["a b"]);
}

#[test]
fn tests_may_import_what_they_like() {
    let files = [
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "use crate::b::B; pub struct A(B);"),
        (
            "src/b.rs",
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; } #[cfg(test)] mod more;",
        ),
        ("src/b/more.rs", "use crate::a::A;"),
    ];
    assert_eq!(circles(&files), [""; 0]);
}

#[test]
fn a_file_that_no_module_names_is_a_stray() {
    let files = [
        MANIFEST,
        ("src/lib.rs", "mod a;"),
        ("src/a.rs", ""),
        ("src/b.rs", ""),
    ];
    let folder = tree(&files);
    let findings = modules::of_crate(folder.path()).expect("Rust");
    assert_eq!(findings.strays, [folder.path().join("src/b.rs")]);
}

#[test]
fn a_file_of_tests_that_no_program_includes_is_a_stray() {
    let tests = [
        ("src/lib.rs", ""),
        ("tests/all.rs", "mod a;"),
        ("tests/a.rs", ""),
        ("tests/b.rs", ""),
        ("tests/c/main.rs", "mod deeper;"),
        ("tests/c/deeper.rs", ""),
    ];
    let strays = |manifest: &str| {
        let folder = tree(&[&[("Cargo.toml", manifest)], &tests[..]].concat());
        let findings = modules::of_crate(folder.path()).expect("Rust");
        let names = findings.strays.iter().map(|path| {
            let path = path.strip_prefix(folder.path()).expect("inside");
            path.display().to_string()
        });
        names.collect::<Vec<_>>()
    };
    let found = "[package]\nname = \"a\"\n";
    let named = format!("{found}autotests = false\n[[test]]\nname = \"all\"\n");
    let both = format!("{named}[[test]]\nname = \"c\"\n");
    assert_eq!(strays(found), [""; 0]);
    assert_eq!(strays(&both), ["tests/b.rs"]);
    assert_eq!(
        strays(&named),
        ["tests/b.rs", "tests/c/deeper.rs", "tests/c/main.rs"]
    );
}

#[test]
fn crates_are_held_to_their_order() {
    let folder = tree(&[
        ("low/Cargo.toml", "[package]\nname = \"low\"\n"),
        (
            "high/Cargo.toml",
            "[package]\nname = \"high\"\n[dependencies]\nlow = { path = \"../low\" }\nserde = \"1\"\n",
        ),
        (
            "odd/Cargo.toml",
            "[package]\nname = \"odd\"\n[target.'cfg(unix)'.dependencies]\nhigh.workspace = true\n",
        ),
    ]);
    let packages = crates::packages(&[folder.path()]).expect("manifests");
    let disorder = |order: &str| {
        let document = format!("# Title\n\n```\ncrates/\n{order}others/  something\n```\n");
        crates::disorder(&packages, &crates::order(&document))
    };
    assert_eq!(disorder("  low/   a\n  high/  b\n  odd/   c\n"), [""; 0]);
    assert_eq!(
        disorder("  low/   a\n  odd/   c\n  high/  b\n  gone/  d\n"),
        [
            "gone stands in the order and is no crate",
            "odd uses high, which comes after it"
        ]
    );
    assert_eq!(
        disorder("  high/  b\n  odd/   c\n"),
        ["low does not stand in the order"]
    );
}

#[test]
fn a_long_file_needs_its_reason_in_the_first_paragraph_of_its_essay() {
    let long = |head: &str| format!("{head}\n{}", "fn f() {}\n".repeat(length::MOST));
    let reason = "//! One table, long because\n//! it has a row for each.";
    let folder = tree(&[
        ("with.rs", &long(reason)),
        (
            "essay.rs",
            &long("//! A module.\n//!\n//! It does much. It is long because\n//! of the weather."),
        ),
        ("without.rs", &long("//! A module.")),
        (
            "late.rs",
            &long(
                "//! A module.\n//!\n//! It does much.\n//!\n//! It is long because of the weather.",
            ),
        ),
        ("short.rs", "fn f() {}\n"),
        ("target/built.rs", &long("")),
    ]);
    let found = length::unexplained(folder.path()).expect("files");
    let names: Vec<_> = found
        .iter()
        .map(|(path, _)| path.file_name().unwrap())
        .collect();
    assert_eq!(names, ["late.rs", "without.rs"]);
}

#[test]
fn long_files_in_other_languages_need_the_same_reason() {
    let long = |head: &str| format!("{head}\n{}", "x();\n".repeat(length::MOST));
    let folder = tree(&[
        (
            "line.c",
            &long("// SPDX-License-Identifier: MIT\n// One list, long because\n// it is one."),
        ),
        (
            "block.h",
            &long("/*\n * One list, long because\n * it is one.\n *\n * More.\n */"),
        ),
        (
            "quoted.py",
            &long("\"\"\"One list, long because\nit is one.\n\nMore.\n\"\"\""),
        ),
        (
            "script",
            &long("#!/bin/sh\n# One list, long because\n# it is one."),
        ),
        (
            "late.c",
            &long("/*\n * A list.\n *\n * Of names.\n *\n * Long because it is one.\n */"),
        ),
        (
            "late.py",
            &long("\"\"\"A list.\n\nOf names.\n\nIt is long because it is one.\n\"\"\""),
        ),
        ("closed.c", &long("/*\n * A list.\n */\nlong because")),
        ("closed.py", &long("\"\"\"A list.\"\"\"\nlong because")),
        ("code.s", &long("x() // long because")),
        ("bare", &long("#!/bin/bash\nlong because")),
        ("data.txt", &long("no source")),
        ("text", &long("no script")),
    ]);
    let found = length::unexplained(folder.path()).expect("files");
    let mut names: Vec<_> = found
        .iter()
        .map(|(path, _)| path.file_name().unwrap().to_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "bare",
            "closed.c",
            "closed.py",
            "code.s",
            "late.c",
            "late.py"
        ]
    );
}

#[test]
fn wide_prose_is_found_in_documents_and_comments() {
    let words = "word ".repeat(30);
    let link = format!("[a](https://example.org/{})", "x".repeat(130));
    let text = "x".repeat(140);
    let folder = tree(&[
        ("a.md", &format!("short\n{words}\n")),
        (
            "b.md",
            &format!("| {words}|\n```\n{words}\n```\n* {link}\n\n    {words}\n"),
        ),
        (
            "c.md",
            &format!("* {words}\n\n* see {link}\n```\n```\n{words}\n"),
        ),
        (
            "a.rs",
            &format!("//! {words}\nfn f() {{}}\n    /// {words}\n"),
        ),
        (
            "b.rs",
            &format!(
                "/// | {words} |\n/// ```\n/// {words}\n/// ```\nconst A: &str = \"{words}\";\n// {text}\n"
            ),
        ),
        ("c.c", &format!("/*\n * {words}\n */\nint *p; {words}\n")),
        ("d.toml", &format!("# {words}\na = \"{words}\"\n")),
        ("e.txt", &words),
        ("target/f.md", &words),
    ]);
    let found = width::too_wide(folder.path()).expect("files");
    let found: Vec<_> = found
        .iter()
        .map(|wide| {
            let name = wide.path.file_name().expect("a name").to_string_lossy();
            format!("{name}:{}", wide.line)
        })
        .collect();
    let expected = [
        "a.md:2", "a.rs:1", "a.rs:3", "c.c:2", "c.md:1", "c.md:3", "c.md:6", "d.toml:1",
    ];
    assert_eq!(found, expected);
}
