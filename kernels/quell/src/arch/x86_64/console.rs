//! The serial line (a 16550 at the first PC port) and the power switch.

use core::sync::atomic::{AtomicU16, Ordering};
use uart_16550::{Config, Uart16550, backend::PioBackend};
use x86_64::instructions::port::Port;

const PORT: u16 = 0x3f8;

fn serial() -> Uart16550<PioBackend> {
    // SAFETY: at worst, port accesses garble another CPU's output.
    unsafe { Uart16550::new_port(PORT) }.expect("a valid port")
}

/// Initialises the serial line.
pub fn init() {
    // If the port doesn't work, we can't report that anywhere else.
    let _ = serial().init(Config::default());
}

/// Writes on the serial line. Writes of two CPUs at the same time mix.
pub fn write(text: &str) {
    serial().send_bytes_exact(text.as_bytes());
}

static POWER_PORT: AtomicU16 = AtomicU16::new(0x604);

/// Sets the port of the ACPI power switch.
///
/// # Safety
/// The port is that one.
pub unsafe fn set_power_port(port: u16) {
    POWER_PORT.store(port, Ordering::Relaxed);
}

/// Waits until the serial line has sent everything, but at most 100 ms.
fn drain() {
    const LINE_STATUS: u16 = PORT + 5;
    const ALL_SENT: u8 = 1 << 6;
    // SAFETY: reading the status of the serial line doesn't disturb the CPU that uses it.
    let sent = || unsafe { Port::<u8>::new(LINE_STATUS).read() } & ALL_SENT != 0;
    crate::clock::wait_for(100_000_000, sent);
}

/// Switches the machine off. QEMU ends with status 0 for code 0. For other codes it ends with `2 * code + 1`, if it has
/// the device `isa-debug-exit` at port 0xf4.
pub fn power_off(code: u8) -> ! {
    drain();
    // SAFETY: these are QEMU's debug exit and the ACPI power switch (sleep state 5 is type 0 there).
    unsafe {
        if code != 0 {
            Port::new(0xf4).write(u32::from(code));
        }
        Port::new(POWER_PORT.load(Ordering::Relaxed)).write(0x2000u16);
    }
    loop {
        x86_64::instructions::hlt();
    }
}
