//! The serial line (a PL011) and the power switch.

use arm_pl011_uart::{PL011Registers, Uart, UniqueMmioPointer};
use core::fmt::Write as _;
use core::ptr::NonNull;
use smccc::{Hvc, psci};

/// Its address in QEMU's machine `virt`.
const ADDRESS: u64 = 0x0900_0000;

/// Writes on the serial line, which the firmware or the emulator has enabled. Writes of two CPUs at the same time mix.
pub fn write(text: &str) {
    let registers = crate::memory::pointer::<PL011Registers>(ADDRESS);
    let registers = NonNull::new(registers).expect("in the direct map");
    // SAFETY: the direct map covers the registers as device memory. At worst, another CPU's output is garbled.
    let _ = Uart::new(unsafe { UniqueMmioPointer::new(registers) }).write_str(text);
}

/// Switches the machine off. The firmware interface has no exit code, so it's in the `exit` event.
pub fn power_off(_code: u8) -> ! {
    let _ = psci::system_off::<Hvc>();
    loop {
        aarch64_cpu::asm::wfi();
    }
}
