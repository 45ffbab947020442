//! The serial line (a 16550 in memory) and the power switch.

use core::ptr::NonNull;
use uart_16550::{Config, Uart16550, backend::MmioBackend};

/// Its address in QEMU's machine `virt`.
const ADDRESS: u64 = 0x1000_0000;
/// The distance between its registers.
const STRIDE: u8 = 1;

fn serial() -> Uart16550<MmioBackend> {
    let registers = NonNull::new(crate::memory::pointer::<u8>(ADDRESS)).expect("in the direct map");
    // SAFETY: the direct map covers the registers, and the machine has them there for ever. At worst, another CPU's
    // output is garbled.
    unsafe { Uart16550::new_mmio(registers, STRIDE) }.expect("a valid address")
}

/// Initialises the serial line.
pub fn init() {
    // If the line doesn't work, we can't report that anywhere else.
    let _ = serial().init(Config::default());
}

/// Writes on the serial line. Writes of two CPUs at the same time mix.
pub fn write(text: &str) {
    serial().send_bytes_exact(text.as_bytes());
}

/// Switches the machine off. The firmware interface has no exit code, so it's in the `exit` event.
pub fn power_off(_code: u8) -> ! {
    sbi_rt::system_reset(sbi_rt::Shutdown, sbi_rt::NoReason);
    loop {
        riscv::asm::wfi();
    }
}
