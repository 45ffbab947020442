//! The tests of the C interface: one program. What is a kernel of its own stays apart (`conformance/`).

mod boot;
mod cost;
mod freestanding;
mod header;
mod install;
mod programs;
mod size;
mod support;
