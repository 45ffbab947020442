//! Tests every strategy with many alignments and lengths, between guard bytes that must survive.

use quell_arch::zero::{available, caches, zero};
use quell_zero::Strategy;

const GUARD: u8 = 0xa5;
/// The margin on either side, in bytes: more than the largest block of any strategy. `dc zva` may have 2 KB, but every
/// machine that we tested has 64 bytes.
const MARGIN: usize = 4096;

/// Zeroes `bytes` at `offset` of a page-aligned buffer full of guard bytes, and checks the whole buffer.
fn check(buffer: &mut [u64], strategy: Strategy, offset: usize, bytes: usize) {
    buffer.fill(u64::from_ne_bytes([GUARD; 8]));
    let start = buffer.as_mut_ptr().cast::<u8>();
    let base = start.align_offset(4096) + MARGIN + offset;
    assert!(base + bytes + MARGIN <= size_of_val(buffer));
    // SAFETY: the run is within `buffer`, which is borrowed exclusively, and the caller took `strategy` from
    // `available`. This is a user program, so it may overwrite vector registers.
    unsafe { zero(start.add(base), bytes, strategy) };
    // SAFETY: the bytes of a buffer of integers.
    let all = unsafe { std::slice::from_raw_parts(start.cast_const(), size_of_val(buffer)) };
    let case = || format!("{strategy} of {bytes} bytes at offset {offset}");
    assert!(all[..base].iter().all(|&b| b == GUARD), "{}: before", case());
    assert!(all[base..base + bytes].iter().all(|&b| b == 0), "{}: inside", case());
    assert!(all[base + bytes..].iter().all(|&b| b == GUARD), "{}: after", case());
}

#[test]
fn every_strategy_zeroes_exactly_what_it_is_given() {
    let mut buffer = vec![0u64; (64 << 10) / 8];
    let available = available();
    for &strategy in Strategy::ALL {
        if !available.has(strategy) {
            eprintln!("SKIPPED: this machine does not offer {strategy}");
            continue;
        }
        for offset in (0..=66).chain([127, 128, 255, 256, 4095]) {
            for bytes in (0..=10).chain([63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 16384]) {
                check(&mut buffer, strategy, offset, bytes);
            }
        }
        for bytes in 0..700 {
            check(&mut buffer, strategy, 0, bytes);
            check(&mut buffer, strategy, 13, bytes);
        }
    }
}

#[test]
fn a_strategy_of_another_architecture_falls_back_to_stores() {
    let mut buffer = vec![0u64; (32 << 10) / 8];
    let foreign = if cfg!(target_arch = "aarch64") { Strategy::Clzero } else { Strategy::DcZva };
    assert!(!available().has(foreign));
    check(&mut buffer, foreign, 5, 5000);
}

#[test]
fn detection_agrees_with_the_standard_library() {
    #[cfg(target_arch = "x86_64")]
    {
        let found = available();
        let has = |s| found.has(s);
        assert_eq!(has(Strategy::NonTemporal256), is_x86_feature_detected!("avx"));
        assert_eq!(has(Strategy::NonTemporal512), is_x86_feature_detected!("avx512f"));
        assert_eq!(has(Strategy::RepStos), is_x86_feature_detected!("ermsb"));
    }
    let caches = caches();
    assert!(caches.last >= caches.l2 && (caches.l2 == 0 || caches.l2 >= caches.l1d));
}
