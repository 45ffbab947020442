//! The features of a machine, and the combinations on which an engine runs.
//!
//! The engine reads the features once, from [`Hardware::features`](crate::Hardware::features). It either runs on them
//! or refuses them with an [`EngineError`]. Every combination that we accept keeps the contract under every policy. We
//! test all combinations.
//!
//! | tags | without broadcasts | with broadcasts |
//! | --- | --- | --- |
//! | none | x86 before PCIDs | accepted: a broadcast drops the address on all CPUs, in every space |
//! | per CPU | x86 with PCIDs, RISC-V | refused: a tag has another meaning on each CPU. If the machine's broadcasts name no tag and drop the address under every tag, report [`Tagging::None`] |
//! | system-wide | refused: nothing flushes entries under a tag that the CPU hasn't loaded | Arm; x86 with INVLPGB |

use crate::cpu_set::MAX_CPUS;
use crate::policy::Mechanism;
use core::fmt;

/// Describes how the machine tags TLB entries with their address space.
///
/// # Examples
///
/// ```
/// use quell::{EngineError, Features, Tagging};
/// let arm = Features { tagging: Tagging::Global { bits: 8 }, broadcast: true, full_above: 512 };
/// assert_eq!(arm.check(64), Ok(()));
/// // With ASIDs of 8 bits there are 255 tags, too few for 256 CPUs.
/// assert_eq!(arm.check(256), Err(EngineError::FewTags { tags: 255, cpus: 256 }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tagging {
    /// No tags: a switch of the root drops every entry that isn't global.
    None,
    /// Each CPU assigns its own tags (x86 PCID). Tags `1..=count` may be used.
    PerCpu {
        /// The highest tag that may be used.
        count: u16,
    },
    /// A tag names the same space on every CPU (Arm ASID). Tags `1..1 << bits` may be used.
    Global {
        /// The width of a tag: 8 or 16 on Arm, at most 16.
        bits: u8,
    },
}

/// Describes the machine's TLBs. [`Engine::new`](crate::Engine::new) reads it once.
///
/// # Examples
///
/// ```
/// use quell::{EngineError, Features, Tagging};
/// let x86 = Features { tagging: Tagging::PerCpu { count: 6 }, broadcast: false, full_above: 33 };
/// assert_eq!(x86.check(64), Ok(()));
/// // A broadcast that names a tag reaches another space's entries on other CPUs.
/// let wrong = Features { broadcast: true, ..x86 };
/// assert_eq!(wrong.check(64), Err(EngineError::BroadcastOfPerCpuTags));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Whether TLB entries have tags, and of which kind.
    pub tagging: Tagging,
    /// Set if the machine can invalidate on all CPUs without interrupts
    /// ([`Hardware::broadcasts`](crate::Hardware::broadcasts)).
    pub broadcast: bool,
    /// The maximum number of single invalidations for one request. If it needs more, we flush the whole tag.
    ///
    /// If it's 0, every flush is for the whole tag.
    ///
    /// For example, Linux uses 33 on x86 (`tlb_single_page_flush_ceiling`) and 512 on arm64 (`MAX_DVM_OPS`).
    pub full_above: u64,
}

impl Features {
    /// Checks whether an engine can run on a machine with these features and `cpus` CPUs.
    ///
    /// An engine runs with any combination of tags and broadcasts, except per-CPU tags with broadcasts, and system-wide
    /// tags without broadcasts.
    ///
    /// # Errors
    /// The first reason found.
    pub fn check(&self, cpus: usize) -> Result<(), EngineError> {
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(EngineError::Cpus { cpus });
        }
        match (self.tagging, self.broadcast) {
            (Tagging::None, _) => Ok(()),
            (Tagging::PerCpu { .. }, true) => Err(EngineError::BroadcastOfPerCpuTags),
            (Tagging::PerCpu { count: 0 }, false) => Err(EngineError::NoTags),
            (Tagging::PerCpu { .. }, false) => Ok(()),
            (Tagging::Global { .. }, false) => Err(EngineError::GlobalTagsWithoutBroadcast),
            (Tagging::Global { bits }, true) if bits > 16 => Err(EngineError::TagBits { bits }),
            (Tagging::Global { .. }, true) => {
                let tags = self.highest_global_tag();
                if usize::from(tags) > cpus {
                    Ok(())
                } else {
                    Err(EngineError::FewTags { tags, cpus })
                }
            }
        }
    }

    /// Returns the highest system-wide tag, or 0 if there are none.
    pub(crate) fn highest_global_tag(&self) -> u16 {
        match self.tagging {
            Tagging::Global { bits } => ((1u32 << bits.min(16)) - 1) as u16,
            _ => 0,
        }
    }
}

