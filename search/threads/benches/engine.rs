//! Measures the engine alone: `cargo bench -p quell-threads`.
//!
//! `quell measure engine` is the same measurement with more output and JSON.

fn main() {
    // `cargo test --benches` also runs this, to check that it works.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { 2000 } else { 3 };
    let costs = quell_threads::cost::measure(rounds, &mut |_| ());
    for row in &costs.rows {
        println!(
            "{:<48} {:>8.1} ns {:>8.0} cycles   {:>8.1} ns  {}",
            row.name, row.cost.ns, row.cost.cycles, row.baseline.ns, row.baseline_name
        );
    }
    if let Some(one) = costs.shootdowns {
        for (name, cost) in [
            ("serial", one.serial),
            ("concurrent", one.concurrent),
            ("asynchronous", one.asynchronous),
        ] {
            println!("shootdown, {name:<37} {:>8.1} ns {:>8.0} cycles", cost.ns, cost.cycles);
        }
    }
}
