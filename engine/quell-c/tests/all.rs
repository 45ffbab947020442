//! The tests of the C interface: one program. What is a kernel of its own stays apart (`conformance/`).

mod freestanding;
mod header;
mod programs;
mod size;
mod support;
