//! `include/quell.h` is what the documentation in `src/` makes of it, and C and C++ compile it.
//!
//! `QUELL_WRITE_HEADER=1 cargo test --test c header` writes it anew.

use crate::support::{compiler, run, source};

/// The files in the order in which the header tells of them.
const FILES: &[&str] = &[
    "status", "place", "values", "machine", "panic", "engine", "cpu", "space", "batch", "change",
    "lazy", "stats", "zero", "mistakes",
];

/// The header as it should be.
fn generated() -> String {
    let config = cbindgen::Config::from_file(source("cbindgen.toml")).expect("a configuration");
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = FILES.iter().fold(builder, |builder, file| {
        builder.with_src(source(&format!("src/{file}.rs")))
    });
    let mut header = Vec::new();
    builder.generate().expect("sources").write(&mut header);
    let header = String::from_utf8(header).expect("text");
    without_safety(&header)
}

/// Without the paragraphs that only Rust's readers need: each `# Safety` says "as the header says" or repeats it.
fn without_safety(header: &str) -> String {
    let mut text = String::new();
    let mut lines = header.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        if line == "//"
            && lines
                .peek()
                .is_some_and(|next| next.starts_with("// # Safety"))
        {
            while lines.next_if(|line| line.starts_with("//")).is_some() {}
            continue;
        }
        text.push_str(line);
        text.push('\n');
    }
    assert!(!text.contains("# Safety"));
    text
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = source("include/quell.h");
    let (now, then) = (
        generated(),
        std::fs::read_to_string(&path).unwrap_or_default(),
    );
    if std::env::var_os("QUELL_WRITE_HEADER").is_some() {
        std::fs::write(&path, now).expect("the header can be written");
        return;
    }
    let same = |(now, then): (&str, &str)| now == then;
    let line = now
        .lines()
        .zip(then.lines())
        .take_while(|&pair| same(pair))
        .count()
        + 1;
    assert!(
        now == then,
        "quell.h is stale from line {line}: QUELL_WRITE_HEADER=1 cargo test --test c header writes it"
    );
}

/// Every file that exports something is in the list above.
#[test]
fn no_function_is_missing_from_the_header() {
    let header = std::fs::read_to_string(source("include/quell.h")).expect("the header");
    let mut functions = 0;
    for file in std::fs::read_dir(source("src")).expect("a folder") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a text");
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
    for file in FILES {
        let text = std::fs::read_to_string(source(&format!("src/{file}.rs"))).expect("a text");
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
    let Some(mut compiler) = compiler(variable, default) else {
        return;
    };
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
    let (ok, output) = run(&mut compiler);
    assert!(ok, "{output}");
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
