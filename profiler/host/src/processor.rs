//! Reads the kernel's description of the first processor. We assume that the others are alike.

use procfs_core::{CpuInfo, FromRead};

/// The processor. Unknown parts are `None`.
#[derive(Clone, Debug, Default)]
pub struct Processor {
    pub model: Option<String>,
    /// The vendor's name in CPUID.
    pub vendor: Option<String>,
    /// The feature flags, on x86 alone.
    pub flags: Option<Vec<String>>,
    /// The current clock rate.
    pub megahertz: Option<f64>,
}

impl Processor {
    pub fn of_this_host() -> Self {
        let Ok(info) = CpuInfo::from_file("/proc/cpuinfo") else {
            return Self::default();
        };
        let field = |name| info.get_field(0, name).map(str::to_owned);
        let flags = |flags: Vec<&str>| flags.into_iter().map(str::to_owned).collect();
        Self {
            model: field("model name"),
            vendor: field("vendor_id"),
            flags: info.flags(0).map(flags),
            megahertz: field("cpu MHz").and_then(|clock| clock.parse().ok()),
        }
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().flatten().any(|other| other == flag)
    }
}
