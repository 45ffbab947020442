//! The manager on a machine of these tests, each CPU a thread: one program, because building it is most of what its
//! tests take.

mod calls;
mod common;
mod random;
mod threads;
mod waits;
