//! Writes a recording in text again and again, each time later, until it has as many events as asked for: to try how
//! long and with how much memory a large one is read.
//!
//! ```text
//! cargo run --release -p quell-record --example repeat -- FILE 10000000 > large.txt
//! command time -v quell record --import large.txt
//! ```

use std::io::{self, BufWriter, Write};

/// The time that an event's line says, and where: `123.456789:`.
fn time(line: &str) -> Option<(usize, usize, u64)> {
    if line.starts_with('\t') {
        return None;
    }
    let mut at = 0;
    for word in line.split(' ') {
        let begin = at;
        at += word.len() + 1;
        let digits = word.strip_suffix(':').and_then(|word| word.split_once('.'));
        if let Some((seconds, micros)) = digits.filter(|(_, micros)| micros.len() == 6) {
            let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
            return Some((begin, begin + word.len(), seconds * 1_000_000 + micros));
        }
    }
    None
}

fn main() -> io::Result<()> {
    let mut words = std::env::args().skip(1);
    let (Some(file), Some(Ok(events))) = (words.next(), words.next().map(|n| n.parse::<u64>()))
    else {
        eprintln!("usage: repeat FILE EVENTS");
        std::process::exit(2);
    };
    let text = String::from_utf8_lossy(&std::fs::read(file)?).into_owned();
    let times = text.lines().filter_map(time).map(|(_, _, time)| time);
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), time| {
        (first.min(time), last.max(time))
    });
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut written, mut later) = (0, 0);
    while written < events && first < last {
        for line in text.lines() {
            match time(line) {
                Some((begin, end, time)) => {
                    let time = time + later;
                    let (seconds, micros) = (time / 1_000_000, time % 1_000_000);
                    writeln!(
                        out,
                        "{}{seconds}.{micros:06}:{}",
                        &line[..begin],
                        &line[end..]
                    )?;
                    written += 1;
                }
                None => writeln!(out, "{line}")?,
            }
        }
        later += last - first + 1;
    }
    out.flush()
}
