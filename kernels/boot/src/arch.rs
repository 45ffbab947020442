//! The architectures that the kernel boots on.

use std::fmt;

/// An architecture that the kernel boots on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// x86-64 on QEMU's `q35`.
    X86_64,
    /// AArch64 on QEMU's `virt`.
    Aarch64,
    /// RISC-V, 64 bits, on QEMU's `virt`.
    Riscv64,
}

impl Arch {
    /// All architectures.
    pub const ALL: &[Arch] = &[Arch::X86_64, Arch::Aarch64, Arch::Riscv64];

    /// Returns the architecture's name, as in targets and in QEMU's names.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
            Arch::Riscv64 => "riscv64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
