use super::*;
use crate::live::{bench, beside};

fn host(guest: bool) -> Host {
    Host {
        kernel: "6.18.0".into(),
        arch: "x86_64",
        cpu_model: Some("a \"CPU\"".into()),
        guest: Some(guest),
        cpus: vec![0, 1],
        page_bytes: 4096,
        flags: vec!["pcid".into()],
        root: true,
    }
}

fn measured(alone_ns: f64, one_target_ns: f64) -> Shootdown {
    Shootdown {
        alone_ns,
        one_target_ns: Some(one_target_ns),
        interrupts_per_op: Some(1.0),
        ns: Some(one_target_ns - alone_ns),
        quiet_samples: 9,
        all_samples: 9,
        reliable: true,
        note: None,
    }
}

/// Returns the steps of an invented machine.
fn units() -> Units {
    Units {
        call_ns: Some(100.0),
        discard_nothing_ns: Some(400.0),
        fault_ns: Some(1_200.0),
        discard_ns: Some(150.0),
        zero_ns: Some(160.0),
        zero_backwards_ns: Some(200.0),
        compress_ns: Some(3_000.0),
        decompress_ns: Some(900.0),
        swap_ns: Some(4_000.0),
        switch_ns: Some(2_400.0),
    }
}

#[test]
fn the_file_shows_each_thing_that_it_was_made_from() {
    for (guest, alone, target) in [(true, 2_700.0, 13_000.0), (false, 1_900.0, 3_500.0)] {
        let made = make(&host(guest), &units(), &measured(alone, target)).unwrap();
        assert_eq!(made.note, None);
        let again = MachineFile::parse("again", &made.text).unwrap();
        let near = |cpus, what, wanted: f64| {
            let value = modelled(&again, made.kernel.policy, cpus, what).unwrap();
            let found = if what == TOUCHES { PAGE / value } else { value };
            assert!((found - wanted).abs() < wanted * 0.02, "{found} for {wanted}");
        };
        near(1, NOTHING, 400.0);
        near(1, TOUCHES, 1_200.0);
        near(1, ONE_PAGE, alone);
        near(2, ONE_PAGE, target);
        let amount = |parameter| again.amount(parameter);
        // The start of zeroing comes from the base machine's processor: Intel's takes some time, AMD's none.
        let zeroed = amount(P::ZeroStart) / 1e3 + PAGE / amount(P::StringRate);
        assert!((zeroed - 160.0).abs() < 1.0, "{zeroed}");
        assert_eq!(amount(P::ZeroJump), 40e3);
        // Both exclude a call. The cost of swapping a page is the whole measured time.
        assert_eq!((amount(P::Decompress), amount(P::DecompressByte)), (8e5, 0.0));
        assert_eq!(amount(P::CompressByte), 0.0);
        let swap = |what| modelled(&again, made.kernel.dirty, 1, what).unwrap() * SWAP_ROUNDS_NS;
        let pages = swap(("swap", &["rounds=10"]));
        let expected = 4_000.0 - 160.0 + 2_900.0 + 800.0;
        assert!((pages / expected - 1.0).abs() < 0.02, "{pages} for {expected}");
        let calibrated =
            P::ALL.iter().filter(|&&p| again.value(p).source.starts_with("calibrated"));
        assert_eq!(amount(P::Schedule) + amount(P::SystemCall), 2.4e6);
        assert_eq!(calibrated.count(), 10);
    }
}

#[test]
fn many_pages_in_one_call_pay_for_their_faults_and_not_for_calls() {
    let (alone, fault, discard) = (2_000.0, 1_200.0, 150.0);
    let made = make(&host(true), &units(), &measured(alone, 9_000.0)).unwrap();
    // Each page takes its own time, and all share the call.
    for pages in ["pages=8", "pages=32"] {
        let count: f64 = pages[6..].parse().unwrap();
        let what: (&str, &[&str]) = ("dontneed", &["iterations=100", pages]);
        let found = modelled(&made.machine, made.kernel.policy, 1, what).unwrap();
        let expected = (count - 1.0) * (fault + discard) + alone;
        let error = (found - expected) / expected;
        // Up to `full_above` pages are flushed one by one.
        assert!((-0.05..0.2).contains(&error), "{found} for {expected}");
    }
}

#[test]
fn nothing_that_is_predicted_is_calibrated_on() {
    let used = [bench::one_page_key(0), bench::one_page_key(1)];
    let used = bench::units::KEYS.iter().copied().chain(used.iter().map(String::as_str));
    for key in used {
        assert!(!beside::predicted().any(|row| row == key), "{key}");
    }
}

#[test]
fn what_was_not_measured_is_the_bases() {
    let without = Units { compress_ns: None, zero_backwards_ns: None, ..units() };
    let made = make(&host(true), &without, &measured(2_700.0, 13_000.0)).unwrap();
    let (name, _) = base("x86_64", Processor::of_this_host().vendor.as_deref()).unwrap();
    let base = built_in(name).unwrap();
    for parameter in [P::Compress, P::CompressByte, P::StringRate, P::ZeroJump] {
        assert_eq!(made.machine.amount(parameter), base.amount(parameter));
        let source = &made.machine.value(parameter).source;
        assert!(!source.starts_with("calibrated"), "{source}");
    }
    assert_eq!(made.machine.amount(P::Decompress), 8e5);
}

#[test]
fn a_host_that_the_model_cannot_be_brought_to_is_said_so() {
    let made = make(&host(true), &units(), &measured(100.0, 5_000.0)).unwrap();
    assert!(made.note.unwrap().contains("one page, alone"));
    let slow = Units { call_ns: Some(500.0), ..units() };
    let made = make(&host(true), &slow, &measured(2_700.0, 5_000.0)).unwrap();
    assert!(made.note.unwrap().contains("finds nothing"));
}
