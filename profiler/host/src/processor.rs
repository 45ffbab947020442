//! What the kernel tells about the processor, of the first one for all.

use procfs_core::{CpuInfo, FromRead};

/// The processor; what the kernel does not tell is `None`.
#[derive(Clone, Debug, Default)]
pub struct Processor {
    /// What it is called.
    pub model: Option<String>,
    /// Its maker, as CPUID has it.
    pub vendor: Option<String>,
    /// What it has. Told on x86 alone.
    pub flags: Option<Vec<String>>,
    /// Its clock now.
    pub megahertz: Option<f64>,
}

impl Processor {
    /// The processor of this host.
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

    /// Whether the kernel says that it has this.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().flatten().any(|other| other == flag)
    }
}
