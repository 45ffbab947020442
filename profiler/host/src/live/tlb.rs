//! Reads this CPU's description of its TLBs.
//!
//! Intel: CPUID leaf 0x18; AMD: leaves 0x80000005, 0x80000006 and 0x80000019. Hypervisors often hide them; hidden
//! values stay unknown.

use raw_cpuid::{Associativity, CpuId, CpuIdReader, DatType};

/// One TLB array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlbArray {
    /// The number of entries.
    pub entries: u32,
    /// The number of ways.
    pub ways: u32,
    /// The source of these values.
    pub source: &'static str,
}

/// The data TLBs, as far as known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Geometry {
    /// First level, 4 KB pages.
    pub l1_base: Option<TlbArray>,
    /// First level, 2 MB pages.
    pub l1_large: Option<TlbArray>,
    /// First level, 1 GB pages.
    pub l1_huge: Option<TlbArray>,
    /// Second level, 4 KB pages.
    pub l2: Option<TlbArray>,
}

/// Returns the TLBs of this CPU.
pub fn of_this_cpu() -> Geometry {
    told_by(&CpuId::new())
}

/// Returns the TLBs of a CPU: AMD's leaves for AMD, Intel's for any other.
fn told_by<R: CpuIdReader>(cpu: &CpuId<R>) -> Geometry {
    let vendor = cpu.get_vendor_info();
    if vendor.is_some_and(|vendor| vendor.as_str() == "AuthenticAMD") {
        amd(cpu)
    } else {
        intel(cpu)
    }
}

fn intel<R: CpuIdReader>(cpu: &CpuId<R>) -> Geometry {
    let mut found = Geometry::default();
    let structures = cpu.get_deterministic_address_translation_info();
    // 64 are more structures than any CPU has, so a larger number is wrong.
    for structure in structures.into_iter().flatten().take(64) {
        let kinds = [DatType::DataTLB, DatType::UnifiedTLB, DatType::LoadOnly];
        if !kinds.contains(&structure.cache_type()) {
            continue;
        }
        let ways = u32::from(structure.ways());
        let entries = ways.saturating_mul(structure.sets());
        let part = (entries > 0).then_some(TlbArray { entries, ways, source: "CPUID leaf 0x18" });
        let places: &mut [(&mut Option<TlbArray>, bool)] = match structure.cache_level() {
            1 => &mut [
                (&mut found.l1_base, structure.has_4k_entries()),
                (&mut found.l1_large, structure.has_2mb_entries()),
                (&mut found.l1_huge, structure.has_1gb_entries()),
            ],
            2 => &mut [(&mut found.l2, structure.has_4k_entries())],
            _ => &mut [],
        };
        for (place, holds) in places {
            if *holds && place.is_none() {
                **place = part;
            }
        }
    }
    found
}

fn amd<R: CpuIdReader>(cpu: &CpuId<R>) -> Geometry {
    let part = |entries: u32, associativity, source| {
        let ways = match associativity {
            Associativity::DirectMapped => 1,
            Associativity::NWay(ways) => ways.into(),
            Associativity::FullyAssociative => entries,
            Associativity::Disabled | Associativity::Unknown => 0,
        };
        (entries > 0 && ways > 0).then_some(TlbArray { entries, ways, source })
    };
    let mut found = Geometry::default();
    if let Some(first) = cpu.get_l1_cache_and_tlb_info() {
        let source = "CPUID leaf 0x80000005";
        let (base, large) = (first.dtlb_4k_size(), first.dtlb_2m_4m_size());
        found.l1_base = part(base.into(), first.dtlb_4k_associativity(), source);
        found.l1_large = part(large.into(), first.dtlb_2m_4m_associativity(), source);
    }
    if let Some(second) = cpu.get_l2_l3_cache_and_tlb_info() {
        let entries = second.dtlb_4k_size().into();
        found.l2 = part(entries, second.dtlb_4k_associativity(), "CPUID leaf 0x80000006");
    }
    if let Some(huge) = cpu.get_tlb_1gb_page_info() {
        let entries = huge.dtlb_l1_1gb_size().into();
        found.l1_huge = part(entries, huge.dtlb_l1_1gb_associativity(), "CPUID leaf 0x80000019");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use raw_cpuid::CpuIdResult;

    fn size(part: Option<TlbArray>) -> Option<(u32, u32)> {
        part.map(|part| (part.entries, part.ways))
    }

    fn answer([eax, ebx, ecx, edx]: [u32; 4]) -> CpuIdResult {
        CpuIdResult { eax, ebx, ecx, edx }
    }

    /// Returns leaf 0 of a CPU of that vendor with leaves up to `last`.
    fn vendor(last: u32, name: &[u8; 12]) -> [u32; 4] {
        let word =
            |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
        [last, word(0), word(8), word(4)]
    }

    #[test]
    fn intel_geometry_is_read() {
        let ask = |leaf, subleaf| {
            answer(match (leaf, subleaf) {
                (0, _) => vendor(0x20, b"GenuineIntel"),
                (0x18, 0) => [3, 0, 0, 0],
                // An instruction TLB, which we ignore.
                (0x18, 1) => [0, 8 << 16 | 1, 32, 1 << 5 | 2],
                (0x18, 2) => [0, 6 << 16 | 1, 16, 1 << 5 | 4],
                (0x18, 3) => [0, 16 << 16 | 3, 128, 2 << 5 | 3],
                _ => [0; 4],
            })
        };
        let found = told_by(&CpuId::with_cpuid_reader(ask));
        assert_eq!(size(found.l1_base), Some((96, 6)));
        assert_eq!(size(found.l2), Some((2048, 16)));
        assert_eq!(found.l1_huge, None);
    }

    #[test]
    fn amd_geometry_is_read() {
        let ask = |leaf, _| {
            answer(match leaf {
                0 => vendor(0x10, b"AuthenticAMD"),
                0x8000_0000 => [0x8000_0020, 0, 0, 0],
                0x8000_0005 => [0xff48_ff40, 0xff48_ff40, 0, 0],
                0x8000_0006 => [0, 0x6c00_4400, 0, 0],
                0x8000_0019 => [0xf048_f040, 0, 0, 0],
                _ => [0; 4],
            })
        };
        let found = told_by(&CpuId::with_cpuid_reader(ask));
        assert_eq!(size(found.l1_base), Some((72, 72)));
        assert_eq!(size(found.l2), Some((3072, 8)));
        assert_eq!(size(found.l1_huge), Some((72, 72)));
    }

    #[test]
    fn a_cpu_that_tells_nothing_has_no_geometry() {
        let found = told_by(&CpuId::with_cpuid_reader(|_, _| answer([0; 4])));
        assert_eq!(found, Geometry::default());
    }
}
