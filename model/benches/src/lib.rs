//! Benchmarks: `cargo bench -p quell-benches`. This library is empty. They are a crate of their own so that
//! `cargo test` builds neither the library that makes sense of their samples nor, for the engine's tests, the threads
//! that it is measured on.
