//! The command's tests in one program, so that tests that mostly wait run side by side. Tests that boot Linux are
//! separate (`versus.rs`) and run together with the other tests that do.

mod agreement;
#[path = "boot/main.rs"]
mod boot;
mod cli;
mod command;
mod documents;
mod figures;
mod hunt;
#[path = "inputs/main.rs"]
mod inputs;
mod measure_host;
mod predict;
mod record_live;
mod record_programs;
mod recorded;
mod report;
mod sweep;
#[cfg(target_os = "linux")]
mod threads;
mod worlds;
