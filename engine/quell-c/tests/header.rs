//! Checks that `include/quell.h` has every function, that each documents its context, and that C and C++ compile it. A
//! test of `xtask` compares the header with the documentation in `src/`: that needs a parser of Rust.

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
        for (_, rest) in text.match_indices("fn quell_").map(|(at, _)| text.split_at(at + 3)) {
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

/// Every function documents where it may be called, and whether it may wait: "Context: ...".
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

/// Returns whether it compiles, and the compiler's output. Returns `None` without a compiler.
fn compiled(variable: &str, default: &str, flags: &[&str], file: &str) -> Option<(bool, String)> {
    let mut compiler = compiler(variable, default)?;
    compiler
        .args(flags)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .arg(source("include"))
        .arg(source(file));
    Some(run(&mut compiler))
}

#[test]
fn c_and_cpp_compile_it_with_the_sizes_that_it_says() {
    for flags in [&["-DQUELL_CPUS_8192"][..], &[]] {
        let flags = [&["-std=c11", "-ffreestanding"], flags].concat();
        compiles("CC", "cc", &flags, "tests/c/sizes.c");
    }
    compiles("CXX", "c++", &["-std=c++17"], "tests/c/sizes.cpp");
}

#[test]
fn a_kernels_own_types_need_no_header_of_c() {
    let folder = format!("-I{}", source("tests/c").display());
    let own = [r#"-DQUELL_TYPES_HEADER="own_types.h""#, &folder];
    for more in [&own[..], &[]] {
        let flags = [&["-std=c11", "-ffreestanding", "-nostdinc"], more].concat();
        compiles("CC", "cc", &flags, "tests/c/own_types.c");
    }
    // The kernel's types differ from C's: without the hook its function would conflict with the header's declaration.
    let flags = ["-std=c11", "-ffreestanding", "-include", "stdint.h"];
    let flags = [&flags[..], &own].concat();
    if let Some((ok, output)) = compiled("CC", "cc", &flags, "tests/c/own_types.c") {
        assert!(!ok && output.contains("uint64_t"), "{output}");
    }
}

#[test]
fn a_scope_that_is_passed_for_a_purpose_does_not_compile() {
    for (variable, default, flags) in
        [("CC", "cc", ["-std=c11", "-Wenum-conversion"]), ("CXX", "c++", ["-std=c++17", "-xc++"])]
    {
        let file = "tests/c/exchanged.c";
        compiles(variable, default, &[&flags[..], &["-DRIGHT"]].concat(), file);
        if let Some((ok, output)) = compiled(variable, default, &flags, file) {
            let both = ["enum quell_purpose", "enum quell_scope"];
            let both = both.map(|name| output.replace("enum ", "").contains(&name[5..]));
            assert!(!ok && both == [true; 2], "{output}");
        }
    }
}

/// Doxygen, with only the header as its input, finds each function and its description.
#[test]
fn doxygen_finds_every_function() {
    let Some(mut doxygen) = crate::support::tool("doxygen", "apt install doxygen") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let input = source("include/quell.h");
    let settings = format!(
        "INPUT={}\nGENERATE_HTML=NO\nGENERATE_LATEX=NO\nGENERATE_XML=YES\nWARN_AS_ERROR=YES\n",
        input.display()
    );
    std::fs::write(folder.path().join("Doxyfile"), settings).expect("settings");
    let (ok, output) = run(doxygen.current_dir(folder.path()));
    assert!(ok, "{output}");
    let found = std::fs::read_to_string(folder.path().join("xml/quell_8h.xml")).expect("XML");
    let header = std::fs::read_to_string(input).expect("the header");
    let declares = |line: &&str| line.starts_with(char::is_alphabetic) && line.contains(" quell_");
    let declared = header.lines().filter(declares);
    let declared = declared.filter(|line| line.contains('(') && !line.ends_with('{'));
    assert_eq!(found.matches(r#"<memberdef kind="function""#).count(), declared.count());
}

#[test]
fn enums_that_are_laid_out_otherwise_are_refused() {
    let flags = ["-std=c11", "-ffreestanding", "-fshort-enums"];
    if let Some((ok, output)) = compiled("CC", "cc", &flags, "tests/c/sizes.c") {
        assert!(!ok && output.contains("without -fshort-enums"), "{output}");
    }
}
