//! The command `quell`.
fn main() {}
