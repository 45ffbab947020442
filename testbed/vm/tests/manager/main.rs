//! The manager on a machine of these tests, with a thread for each CPU. All tests are one program, because building it
//! takes most of their time.

mod calls;
mod common;
mod random;
mod threads;
mod waits;
