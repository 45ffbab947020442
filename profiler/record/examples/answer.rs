//! The answer to a recording in text, without the rest of the command: the smallest use of this crate.
//!
//! ```text
//! cargo run --release -p quell-record --example answer -- FILE
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use quell_record::import::Import;
use quell_record::report::Report;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: answer FILE");
        return ExitCode::from(2);
    };
    let analysed = Import::open(&file)
        .and_then(|mut source| quell_record::analyse(&mut source, &mut (), &mut |_, _| true));
    match analysed {
        Ok(all) => {
            let report = Report::new(all, None);
            let advice = report.advice.iter().map(|advice| &advice.text);
            for line in report.answer.iter().chain(advice) {
                println!("{line}");
            }
            println!("{} events", report.samples);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
