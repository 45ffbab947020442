//! The tests of recordings: one program, because building it is most of what its tests take.

mod advice;
mod answer;
mod browser;
mod file;
mod live;
mod memory;
mod page;
mod recordings;
mod written;
