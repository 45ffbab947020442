//! Runs the emulator and follows the kernel's output.
//!
//! Lines that begin with `quell: ` are events in JSON. The last one is `exit` with the kernel's code. A run passes only
//! with that event and code 0; an emulator that ends by itself, a crash or a hang never passes. If the kernel is silent
//! for too long ([`patience`]), we print every CPU's place from the emulator's monitor before we end the machine.

use crate::ending::{Emulator, end_requested};
use crate::patience::{self, EmulatorWait};
use crate::qemu::{Command, SERIAL};
use anyhow::Context;
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The prefix of the kernel's lines.
const PREFIX: &str = "quell: ";

/// The number of lines that we keep for the report of a failure.
const KEPT: usize = 30;

/// One line of the serial console.
pub enum Line<'a> {
    /// An event.
    Event(&'a Value),
    /// Anything else.
    Text(&'a str),
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Event(event) => event.fmt(f),
            Line::Text(text) => f.write_str(text),
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The kernel's events, in order.
    pub events: Vec<Value>,
    /// The code of the `exit` event; `None` if there was no such event.
    pub code: Option<u64>,
    /// The reason why the run failed.
    pub failure: Option<String>,
    /// After a failure, the last lines that weren't events.
    pub last_lines: Vec<String>,
    /// The time that the run took.
    pub seconds: f64,
}

impl Outcome {
    /// Returns whether the kernel reported success.
    pub fn passed(&self) -> bool {
        self.code == Some(0)
    }
}

/// A file that an emulator writes. Reading it ends when the emulator has ended and everything was read.
struct GrowingFile {
    file: File,
    ended: Arc<AtomicBool>,
}

impl GrowingFile {
    /// Opens the file. `output` closes when the emulator ends; its content is discarded.
    fn new(path: &Path, mut output: impl Read + Send + 'static) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut output, &mut std::io::sink());
            over.store(true, Ordering::Release);
        });
        Ok(GrowingFile { file, ended })
    }
}

impl Read for GrowingFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            // We load the flag before we read, so that we read everything that was written before the end.
            let ended = self.ended.load(Ordering::Acquire);
            match self.file.read(buffer) {
                Ok(0) if !ended => std::thread::sleep(Duration::from_millis(20)),
                result => return result,
            }
        }
    }
}

