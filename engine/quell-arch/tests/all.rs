//! The tests of formats and operands: one program, because building it is most of what its tests take.

mod arguments;
#[path = "changes/main.rs"]
mod changes;
mod zero;
