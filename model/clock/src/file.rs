//! Reads machine files: every figure of a machine with its unit and source.
//!
//! A machine file is TOML. Each parameter is written
//!
//! ```toml
//! [interrupt]
//! send = { value = 200, unit = "cycles", source = "where the number comes from" }
//! exit = { value = 40, unit = "ns", assumed = true, source = "why this guess" }
//! ```
//!
//! Every number needs a `source`: a publication, a measurement or a derivation. `assumed = true` marks a guess; the
//! sensitivity report varies guesses by half. A file may be based on another, and then contains only the differences:
//! `based_on = "milan"` (a built-in file) or `based_on = "mine.toml"`.
//!
//! The sections `kernel` and `lock` contain costs of the kernel's own code. A kernel file contains only these two
//! sections, and a machine file names its kernel file by `runs = "linux-5.1"`. If the machine file has values in these
//! sections itself, they apply with every kernel.
//!
//! The sections `policy` and `contract` select a protocol that keeps TLBs coherent, and the clauses of the contract that
//! it keeps. A policy file contains only these two sections.
//!
//! Reading never panics. It reports all mistakes at once, each with file, line, key and the expected value.

mod machine;
mod parameter;
mod parse;
mod text;

pub use machine::{KernelFile, MachineFile, PolicyFile, Time, Value};
pub use parameter::{Description, PARAMETERS, Parameter, Unit};
pub use parse::{
    DEFAULT_KERNEL, DEFAULT_POLICY, built_in, built_in_kernel, built_in_policy, not_built_in,
};
pub use quell_workloads::files::{FileError, Mistake};

/// Lists the files of a folder with these names: names and texts.
macro_rules! files {
    ($folder:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name, ".toml")))),*]
    };
}

/// The name and text of every built-in machine file.
pub static BUILT_IN: &[(&str, &str)] = files!("machines":
    "haswell-server" "skylake-laptop" "milan" "snapdragon-888" "kunpeng-920" "xeon-6430-cxl");

/// The name and text of every built-in kernel file.
pub static KERNELS: &[(&str, &str)] = files!("kernels":
    "quell-vm" "linux-4.13" "linux-5.1" "linux-6.5" "linux-6.9" "linux-6.18");

/// The name and text of every built-in policy file.
pub static POLICIES: &[(&str, &str)] = files!("policies":
    "quell" "linux" "linux-4.10" "linux-invlpgb" "linux-tlbi" "linux-local-tlbi" "latr" "rar" "abis" "fpr");
