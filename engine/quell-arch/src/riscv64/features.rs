//! Finds out the features of a RISC-V processor.
//!
//! Supervisor mode has no register that lists them. The kernel reads the extensions from the firmware's device tree.
//! For the width of ASIDs it writes all ones to satp's ASID field and reads the field back.

/// The features that matter for TLBs.
///
/// # Examples
///
/// ```
/// use quell_arch::riscv64::features::Features;
/// // The device tree's ISA string, and `satp.ASID` read back after all ones were written to it.
/// let features = Features::decode("rv64imafdc_svadu_svvptc", 0xffff);
/// assert!(features.svvptc && features.svadu);
/// assert_eq!(features.asid_bits, 16);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// The width of an ASID: 0 to 16 bits.
    pub asid_bits: u8,
    /// Whether the walker soon uses an entry that became present, without a fence (Svvptc).
    pub svvptc: bool,
    /// Whether the walker sets the accessed and dirty bits (Svadu).
    ///
    /// It's `false` if the device tree also names Svade, because such a processor starts with faults for missing bits.
    pub svadu: bool,
}

impl Features {
    /// Decodes the features from the device tree's ISA string and satp's ASID field.
    ///
    /// `isa` is the device tree's property `riscv,isa`, for example `rv64imafdc_zicsr_svadu`. `asid` is the ASID field
    /// read back after all ones were written to it. The width is the number of ones below the lowest zero.
    pub fn decode(isa: &str, asid: u16) -> Self {
        // Extensions of several letters follow the first underscore.
        let has = |name| isa.split('_').skip(1).any(|extension| extension == name);
        Features {
            asid_bits: asid.trailing_ones() as u8,
            svvptc: has("svvptc"),
            svadu: has("svadu") && !has("svade"),
        }
    }

    /// Lists each feature's name and whether the processor has it.
    pub fn list(&self) -> [(&'static str, bool); 3] {
        [("asid", self.asid_bits > 0), ("svvptc", self.svvptc), ("svadu", self.svadu)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_read_from_the_device_tree() {
        // QEMU 7.2's description of its processor `rv64`.
        let emulated = Features::decode("rv64imafdch_zicsr_zifencei_zihintpause_sstc", 0xffff);
        assert_eq!(emulated, Features { asid_bits: 16, ..Features::default() });
        let later = Features::decode("rv64imafdc_svadu_svvptc", 0x1ff);
        assert_eq!(later.list(), [("asid", true), ("svvptc", true), ("svadu", true)]);
        assert_eq!(later.asid_bits, 9);
    }

    #[test]
    fn a_processor_that_starts_with_faults_does_not_set_dirty() {
        assert!(!Features::decode("rv64i_svade_svadu", 0).svadu);
        assert!(!Features::decode("rv64isvadu", 0).svadu);
    }
}
