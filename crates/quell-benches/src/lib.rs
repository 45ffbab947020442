//! Benchmarks that need a library to make sense of their samples. This library is empty; `cargo bench -p
//! quell-benches` runs them. They are a crate of their own so that `cargo test` does not build
//! that library.
