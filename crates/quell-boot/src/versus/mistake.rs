//! Mistakes of the person who asks for a comparison, as distinct from what goes wrong in it.

use std::path::PathBuf;

/// Something asked for does not exist.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mistake {
    /// No workload has that name.
    #[error("no workload `{name}`; there are {}", known.join(", "))]
    Workload {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// None of the workloads has rows on these numbers of CPUs.
    #[error("nothing to compare: {}", without.join("; "))]
    NoRows {
        /// Why not, for each.
        without: Vec<String>,
    },
    /// No kernel was named and none was fetched.
    #[error(
        "no Linux kernel to compare with: name an image with --kernel, or let --fetch get Debian's \
         (needs apt-get and 35 MB)"
    )]
    NoKernel,
    /// The directory that was named for modules has none.
    #[error("{} holds no modules: name the directory that has `kernel` in it", directory.display())]
    NoModules {
        /// What was named.
        directory: PathBuf,
    },
}
