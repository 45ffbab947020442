//! Measures how many accesses a second one core of the host simulates, with the oracle on.
//!
//! We run the three patterns that trace-driven TLB simulators use: 32 pages that always hit, 1024 pages that always
//! miss the first level and hit the second, and random accesses over 256 MB on 8 CPUs. Run with
//! `cargo bench -p quell-clock`.

#[path = "../tests/support/mod.rs"]
mod support;

use quell::{Page, PageSize};
use quell_clock::{ModelUser, Setup};
use quell_vm::User;
use rand::Rng;
use rand_pcg::Pcg64;
use support::{Hooks, Toy, haswell, run};

const ACCESSES: u64 = 2_000_000;

/// Runs of each pattern; the median is printed.
const RUNS: usize = 10;

fn pattern(name: &str, cpus: usize, pages: u64, next: impl Fn(u64, &mut Pcg64) -> u64) {
    let file = haswell();
    let mut setup = Setup::new(&file);
    setup.cpus = Some(cpus);
    setup.node_bytes = Some(1 << 30);
    let mut seconds = [(); RUNS].map(|()| {
        let program = |_: &Toy<'_>, user: &ModelUser<'_>| {
            let mut random = Pcg64::new(1, user.cpu() as u128);
            for step in 0..ACCESSES / cpus as u64 {
                let page = next(step, &mut random) % pages;
                user.read(page * 4096 + (step * 64) % 4096);
            }
        };
        let prepare = |toy: &Toy<'_>| {
            for page in 0..pages {
                let frame = toy.allocate(PageSize::Base);
                toy.set(toy.root, Page(page), PageSize::Base, frame, true);
            }
        };
        let result = run(&setup, &Hooks::default(), &prepare, &program).expect("runs");
        assert_eq!(result.violation_count, 0);
        let counts = result.counts();
        assert_eq!(counts.accesses, ACCESSES);
        match name {
            "hit" => assert!(counts.tlb_first_misses < 100),
            "second-level" => {
                assert!(counts.tlb_first_misses > ACCESSES * 9 / 10);
                assert!(counts.tlb_misses < ACCESSES / 10);
            }
            _ => assert!(counts.tlb_misses > ACCESSES * 9 / 10),
        }
        result.host_seconds
    });
    seconds.sort_unstable_by(f64::total_cmp);
    let millions = |seconds: f64| ACCESSES as f64 / seconds / 1e6;
    println!(
        "{name:<20} {:>7.1} million accesses/s ({:.1} to {:.1})",
        millions(seconds[RUNS / 2]),
        millions(seconds[RUNS - 1]),
        millions(seconds[0])
    );
}

fn main() {
    pattern("hit", 1, 32, |step, _| step);
    pattern("second-level", 1, 1024, |step, _| step);
    pattern("random-256MB-8-CPUs", 8, 65536, |_, random| random.next_u64());
}
