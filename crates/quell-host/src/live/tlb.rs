//! What this CPU tells about its TLBs.
//!
//! Intel: CPUID leaf 0x18; AMD: leaves 0x80000005, 0x80000006 and 0x80000019. Hypervisors often hide them;
//! what is not told stays unknown.

/// One TLB array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// How many entries.
    pub entries: u32,
    /// How many ways.
    pub ways: u32,
    /// Where that stands.
    pub source: &'static str,
}

/// The data TLBs, as far as they are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Geometry {
    /// First level, 4 KB pages.
    pub l1_base: Option<Part>,
    /// First level, 2 MB pages.
    pub l1_large: Option<Part>,
    /// First level, 1 GB pages.
    pub l1_huge: Option<Part>,
    /// Second level, 4 KB pages.
    pub l2: Option<Part>,
}

/// The registers that CPUID answers with.
#[derive(Clone, Copy, Default)]
struct Answer {
    eax: u32,
    ebx: u32,
    ecx: u32,
    edx: u32,
}

/// What this CPU tells.
pub fn of_this_cpu() -> Geometry {
    #[cfg(target_arch = "x86_64")]
    {
        let ask = |leaf, subleaf| {
            let answer = core::arch::x86_64::__cpuid_count(leaf, subleaf);
            Answer {
                eax: answer.eax,
                ebx: answer.ebx,
                ecx: answer.ecx,
                edx: answer.edx,
            }
        };
        // "AuthenticAMD" has its `cAMD` in ECX.
        if ask(0, 0).ecx == u32::from_le_bytes(*b"cAMD") {
            amd(ask)
        } else {
            intel(ask)
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    Geometry::default()
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn intel(ask: impl Fn(u32, u32) -> Answer) -> Geometry {
    const LEAF: u32 = 0x18;
    let mut found = Geometry::default();
    if ask(0, 0).eax < LEAF {
        return found;
    }
    for subleaf in 0..=ask(LEAF, 0).eax.min(64) {
        let Answer { ebx, ecx, edx, .. } = ask(LEAF, subleaf);
        // Data, unified or loads only.
        if !matches!(edx & 0x1f, 1 | 3 | 4) {
            continue;
        }
        let ways = ebx >> 16;
        let entries = ways * ecx;
        if entries == 0 {
            continue;
        }
        let part = Some(Part {
            entries,
            ways,
            source: "CPUID leaf 0x18",
        });
        let pages = [ebx & 1 != 0, ebx & 2 != 0, ebx & 8 != 0];
        match edx >> 5 & 7 {
            1 => {
                let places = [&mut found.l1_base, &mut found.l1_large, &mut found.l1_huge];
                for (place, holds) in places.into_iter().zip(pages) {
                    if holds && place.is_none() {
                        *place = part;
                    }
                }
            }
            2 if pages[0] && found.l2.is_none() => found.l2 = part,
            _ => {}
        }
    }
    found
}

/// Ways as AMD writes them for the second level.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn amd_ways(code: u32, entries: u32) -> Option<u32> {
    Some(match code {
        1 | 2 | 4 => code,
        3 => 3,
        5 => 6,
        6 => 8,
        8 => 16,
        10 => 32,
        11 => 48,
        12 => 64,
        13 => 96,
        14 => 128,
        15 => entries,
        _ => return None,
    })
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn amd(ask: impl Fn(u32, u32) -> Answer) -> Geometry {
    let last = ask(0x8000_0000, 0).eax;
    let part = |entries, ways: Option<u32>, source| {
        let ways = ways?;
        (entries > 0 && ways > 0).then_some(Part {
            entries,
            ways,
            source,
        })
    };
    // First level: 0xff means fully associative.
    let first = |word: u32, source| {
        let (entries, ways) = (word >> 16 & 0xff, word >> 24);
        part(
            entries,
            Some(if ways == 0xff { entries } else { ways }),
            source,
        )
    };
    let coded = |word: u32, source| {
        let entries = word >> 16 & 0xfff;
        part(entries, amd_ways(word >> 28, entries), source)
    };
    let mut found = Geometry::default();
    if last >= 0x8000_0005 {
        let answer = ask(0x8000_0005, 0);
        found.l1_large = first(answer.eax, "CPUID leaf 0x80000005");
        found.l1_base = first(answer.ebx, "CPUID leaf 0x80000005");
    }
    if last >= 0x8000_0006 {
        found.l2 = coded(ask(0x8000_0006, 0).ebx, "CPUID leaf 0x80000006");
    }
    if last >= 0x8000_0019 {
        found.l1_huge = coded(ask(0x8000_0019, 0).eax, "CPUID leaf 0x80000019");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intel_geometry_is_read() {
        let ask = |leaf, subleaf| match (leaf, subleaf) {
            (0, _) => Answer {
                eax: 0x20,
                ..Answer::default()
            },
            (0x18, 0) => Answer {
                eax: 3,
                ..Answer::default()
            },
            // Instructions: not ours.
            (0x18, 1) => Answer {
                ebx: 8 << 16 | 1,
                ecx: 32,
                edx: 1 << 5 | 2,
                ..Answer::default()
            },
            (0x18, 2) => Answer {
                ebx: 6 << 16 | 1,
                ecx: 16,
                edx: 1 << 5 | 4,
                ..Answer::default()
            },
            (0x18, 3) => Answer {
                ebx: 16 << 16 | 3,
                ecx: 128,
                edx: 2 << 5 | 3,
                ..Answer::default()
            },
            _ => Answer::default(),
        };
        let found = intel(ask);
        let size = |part: Option<Part>| part.map(|part| (part.entries, part.ways));
        assert_eq!(size(found.l1_base), Some((96, 6)));
        assert_eq!(size(found.l2), Some((2048, 16)));
        assert_eq!(found.l1_huge, None);
    }

    #[test]
    fn amd_geometry_is_read() {
        let ask = |leaf, _| match leaf {
            0x8000_0000 => Answer {
                eax: 0x8000_0020,
                ..Answer::default()
            },
            0x8000_0005 => Answer {
                eax: 0xff48_ff40,
                ebx: 0xff48_ff40,
                ..Answer::default()
            },
            0x8000_0006 => Answer {
                ebx: 0x6c00_4400,
                ..Answer::default()
            },
            0x8000_0019 => Answer {
                eax: 0xf048_f040,
                ..Answer::default()
            },
            _ => Answer::default(),
        };
        let found = amd(ask);
        let size = |part: Option<Part>| part.map(|part| (part.entries, part.ways));
        assert_eq!(size(found.l1_base), Some((72, 72)));
        assert_eq!(size(found.l2), Some((3072, 8)));
        assert_eq!(size(found.l1_huge), Some((72, 72)));
    }

    #[test]
    fn what_is_hidden_stays_unknown() {
        assert_eq!(intel(|_, _| Answer::default()), Geometry::default());
        assert_eq!(amd(|_, _| Answer::default()), Geometry::default());
    }
}
