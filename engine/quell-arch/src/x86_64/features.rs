//! Reads an x86-64 processor's features from CPUID.
//!
//! Leaf and bit numbers are those of
//! [Intel's manual](https://www.intel.com/content/www/us/en/developer/articles/technical/intel-sdm.html), volume 2,
//! CPUID, and of AMD's manual, volume 3, appendix E.

/// The features that matter for TLBs and for zeroing memory.
///
/// # Examples
///
/// ```
/// use quell_arch::x86_64::features::Features;
/// // On the machine itself: `Features::detect()`.
/// let features = Features::decode(|leaf, _| match leaf {
///     0 => [1, 0, 0, 0],
///     1 => [0, 0, 1 << 17, 1 << 13],
///     _ => [0; 4],
/// });
/// assert!(features.pcid && features.global_pages);
/// assert!(!features.invpcid && !features.invlpgb);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Process-context identifiers: TLB entries carry a 12-bit tag.
    pub pcid: bool,
    /// The INVPCID instruction.
    pub invpcid: bool,
    /// Broadcast invalidation with INVLPGB and TLBSYNC.
    pub invlpgb: bool,
    /// The number of pages that one INVLPGB may cover; 0 if the processor lacks the instruction.
    pub invlpgb_pages: u32,
    /// 1 GB pages.
    pub huge_pages: bool,
    /// Global translations.
    pub global_pages: bool,
    /// No-execute permission.
    pub no_execute: bool,
    /// Fast `rep stosb` for long runs.
    pub erms: bool,
    /// Fast `rep movsb` for short runs.
    pub fsrm: bool,
    /// The CLZERO instruction.
    pub clzero: bool,
    /// The local APIC supports x2APIC mode.
    pub x2apic: bool,
}

impl Features {
    /// Decodes the features from CPUID.
    ///
    /// `cpuid` takes a leaf and a subleaf, and returns `[eax, ebx, ecx, edx]`.
    pub fn decode(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Self {
        const ZERO: [u32; 4] = [0; 4];
        let basic = cpuid(0, 0)[0];
        let extended = cpuid(0x8000_0000, 0)[0];
        let leaf = |number: u32| {
            let last = if number >= 0x8000_0000 { extended } else { basic };
            if number <= last { cpuid(number, 0) } else { ZERO }
        };
        let bit = |register: u32, bit: u32| register >> bit & 1 != 0;
        let [_, _, ecx1, edx1] = leaf(1);
        let [_, ebx7, _, edx7] = leaf(7);
        let edx_ext = leaf(0x8000_0001)[3];
        let [_, ebx8, _, edx8] = leaf(0x8000_0008);
        let invlpgb = bit(ebx8, 3);
        Features {
            pcid: bit(ecx1, 17),
            x2apic: bit(ecx1, 21),
            global_pages: bit(edx1, 13),
            erms: bit(ebx7, 9),
            invpcid: bit(ebx7, 10),
            fsrm: bit(edx7, 4),
            no_execute: bit(edx_ext, 20),
            huge_pages: bit(edx_ext, 26),
            clzero: bit(ebx8, 0),
            invlpgb,
            // The field counts the pages after the first.
            invlpgb_pages: if invlpgb { (edx8 & 0xffff) + 1 } else { 0 },
        }
    }

    /// Detects the features of this processor.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Self {
        Self::decode(cpuid)
    }

    /// Lists each feature's name and whether the processor has it.
    pub fn list(&self) -> [(&'static str, bool); 10] {
        [
            ("pcid", self.pcid),
            ("invpcid", self.invpcid),
            ("invlpgb", self.invlpgb),
            ("1gb_pages", self.huge_pages),
            ("global_pages", self.global_pages),
            ("no_execute", self.no_execute),
            ("erms", self.erms),
            ("fsrm", self.fsrm),
            ("clzero", self.clzero),
            ("x2apic", self.x2apic),
        ]
    }
}

/// Executes CPUID and returns `[eax, ebx, ecx, edx]`.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    // SAFETY: every x86-64 processor has the instruction, in every mode, and it only reads. (Newer compilers consider
    // the `unsafe` block superfluous, so we allow that.)
    #[allow(unused_unsafe)]
    let r = unsafe { core::arch::x86_64::__cpuid_count(leaf, subleaf) };
    [r.eax, r.ebx, r.ecx, r.edx]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_its_own_bit() {
        let one = |leaf: u32, register: usize, bit: u32| {
            Features::decode(move |asked, _| match asked {
                0 => [7, 0, 0, 0],
                0x8000_0000 => [0x8000_0008, 0, 0, 0],
                _ if asked == leaf => {
                    let mut registers = [0; 4];
                    registers[register] = 1 << bit;
                    registers
                }
                _ => [0; 4],
            })
        };
        let bits = [
            ("pcid", 1, 2, 17),
            ("invpcid", 7, 1, 10),
            ("invlpgb", 0x8000_0008, 1, 3),
            ("1gb_pages", 0x8000_0001, 3, 26),
            ("global_pages", 1, 3, 13),
            ("no_execute", 0x8000_0001, 3, 20),
            ("erms", 7, 1, 9),
            ("fsrm", 7, 3, 4),
            ("clzero", 0x8000_0008, 1, 0),
            ("x2apic", 1, 2, 21),
        ];
        for (name, leaf, register, bit) in bits {
            for (listed, there) in one(leaf, register, bit).list() {
                assert_eq!(there, listed == name, "bit of {name} decoded as {listed}");
            }
        }
    }

    #[test]
    fn leaves_beyond_the_last_are_not_read() {
        // For an unknown leaf, Intel processors return the data of the last one.
        let features = Features::decode(|leaf, _| match leaf {
            0 => [1, 0, 0, 0],
            0x8000_0000 => [0x8000_0001, 0, 0, 0],
            1 | 0x8000_0001 => [0; 4],
            _ => [!0; 4],
        });
        assert_eq!(features, Features::default());
    }

    #[test]
    fn invlpgb_counts_the_first_page_too() {
        let features = Features::decode(|leaf, _| match leaf {
            0x8000_0000 => [0x8000_0008, 0, 0, 0],
            0x8000_0008 => [0, 1 << 3, 0, 7],
            _ => [0; 4],
        });
        assert_eq!(features.invlpgb_pages, 8);
    }
}
