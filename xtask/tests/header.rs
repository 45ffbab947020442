//! `quell.h` is what the documentation in `engine/quell-c/src` makes of it. The test stands here because the parser that it
//! needs takes longer to build than all of the C interface.
//!
//! `QUELL_WRITE_HEADER=1 cargo test --package xtask --test header` writes the header anew.

/// The files in the order in which the header tells of them.
const FILES: &[&str] = &[
    "status", "place", "values", "machine", "panic", "engine", "cpu", "space", "batch", "flush",
    "change", "lazy", "stats", "zero", "mistakes",
];

/// A file of the crate that has the header.
fn of_c(file: &str) -> String {
    format!("{}/../engine/quell-c/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// The header as it should be.
fn generated() -> String {
    let config = cbindgen::Config::from_file(of_c("cbindgen.toml")).expect("a configuration");
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = FILES.iter().fold(builder, |builder, file| {
        builder.with_src(of_c(&format!("src/{file}.rs")))
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
    let path = of_c("include/quell.h");
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
        "quell.h is stale from line {line}: QUELL_WRITE_HEADER=1 cargo test --package xtask --test header writes it"
    );
}
