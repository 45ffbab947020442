//! Checks that `quell.h` matches the documentation in `engine/quell-c/src`. We put this test here because its parser
//! takes longer to build than the whole C interface.
//!
//! `QUELL_WRITE_HEADER=1 cargo test --package xtask --test header` updates the header.

/// The files in the header's order.
const FILES: &[&str] = &[
    "status",
    "place",
    "values",
    "machine",
    "panic",
    "engine",
    "cpu",
    "space",
    "batch",
    "flush",
    "change",
    "lazy",
    "stats",
    "zero",
    "conformance",
    "mistakes",
];

/// Returns the path of a file in quell-c.
fn of_c(file: &str) -> String {
    format!("{}/../engine/quell-c/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// Generates the header from the sources.
fn generated() -> String {
    let config = cbindgen::Config::from_file(of_c("cbindgen.toml")).expect("a configuration");
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = FILES
        .iter()
        .fold(builder, |builder, file| builder.with_src(of_c(&format!("src/{file}.rs"))));
    let mut header = Vec::new();
    builder.generate().expect("sources").write(&mut header);
    let header = String::from_utf8(header).expect("text");
    let header = without_safety(&header);
    let version: Vec<&str> = env!("CARGO_PKG_VERSION").split('.').collect();
    let header = ["@MAJOR@", "@MINOR@", "@PATCH@"]
        .iter()
        .zip(version)
        .fold(header, |header, (name, number)| header.replace(name, number));
    let (preamble, declarations) =
        header.split_at(header.find(END_OF_PREAMBLE).expect("the last macro of cbindgen.toml"));
    let (declarations, end) =
        declarations.split_at(declarations.rfind("#ifdef __cplusplus").expect("the end"));
    let inline = std::fs::read_to_string(of_c("src/inline.h")).expect("the inline functions");
    format!("{preamble}{}{inline}\n{end}", in_types_of_the_header(declarations))
}

/// The end of cbindgen.toml's preamble.
const END_OF_PREAMBLE: &str = "#define QUELL_ALIGNED(n) __attribute__";

/// cbindgen's types, and their replacements in the header.
const TYPES: [(&str, &str); 7] = [
    ("uint8_t", "quell_u8"),
    ("uint16_t", "quell_u16"),
    ("uint32_t", "quell_u32"),
    ("uint64_t", "quell_u64"),
    ("size_t", "quell_size"),
    ("bool", "quell_bool"),
    ("enum_quell_", "enum quell_"),
];

/// Replaces C's own types outside comments.
fn in_types_of_the_header(declarations: &str) -> String {
    let replaced = |line: &str| {
        let types = TYPES.iter();
        types.fold(line.to_owned(), |line, (from, to)| line.replace(from, to))
    };
    let lines = declarations.lines().map(|line| match line.trim_start() {
        comment if comment.starts_with("//") => line.to_owned(),
        _ => replaced(line),
    });
    lines.map(|line| line + "\n").collect()
}

/// Removes the `# Safety` paragraphs, which are for Rust's readers: each refers to the header or repeats it.
fn without_safety(header: &str) -> String {
    let mut text = String::new();
    let mut lines = header.lines().map(str::trim_end).peekable();
    while let Some(line) = lines.next() {
        if line == "///" && lines.peek().is_some_and(|next| next.starts_with("/// # Safety")) {
            while lines.next_if(|line| line.starts_with("///")).is_some() {}
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
    let path = of_c("include/quell.h");
    let (now, then) = (generated(), std::fs::read_to_string(&path).unwrap_or_default());
    if std::env::var_os("QUELL_WRITE_HEADER").is_some() {
        std::fs::write(&path, now).expect("the header can be written");
        return;
    }
    let same = |(now, then): (&str, &str)| now == then;
    let line = now.lines().zip(then.lines()).take_while(|&pair| same(pair)).count() + 1;
    assert!(
        now == then,
        "quell.h is stale from line {line}: QUELL_WRITE_HEADER=1 cargo test --package xtask --test header writes it"
    );
}
