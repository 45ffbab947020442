//! The memory orderings of the engine's lock-free parts, checked with loom.
//!
//! Everything is in the test `orderings`; this library is empty. It is a crate of its own because loom and
//! what it needs take as long to build as all of the engine's other tests take to run: `cargo test` leaves
//! it out, `cargo xtask ci` does not, and
//!
//! ```text
//! cargo test --release -p quell-orderings
//! ```
//!
//! runs it alone.
