//! The serial line (a 16550 in memory) and the power switch.

use core::fmt;
use core::ptr::NonNull;
use uart_16550::{Config, Uart16550, backend::MmioBackend};

/// Its address in QEMU's machine `virt`.
const ADDRESS: u64 = 0x1000_0000;
/// The distance between its registers.
const STRIDE: u8 = 1;

/// The serial line.
pub struct Serial(Uart16550<MmioBackend>);

impl Serial {
    /// Initialises the serial line.
    ///
    /// # Safety
    /// Nothing else uses its registers.
    pub unsafe fn new() -> Self {
        let mut serial = Self::steal();
        // If the line doesn't work, we can't report that anywhere else.
        let _ = serial.0.init(Config::default());
        serial
    }

    /// Returns the serial line even if another CPU uses it, for last words.
    pub fn steal() -> Self {
        let registers = crate::direct_map::pointer::<u8>(ADDRESS);
        let registers = NonNull::new(registers).expect("in the direct map");
        // SAFETY: the direct map covers the registers, and the machine has them there for ever. At worst, another CPU's
        // output is garbled.
        Serial(unsafe { Uart16550::new_mmio(registers, STRIDE) }.expect("a valid address"))
    }
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.send_bytes_exact(text.as_bytes());
        Ok(())
    }
}

/// Switches the machine off. The firmware interface has no exit code, so it's in the `exit` event.
pub fn power_off(_code: u8) -> ! {
    sbi_rt::system_reset(sbi_rt::Shutdown, sbi_rt::NoReason);
    loop {
        riscv::asm::wfi();
    }
}
