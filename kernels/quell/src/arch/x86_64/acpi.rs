//! Reads two kinds of facts from the ACPI tables: the CPUs' APIC ids (MADT), and the ports of the power-management
//! timer and the power switch (FADT).
//!
//! Layouts are those of the ACPI specification, chapter 5. We read fields byte by byte, because the tables are packed.

use crate::cpu::MAX;
use crate::memory::pointer;

/// The contents of the tables.
pub struct Tables {
    ids: [u32; MAX],
    count: usize,
    /// The port of the 3.579545 MHz timer, or 0 if there is none.
    pub timer_port: u16,
}

/// Reads `T` at a physical address.
///
/// # Safety
/// The address is that of a firmware table's field of this type.
unsafe fn read<T: Copy>(address: u64) -> T {
    // SAFETY: as the caller promises; the direct map covers the tables.
    unsafe { pointer::<T>(address).read_unaligned() }
}

impl Tables {
    /// Reads the tables, beginning with the root pointer.
    ///
    /// # Safety
    /// `rsdp` is the physical address of the firmware's root pointer, and the direct map covers
    /// the tables.
    pub unsafe fn read(rsdp: u64) -> Self {
        let mut tables = Tables { ids: [0; MAX], count: 0, timer_port: 0 };
        // SAFETY: offsets and lengths are those of the specification.
        unsafe {
            let extended: u8 = read(rsdp + 15);
            let (root, width): (u64, u64) = if extended >= 2 {
                (read(rsdp + 24), 8)
            } else {
                (read::<u32>(rsdp + 16).into(), 4)
            };
            let length = u64::from(read::<u32>(root + 4));
            for at in (root + 36..root + length).step_by(width as usize) {
                let table: u64 = if width == 8 { read(at) } else { read::<u32>(at).into() };
                match &read::<[u8; 4]>(table) {
                    b"APIC" => tables.read_cpus(table),
                    b"FACP" => {
                        tables.timer_port = read::<u32>(table + 76) as u16;
                        super::console::set_power_port(read::<u32>(table + 64) as u16);
                    }
                    _ => {}
                }
            }
        }
        tables
    }

    /// # Safety
    /// As for [`Tables::read`], for the MADT.
    unsafe fn read_cpus(&mut self, madt: u64) {
        const ENABLED: u32 = 1;
        // SAFETY: the caller names the MADT; offsets and lengths are those of the specification.
        unsafe {
            let end = madt + u64::from(read::<u32>(madt + 4));
            let mut at = madt + 44;
            while at < end {
                let id = match read::<u8>(at) {
                    0 if read::<u32>(at + 4) & ENABLED != 0 => Some(read::<u8>(at + 3).into()),
                    9 if read::<u32>(at + 8) & ENABLED != 0 => Some(read::<u32>(at + 4)),
                    _ => None,
                };
                if let Some(id) = id.filter(|_| self.count < MAX) {
                    self.ids[self.count] = id;
                    self.count += 1;
                }
                at += u64::from(read::<u8>(at + 1)).max(2);
            }
        }
    }

    /// Returns the APIC ids of the usable CPUs.
    pub fn cpus(&self) -> &[u32] {
        &self.ids[..self.count]
    }
}
