//! All tests of recordings in one program. Building a test program takes most of the time.

mod advice;
mod answer;
mod browser;
mod file;
mod live;
mod memory;
mod page;
mod recordings;
mod written;