/// Gives the reason why an engine can't run on a machine.
///
/// # Examples
///
/// ```
/// # use quell::example::OneCpu;
/// use quell::{Engine, EngineError, Policy};
/// let machine = OneCpu::default(); // the kernel's own type, which implements `Hardware`
/// let refused = Engine::new(&machine, &[], &[], Policy::ALL).err();
/// assert_eq!(refused, Some(EngineError::Cpus { cpus: 0 }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// There are no CPUs, or more than [`MAX_CPUS`].
    Cpus {
        /// The number of CPUs.
        cpus: usize,
    },
    /// The features include broadcasts, but [`Hardware::broadcasts`](crate::Hardware::broadcasts) returns `None`.
    NoBroadcasts,
    /// Each CPU assigns its own tags, but their number is 0. Report [`Tagging::None`] instead.
    NoTags,
    /// Broadcasts name a tag, but each CPU assigns its own tags, so a tag names different spaces on different CPUs.
    BroadcastOfPerCpuTags,
    /// Tags are system-wide, but there are no broadcasts. Then nothing can flush entries under a tag that a CPU hasn't
    /// loaded.
    GlobalTagsWithoutBroadcast,
    /// System-wide tags are wider than 16 bits, the most on any architecture.
    TagBits {
        /// The width of a tag in bits.
        bits: u8,
    },
    /// There are too few system-wide tags. The engine needs one for each CPU, and one more.
    FewTags {
        /// The number of tags.
        tags: u16,
        /// The number of CPUs.
        cpus: usize,
    },
    /// The machine returns no state for this CPU ([`Hardware::per_cpu`](crate::Hardware::per_cpu)).
    NoState {
        /// The CPU.
        cpu: usize,
    },
    /// The policy has a mechanism that the machine leaves out ([`Hardware::MECHANISMS`](crate::Hardware::MECHANISMS)).
    LeftOut {
        /// The mechanism.
        mechanism: Mechanism,
    },
    /// The policy isn't the machine's only one ([`Hardware::POLICY_IS_FIXED`](crate::Hardware::POLICY_IS_FIXED)).
    OtherPolicy,
    /// The [`PerCpuData`](crate::PerCpuData) of a CPU has no slot for a tag.
    NoSlots {
        /// The CPU.
        cpu: usize,
    },
    /// Another engine has or had the ledger. Two engines with one ledger would make each other's deferred flushes, but
    /// each only on its own CPUs.
    LedgerInUse,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EngineError::Cpus { cpus } => {
                write!(f, "an engine needs 1 to {MAX_CPUS} CPUs, not {cpus}")
            }
            EngineError::NoBroadcasts => f.write_str(
                "the machine says that it broadcasts invalidations, and provides no way to",
            ),
            EngineError::NoTags => f.write_str(
                "tags of each CPU's own, but none of them: say that there are no tags",
            ),
            EngineError::BroadcastOfPerCpuTags => f.write_str(
                "broadcasts with tags of each CPU's own: a broadcast by tag needs system-wide tags, or none",
            ),
            EngineError::GlobalTagsWithoutBroadcast => f.write_str(
                "system-wide tags without broadcasts: without them each CPU must give tags their meaning",
            ),
            EngineError::TagBits { bits } => {
                write!(f, "system-wide tags of {bits} bits: at most 16 are supported")
            }
            EngineError::FewTags { tags, cpus } => write!(
                f,
                "{tags} system-wide tags for {cpus} CPUs: there must be one for each CPU and one to spare"
            ),
            EngineError::NoState { cpu } => {
                write!(f, "Hardware::per_cpu does not say where the state of CPU {cpu} is")
            }
            EngineError::LeftOut { mechanism } => write!(
                f,
                "the policy asks for {} ({}), which this machine's Hardware::MECHANISMS leaves out",
                mechanism.name(),
                mechanism.title()
            ),
            EngineError::OtherPolicy => f.write_str(
                "the policy is not Hardware::MECHANISMS, the only one of this machine",
            ),
            EngineError::NoSlots { cpu } => write!(
                f,
                "CPU {cpu} was given an empty list of tag slots: at least one is needed"
            ),
            EngineError::LedgerInUse => f.write_str(
                "the ledger belongs to another engine: each needs one of its own",
            ),
        }
    }
}

impl core::error::Error for EngineError {}