/// Runs the emulator until the kernel is done or was silent for `limit` ([`EmulatorWait`]). Passes each line to `line`.
///
/// # Errors
/// If the emulator can't be started.
pub fn run(
    command: Command,
    limit: Duration,
    mut line: impl FnMut(Line<'_>),
) -> anyhow::Result<Outcome> {
    run_until(command, limit, |text| {
        line(text);
        false
    })
}

/// Does [`run`], and also ends the emulator if `line` returns `true`.
pub(crate) fn run_until(
    command: Command,
    limit: Duration,
    mut line: impl FnMut(Line<'_>) -> bool,
) -> anyhow::Result<Outcome> {
    let begin = Instant::now();
    let monitor = monitor::Socket::new();
    let qemu = command.serial.is_none();
    let mut emulator = std::process::Command::new(&command.program);
    emulator
        .args(&command.arguments)
        .args(qemu.then(|| monitor.arguments()).into_iter().flatten())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Emulator::start(&mut emulator)
        .with_context(|| format!("starting {}", command.program.display()))?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.0.stdout.take().context("the emulator's output")?;
    let stderr = child.0.stderr.take().context("the emulator's messages")?;
    let serial: Box<dyn Read + Send> = match &command.serial {
        None => Box::new(stdout),
        Some(directory) => Box::new(GrowingFile::new(&directory.path().join(SERIAL), stdout)?),
    };
    for source in [serial, Box::new(stderr)] {
        let sender = sender.clone();
        std::thread::spawn(move || {
            for bytes in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&bytes).trim_end().to_string();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
    }
    drop(sender);

    let mut outcome = Outcome {
        events: Vec::new(),
        code: None,
        failure: None,
        last_lines: Vec::new(),
        seconds: 0.0,
    };
    let mut kept = VecDeque::new();
    let mut patience = EmulatorWait::new(child.0.id(), limit);
    loop {
        match lines.recv_timeout(patience::LOOK) {
            Ok(text) => {
                patience.heard();
                // Firmware output without a line end may precede the first event.
                let event = text
                    .find(PREFIX)
                    .and_then(|at| serde_json::from_str::<Value>(&text[at + PREFIX.len()..]).ok());
                let over = match event {
                    Some(event) => {
                        let over = line(Line::Event(&event));
                        if event["event"] == "exit" {
                            outcome.code = event["code"].as_u64();
                        }
                        outcome.events.push(event);
                        over
                    }
                    None => {
                        let over = line(Line::Text(&text));
                        if kept.len() == KEPT {
                            kept.pop_front();
                        }
                        kept.push_back(text);
                        over
                    }
                };
                if over {
                    break;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let Some(why) = patience.look() else { continue };
                outcome.failure = Some(format!("{why}; stopped"));
                if qemu {
                    kept.extend(monitor.where_cpus_are());
                }
                break;
            }
        }
    }
    drop(child);
    outcome.seconds = begin.elapsed().as_secs_f64();
    if outcome.failure.is_none() {
        outcome.failure = match outcome.code {
            Some(0) => None,
            Some(code) => Some(format!("the kernel ended with code {code} ({})", meaning(code))),
            None if end_requested().is_some() => Some("ended by a signal".into()),
            None => Some("the emulator ended before the kernel did".into()),
        };
    }
    if outcome.failure.is_some() {
        outcome.last_lines = kept.into_iter().collect();
    }
    Ok(outcome)
}

/// Returns the meaning of the kernel's exit code.
fn meaning(code: u64) -> &'static str {
    match code {
        1 => "a test failed",
        2 => "its options were wrong",
        3 => "it panicked",
        4 => "a CPU waited for another forever",
        _ => "unknown",
    }
}

/// The emulator's monitor, which we reach by its machine protocol over a socket.
mod monitor {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU32;

    /// The socket's path; dropping this removes the file.
    pub struct Socket(PathBuf);

    impl Socket {
        pub fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("quell-boot-{}-{number}.sock", std::process::id());
            Socket(std::env::temp_dir().join(name))
        }

        pub fn arguments(&self) -> Vec<String> {
            vec!["-qmp".into(), format!("unix:{},server=on,wait=off", self.0.display())]
        }

        /// Returns a line for each CPU with its program counters at several moments. For a CPU in a loop, these show
        /// the loop.
        pub fn where_cpus_are(&self) -> Vec<String> {
            const LOOKS: usize = 5;
            let mut places: BTreeMap<u32, Vec<String>> = BTreeMap::new();
            for look in 0..LOOKS {
                if look > 0 {
                    std::thread::sleep(Duration::from_millis(50));
                }
                let Some(answer) = self.registers() else {
                    return vec!["the emulator's monitor does not answer".into()];
                };
                for (cpu, place) in program_counters(&answer) {
                    let places = places.entry(cpu).or_default();
                    if places.last() != Some(&place) {
                        places.push(place);
                    }
                }
            }
            places
                .into_iter()
                .map(|(cpu, places)| format!("cpu {cpu} is at {}", places.join(", then ")))
                .collect()
        }

        fn registers(&self) -> Option<String> {
            let mut stream = UnixStream::connect(&self.0).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
            let ask = r#"{"execute":"human-monitor-command","arguments":{"command-line":"info registers -a"}}"#;
            write!(stream, "{{\"execute\":\"qmp_capabilities\"}}\n{ask}\n").ok()?;
            BufReader::new(stream)
                .lines()
                .map_while(Result::ok)
                .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
                .find_map(|answer| Some(answer["return"].as_str()?.to_string()))
        }
    }

    /// Returns each CPU's program counter from the monitor's list of registers.
    fn program_counters(registers: &str) -> Vec<(u32, String)> {
        let mut cpu = 0;
        let mut found = Vec::new();
        for line in registers.lines() {
            let word = |name: &str| {
                line.split_whitespace().find_map(|word| Some(word.strip_prefix(name)?.to_string()))
            };
            // RISC-V prints it alone on a line, after a blank.
            let alone = || match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["pc", pc] => Some(pc.to_string()),
                _ => None,
            };
            if let Some(number) = line.strip_prefix("CPU#") {
                cpu = number.trim().parse().unwrap_or(cpu);
            } else if let Some(pc) = word("RIP=").or_else(|| word("PC=")).or_else(alone) {
                let halted = line.contains("HLT=1");
                found.push((cpu, pc + if halted { " (halted)" } else { "" }));
            }
        }
        found
    }

    impl Drop for Socket {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::program_counters;

        /// Uses lines as QEMU 7.2 prints them.
        #[test]
        fn program_counters_are_found_on_every_architecture() {
            let found = |registers: &str| program_counters(registers);
            let at = |cpu: u32, place: &str| (cpu, place.to_string());
            let x86 =
                "CPU#0\nRIP=ffff800000201000 RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\n";
            assert_eq!(found(x86), [at(0, "ffff800000201000 (halted)")]);
            let arm = "CPU#1\n PC=ffff000040201000 X00=0000000000000000 X01=0000000000000000\n";
            assert_eq!(found(arm), [at(1, "ffff000040201000")]);
            let riscv = "CPU#0\n V      =   0\n pc       0000000080201000\n mhartid  0000000000000000\n\
                         CPU#1\n pc       ffff800080201000\n sepc     0000000000000000\n";
            let expected = [at(0, "0000000080201000"), at(1, "ffff800080201000")];
            assert_eq!(found(riscv), expected);
        }
    }
}
