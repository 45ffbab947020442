use quell_adversary::generate::{campaign::Campaign, shrink, text::Recorded};
use quell_adversary::mistake::Mistake;
#[global_allocator]
static ALLOCATOR: quell_sim::LineAllocator = quell_sim::LineAllocator;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "replay" {
        let text = std::fs::read_to_string(&args[2]).unwrap();
        let r = Recorded::parse(&text).unwrap();
        let (v, lines) = shrink::replay_lines(&r);
        print!(
            "{}",
            quell_contract::timeline::columns(&lines, r.program.cpus(), 400)
        );
        println!("{v:?}");
        return;
    }
    let seed: u64 = args[2].parse().unwrap();
    let secs: u64 = args[3].parse().unwrap();
    let threads: usize = args[4].parse().unwrap();
    let hunted: Vec<Mistake> = if args[1] == "mutants" {
        Mistake::all().collect()
    } else {
        vec![]
    };
    let began = std::time::Instant::now();
    let mut c = Campaign::new(seed, threads, vec![], &hunted);
    let hunts = !hunted.is_empty();
    let mut shown = 0;
    while began.elapsed().as_secs() < secs && !c.is_over(hunts) {
        c.go_round();
        let t = began.elapsed().as_secs_f64();
        eprintln!(
            "{t:.1}s programs {} schedules {} ({:.0}/s) moments {} corpus {} seen {:?} alive {} finds {}",
            c.spent.programs,
            c.spent.schedules,
            c.spent.schedules as f64 / t,
            c.spent.moments,
            c.corpus().count(),
            c.seen(),
            c.alive.len(),
            c.finds.len()
        );
        for f in &c.finds[shown..] {
            println!("=== {}\n{}", f.violation, f.recorded.to_toml());
            std::fs::write(
                format!("/tmp/gen-find-{:x}.toml", f.recorded.number()),
                f.recorded.to_toml(),
            )
            .unwrap();
        }
        shown = c.finds.len();
    }
    println!(
        "alive: {:?}",
        c.alive.iter().map(|m| m.name()).collect::<Vec<_>>()
    );
    for k in &c.killed {
        if let Some(f) = &k.find {
            println!(
                "{} {} {} {} ops {}",
                k.mutant.name(),
                k.schedules,
                f.violation.clause,
                f.recorded.kind.name,
                f.recorded.program.operations()
            );
        }
    }
}
