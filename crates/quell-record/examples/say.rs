//! Says what a recording in text shows.
use quell_perf::Source;
use quell_record::{attribute::Attribution, import::Import, report::Report};
fn main() {
    let path = std::env::args().nth(1).expect("a file");
    let mut source = Import::open(path.as_ref()).expect("it opens");
    let mut all = Attribution::new();
    while let Some(item) = source.next().expect("it is read") {
        all.item(item, &mut ());
    }
    let report = Report::new(all, None);
    for line in &report.answer { println!("{line}"); }
    for site in report.sites.iter().take(8) { println!("{site:?}"); }
    for p in report.programs.iter().take(5) { println!("{p:?}"); }
    for p in report.others.iter().take(5) { println!("{p:?}"); }
    for p in report.advice.iter().take(5) { println!("{p:?}"); }
    println!("{:?}", report.notes);
}
