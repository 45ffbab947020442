//! The clock's tests: one program, because building it is most of what its tests take.

mod clock;
mod files;
mod oracle;
mod support;
mod workloads;
