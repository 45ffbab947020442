//! The machine under the engine and the manager. It's this kernel's machine, which test builds wrap into one that can
//! make mistakes.

#[cfg(not(feature = "mutants"))]
pub use crate::machine::Kernel as Platform;
#[cfg(feature = "mutants")]
pub use crate::mistaken::FaultyMachine as Platform;

/// The only machine.
#[cfg(not(feature = "mutants"))]
pub const PLATFORM: Platform = crate::machine::Kernel;
/// The only machine.
#[cfg(feature = "mutants")]
pub const PLATFORM: Platform = crate::mistaken::FaultyMachine(crate::machine::Kernel);
