//! The tests of formats and operands. They're one program, because building it takes most of their time.

mod arguments;
#[path = "changes/main.rs"]
mod changes;
mod zero;
