//! The machine under the engine and the manager: this kernel's, in test builds wrapped into one that can make
//! mistakes.

#[cfg(not(feature = "mutants"))]
pub use crate::machine::Kernel as Platform;
#[cfg(feature = "mutants")]
pub use crate::mistaken::FaultyMachine as Platform;

/// The one there is.
#[cfg(not(feature = "mutants"))]
pub const PLATFORM: Platform = crate::machine::Kernel;
/// The one there is.
#[cfg(feature = "mutants")]
pub const PLATFORM: Platform = crate::mistaken::FaultyMachine(crate::machine::Kernel);
