//! The serial line (a PL011) and the power switch.

use arm_pl011_uart::{PL011Registers, Uart, UniqueMmioPointer};
use core::fmt;
use core::ptr::NonNull;
use smccc::{Hvc, psci};

/// Its address in QEMU's machine `virt`.
const ADDRESS: u64 = 0x0900_0000;

/// The serial line, which the firmware or the emulator has enabled.
pub struct Serial(Uart<'static>);

impl Serial {
    /// Takes over the serial line.
    ///
    /// # Safety
    /// Nothing else uses its registers.
    pub unsafe fn new() -> Self {
        Self::steal()
    }

    /// Returns the serial line even if another CPU uses it, for last words.
    pub fn steal() -> Self {
        let registers = crate::direct_map::pointer::<PL011Registers>(ADDRESS);
        let registers = NonNull::new(registers).expect("in the direct map");
        // SAFETY: the direct map covers the registers as device memory. At worst, another CPU's output is garbled.
        Serial(Uart::new(unsafe { UniqueMmioPointer::new(registers) }))
    }
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while self.0.is_tx_fifo_full() {
                quell_arch::relax();
            }
            self.0.write_word(byte);
        }
        Ok(())
    }
}

/// Switches the machine off. The firmware interface has no exit code, so it's in the `exit` event.
pub fn power_off(_code: u8) -> ! {
    let _ = psci::system_off::<Hvc>();
    loop {
        aarch64_cpu::asm::wfi();
    }
}
