//! The README's example compiles: its block is the body of a function here, word for word.

use crate::read;
use quell::{AddressSpace, Engine, Frame, Hardware, Page, PageRange, Purpose};

/// A page table behind a lock, as far as the example needs it.
trait Tables {
    fn lock(&self) -> impl Table;
}

/// The table, locked.
trait Table {
    fn clear(&self, page: Page) -> Frame;
}

/// Where frames go.
trait Allocator {
    fn free(&self, frame: Frame);
}

#[expect(dead_code, reason = "it is there to be compiled")]
fn unmap<H: Hardware>(
    engine: &Engine<'_, H>,
    space: AddressSpace<H>,
    (tables, allocator, page): (impl Tables, impl Allocator, Page),
) {
    // README
    let mut batch = engine.batch(Purpose::Call);
    {
        let table = tables.lock();
        let frame = table.clear(page); // write the entry first,
        batch.unmapped(&space, PageRange::base(page, 1), frame); // then report it, under the lock
    }
    for frame in batch.finish() {
        // flushed: no CPU can touch it any more
        allocator.free(frame);
    }
    // README
}

/// Code without its layout and comments.
fn words(code: &str) -> Vec<String> {
    let lines = code.lines().filter_map(|line| line.split("//").next());
    lines
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_readme_s_code_is_compiled() {
    let readme = read("README.md");
    let shown = readme.split("```rust\n").nth(1).expect("a block of Rust");
    let shown = shown.split("```").next().unwrap_or_default();
    let compiled = include_str!("readme.rs").split("// README\n").nth(1);
    assert_eq!(words(shown), words(compiled.expect("the function")));
    assert!(words(shown).len() > 10);
}
