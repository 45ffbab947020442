use std::path::Path;
fn main() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let sources = quell_mutate::sources::read(root).unwrap();
    let mutants = quell_mutate::sources::mutants(&sources);
    println!("{} mutants", mutants.len());
    for s in &sources { println!("{} {}", s.file, s.points.iter().map(|p| p.changes.len()).sum::<usize>()); }
    quell_mutate::tree::copy(root, &sources).unwrap();
    let errors = quell_mutate::build::compile(root, &sources).unwrap();
    for (n, why) in &errors { let m = &mutants[*n as usize - 1]; println!("{} {} {:?} {}", n, why, m.name, m.line); }
    println!("{} out of {}", errors.len(), mutants.len());
    if std::env::args().nth(1).is_some() {
    println!("{:?}", quell_mutate::build::judges(root));
    }
}
