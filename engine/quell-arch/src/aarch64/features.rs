//! Reads an AArch64 processor's features from its identification registers.
//!
//! The [Arm ARM](https://developer.arm.com/documentation/ddi0487/latest) describes these registers in "AArch64 system
//! register descriptions".

/// The features that matter for TLBs and for zeroing memory.
///
/// # Examples
///
/// ```
/// use quell_arch::aarch64::features::Features;
/// /// Returns the number of ASIDs.
/// fn tags(features: Features) -> u32 {
///     1 << features.asid_bits
/// }
/// assert_eq!(tags(Features { asid_bits: 8, ..Features::default() }), 256);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// The width of an ASID: 8 or 16 bits.
    pub asid_bits: u8,
    /// Invalidation by range (FEAT_TLBIRANGE).
    pub range: bool,
    /// The operand of a TLBI may contain a level hint (FEAT_TTL).
    pub level_hint: bool,
    /// The walker sets the access flag.
    pub hardware_access: bool,
    /// The walker tracks dirty state.
    pub hardware_dirty: bool,
    /// The width of physical addresses, as TCR_EL1.IPS encodes it.
    pub physical_range: u8,
    /// The number of bytes that one DC ZVA zeroes; 0 if the instruction is forbidden.
    pub zero_block: u32,
}

/// The identification registers that [`Features::decode`] reads.
///
/// # Examples
///
/// ```
/// use quell_arch::aarch64::features::{Features, Registers};
/// // The values of a Cortex-A72.
/// let registers = Registers { mmfr0: 0x1124, dczid: 4, ..Registers::default() };
/// let features = Features::decode(registers);
/// assert_eq!((features.asid_bits, features.zero_block), (16, 64));
/// assert!(!features.range); // an invalidation for each page
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// ID_AA64MMFR0_EL1.
    pub mmfr0: u64,
    /// ID_AA64MMFR1_EL1.
    pub mmfr1: u64,
    /// ID_AA64MMFR2_EL1.
    pub mmfr2: u64,
    /// ID_AA64ISAR0_EL1.
    pub isar0: u64,
    /// DCZID_EL0.
    pub dczid: u64,
}

impl Features {
    /// Decodes the features from identification registers.
    pub const fn decode(registers: Registers) -> Self {
        const fn field(register: u64, low: u32) -> u64 {
            register >> low & 0xf
        }
        let range = field(registers.mmfr0, 0);
        Features {
            asid_bits: if field(registers.mmfr0, 4) == 2 { 16 } else { 8 },
            range: field(registers.isar0, 56) >= 2,
            level_hint: field(registers.mmfr2, 48) >= 1,
            hardware_access: field(registers.mmfr1, 0) >= 1,
            hardware_dirty: field(registers.mmfr1, 0) >= 2,
            // 52 bits need another entry format, so we use 48 (the value 5).
            physical_range: if range > 5 { 5 } else { range as u8 },
            zero_block: if registers.dczid & 1 << 4 != 0 {
                0
            } else {
                4 << (registers.dczid & 0xf)
            },
        }
    }

    /// Detects the features of this processor.
    ///
    /// # Safety
    /// The processor must be at exception level 1 or higher.
    #[cfg(any(test, target_arch = "aarch64"))]
    pub unsafe fn detect() -> Self {
        // SAFETY: reading an identification register at level 1 or higher has no side effect.
        Self::decode(unsafe {
            Registers {
                mmfr0: registers::mmfr0(),
                mmfr1: registers::mmfr1(),
                mmfr2: registers::mmfr2(),
                isar0: registers::isar0(),
                dczid: registers::dczid(),
            }
        })
    }

    /// Lists each feature's name and whether the processor has it.
    pub fn list(&self) -> [(&'static str, bool); 6] {
        [
            ("asid16", self.asid_bits == 16),
            ("tlbi_range", self.range),
            ("tlbi_level_hint", self.level_hint),
            ("hardware_access", self.hardware_access),
            ("hardware_dirty", self.hardware_dirty),
            ("dc_zva", self.zero_block != 0),
        ]
    }
}

#[cfg(any(test, target_arch = "aarch64"))]
pub(crate) mod registers {
    //! Reads of the registers.

    /// Defines a function for each read.
    macro_rules! reads {
        ($($name:ident: $mode:ident $text:literal;)+) => {
            blocks! {
                BLOCKS of "aarch64";

                $(pub(crate) unsafe fn $name() -> u64 {
                    $mode: $text;
                    returns("x0"),
                    options(nomem, nostack, preserves_flags)
                })+
            }
        };
    }

    reads! {
        mmfr0: privileged "mrs x0, id_aa64mmfr0_el1";
        mmfr1: privileged "mrs x0, id_aa64mmfr1_el1";
        mmfr2: privileged "mrs x0, id_aa64mmfr2_el1";
        isar0: privileged "mrs x0, id_aa64isar0_el1";
        dczid: user "mrs x0, dczid_el0";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_features_have_their_fields() {
        let features = Features::decode(Registers {
            mmfr0: 0x6,
            mmfr1: 2,
            mmfr2: 1 << 48,
            isar0: 2 << 56,
            dczid: 1 << 4,
        });
        assert!(features.range && features.level_hint);
        assert!(features.hardware_access && features.hardware_dirty);
        assert_eq!((features.zero_block, features.asid_bits, features.physical_range), (0, 8, 5));
        // A field of 1 means outer-shareable invalidation alone, not invalidation by range.
        let outer = Features::decode(Registers { isar0: 1 << 56, ..Registers::default() });
        assert!(!outer.range);
    }
}
