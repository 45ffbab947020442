//! The tests of the C interface, in one program. The conformance test is a program of its own (`conformance/`), because
//! it defines the functions of a kernel.

mod boot;
mod cost;
mod freestanding;
mod header;
mod install;
mod programs;
mod size;
mod support;
