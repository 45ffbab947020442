//! Writes the book as HTML to `target/book`. That its links and includes lead somewhere is tested without it.

use anyhow::Context;
use mdbook_driver::MDBook;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let book = MDBook::load(&docs).context("reading docs/book.toml and docs/SUMMARY.md")?;
    book.build().context("writing the book")?;
    let page = book.build_dir_for("html").join("index.html");
    println!(
        "{}",
        page.canonicalize().context("the first page")?.display()
    );
    Ok(())
}
