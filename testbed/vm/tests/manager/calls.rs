//! Each call alone: its effect on programs, and whether every frame is freed.

mod errors;
mod files;
mod large;
mod lazy_unmap;
mod memory;
mod moves;

use crate::common::{Options, Program, be};
use quell::{Frame, Mechanism, PageSize, Policy, Tagging};
use quell_vm::{Backing, Call, Error, Fault, MemoryMap, Node, Protection};

const PAGE: u64 = 4096;
const LARGE: u64 = 512 * PAGE;

fn anonymous(bytes: u64, page: PageSize) -> Call {
    Call::Map {
        address: None,
        bytes,
        protection: Protection::READ_WRITE,
        backing: Backing::Anonymous { page },
    }
}

fn map_file(program: &Program, file: u64, bytes: u64, shared: bool, protection: Protection) -> u64 {
    let file = file as u32;
    let backing = if shared {
        Backing::Shared { file, offset: 0 }
    } else {
        Backing::Private { file, offset: 0 }
    };
    program.call(Call::Map { address: None, bytes, protection, backing }).unwrap()
}

/// Runs a test on every machine and policy, none of which may affect the result.
fn everywhere(frames: u64, test: impl Fn(Program)) {
    let mut policies = vec![Policy::BASELINE, Policy::ALL];
    policies.extend(Mechanism::ALL.map(Policy::only));
    for policy in policies {
        for (tagging, broadcast, hardware_dirty) in [
            (Tagging::None, false, true),
            (Tagging::PerCpu { count: 6 }, false, true),
            (Tagging::Global { bits: 8 }, true, false),
        ] {
            let base = Options::new(frames);
            test(Program::start(Options { policy, tagging, broadcast, hardware_dirty, ..base }));
            be(0);
        }
    }
}
