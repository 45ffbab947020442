//! Maps a Linux kernel to the mechanisms that it has, as a policy.
//!
//! We consider only the release and the architecture; a distribution may have backported a change. We know these:
//!
//! | mechanism | Linux |
//! | --- | --- |
//! | S0 batched reclaim | x86 since 4.3, for clean pages: a dirty page is flushed by itself before it is written out; arm64 since 6.5 (4.19 in stable trees not counted) |
//! | S1 extents | 7.0 (merged in January 2026) |
//! | S2 tags | x86 since 4.14 where the CPU has PCIDs; arm64 always |
//! | S3 lazy unmap | never merged |
//! | S4 concurrent flush | x86 since 5.13; early acknowledgement was not merged |

use crate::processor::Processor;
use quell::{Mechanism, Policy};
use quell_conformance::{PolicyText, parse_policy};

/// A kernel as the model sees it.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its release.
    pub release: String,
    /// Its policy except for dirty page-out.
    pub policy: Policy,
    /// Its policy for paging out dirty pages.
    pub dirty: Policy,
}

/// The error for an architecture whose Linux is not in the table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "unknown which mechanisms Linux has on {0}; name those of this kernel with --kernel POLICY"
)]
pub struct UnknownKernel(String);

/// The parts of S4 that no kernel has merged.
const NOT_MERGED: &str = ",asynchronous=no,inline=no";

/// Parses the major and minor number of a release such as `6.18.44-custom`. Returns zeros if it isn't a release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

impl Kernel {
    /// Returns the Linux of that release. `tags` is set if the CPU has PCIDs or ASIDs.
    ///
    /// # Errors
    /// If the table above doesn't have the architecture.
    pub fn linux(release: &str, architecture: &str, tags: bool) -> Result<Kernel, UnknownKernel> {
        let version = version(release);
        let arm = match architecture {
            "aarch64" => true,
            "x86_64" => false,
            _ => return Err(UnknownKernel(architecture.into())),
        };
        let mut terms = Vec::new();
        let (batch_since, tags_since) = if arm { ((6, 5), (0, 0)) } else { ((4, 3), (4, 14)) };
        let batch = version >= batch_since;
        if version >= (7, 0) {
            terms.push("S1");
        }
        if tags && version >= tags_since {
            terms.push("S2");
        }
        if !arm && version >= (5, 13) {
            terms.push("S4");
        }
        let written = |batch: bool| {
            let mut all = Vec::from(if batch { &["S0"][..] } else { &[] });
            all.extend(&terms);
            let details = if all.contains(&"S4") { NOT_MERGED } else { "" };
            let terms = if all.is_empty() { "baseline".into() } else { all.join("+") };
            let text = format!("{terms}{details}");
            parse_policy(&text).expect("made of the terms that policies are made of")
        };
        Ok(Kernel { release: release.into(), policy: written(batch), dirty: written(batch && arm) })
    }

    /// Returns a kernel that follows the policy everywhere.
    pub fn of_policy(policy: Policy) -> Kernel {
        Kernel { release: format!("policy {}", PolicyText(policy)), dirty: policy, policy }
    }

    /// Returns the kernel that is running here.
    ///
    /// # Errors
    /// If the table doesn't have Linux on this architecture.
    pub fn running() -> Result<Kernel, UnknownKernel> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let arm = std::env::consts::ARCH == "aarch64";
        let tags = arm || Processor::of_this_host().has("pcid");
        Kernel::linux(release.trim(), std::env::consts::ARCH, tags)
    }
}

/// Returns the policies without and with the whole mechanism, and whether the kernel has all of it.
pub(crate) fn pair(policy: Policy, mechanism: Mechanism) -> (Policy, Policy, bool) {
    let with = policy.with(mechanism);
    if with == policy { (policy.without(mechanism), policy, true) } else { (policy, with, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_what_was_merged_by_then() {
        let text = |release, arch, tags| {
            let kernel = Kernel::linux(release, arch, tags).unwrap();
            PolicyText(kernel.policy).to_string()
        };
        assert_eq!(text("6.18.44-x", "x86_64", true), "S0+S2+S4,asynchronous=no,inline=no");
        assert_eq!(text("7.0.1", "x86_64", false), "S0+S1+S4,asynchronous=no,inline=no");
        assert_eq!(text("4.2.0", "x86_64", true), "baseline");
        assert_eq!(text("6.1.0", "aarch64", true), "S2");
        assert_eq!(text("6.6.0", "aarch64", true), "S0+S2");
    }

    #[test]
    fn dirty_pages_are_flushed_one_by_one_on_x86() {
        let dirty = |arch| Kernel::linux("6.18.0", arch, true).unwrap().dirty;
        assert!(!dirty("x86_64").batch);
        assert!(dirty("aarch64").batch);
    }

    #[test]
    fn an_architecture_that_is_not_known_does_not_become_another() {
        let error = Kernel::linux("6.18.0", "riscv64", true).unwrap_err();
        assert!(error.to_string().contains("riscv64"));
    }
}
