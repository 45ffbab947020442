//! Changed files, and paths where no file should be.
//!
//! The files are real ones with changes: in the TOML structure of machine files and programs, in parameters, in the
//! headers of kernel images, and in single bytes of any of them.

use crate::inputs::words::{choose, pick};
use quell_clock::file::BUILT_IN;
use quell_workloads::Workload;
use rand::RngExt;
use rand_pcg::Pcg64;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::{Table, Value};

/// The folder in which all runs take place.
pub struct Folder {
    folder: tempfile::TempDir,
    /// Programs that the adversary wrote.
    programs: Vec<String>,
}

/// The folder in which one run takes place.
pub struct Place {
    path: PathBuf,
    programs: PathBuf,
}

/// A script in place of an emulator. It prints lines like those of a kernel, some of them broken.
const EMULATOR: &str = r#"#!/bin/sh
case "$*" in *--version*) echo "QEMU emulator version 9.2.0"; exit 0;; *help*) exit 0;; esac
echo 'SeaBIOS'
echo 'quell: {"event":"boot","present":["a"],"absent":7}'
echo 'quell: {"event":"test","name":3}'
echo 'quell: {"event":'
echo 'quell: {"event":"exit","code":0}'
"#;

impl Folder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).expect("a folder");
        for name in ["qemu-system-x86_64", "qemu-system-aarch64", "qemu-system-riscv64", "bochs"] {
            let path = bin.join(name);
            fs::write(&path, EMULATOR).expect("a file");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its rights");
        }
        let corpus = folder.path().join("corpus");
        let mut quell = Command::new(env!("CARGO_BIN_EXE_quell"));
        quell.args(["explore", "--generate", "--schedules", "1", "--jobs", "1", "--corpus"]);
        assert!(quell.arg(&corpus).output().expect("quell starts").status.success());
        let files = fs::read_dir(&corpus).expect("a corpus");
        let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        paths.sort();
        let programs: Vec<_> =
            paths.iter().map(|path| fs::read_to_string(path).expect("a program")).collect();
        assert!(!programs.is_empty(), "the adversary writes programs");
        Folder { folder, programs }
    }

    /// Creates a folder with one file of each kind, and with things that aren't files.
    pub fn place(&self, rng: &mut Pcg64) -> Place {
        let path = self.folder.path().join("run");
        fs::create_dir(&path).expect("a folder");
        let place = Place { path, programs: self.folder.path().join("bin") };
        let file =
            |name: &str, bytes: &[u8]| fs::write(place.path.join(name), bytes).expect("a file");
        let (_, machine) = pick(rng, BUILT_IN);
        file("machine.toml", &changed(rng, machine));
        let program = &self.programs[rng.random_range(0..self.programs.len())];
        file("program.toml", &changed(rng, program));
        let workload = pick(rng, &Workload::all());
        file("workload.toml", &changed(rng, workload.text()));
        let parameters = parameters(rng);
        file("parameters.toml", &changed(rng, &parameters));
        fs::create_dir(place.path.join("folder")).expect("a folder");
        file("folder/program.toml", &changed(rng, program));
        file("folder/quell-kernel", &elf(rng));
        file("folder/quell-user", &elf(rng));
        file("vmlinuz", &linux(rng));
        file("without-rights", b"name = 1\n");
        let rights = Permissions::from_mode(0o000);
        fs::set_permissions(place.path.join("without-rights"), rights).expect("its rights");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.path.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("a pipe");
        place
    }
}

impl Place {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of programs: a folder of scripts in place of emulators.
    pub fn programs(&self) -> OsString {
        self.programs.clone().into()
    }

    pub fn clear(self) {
        fs::remove_dir_all(&self.path).expect("the run's folder goes");
    }

    /// Returns a path, and whether it can be read or written.
    pub fn path_for(&self, rng: &mut Pcg64, folder: bool) -> (OsString, bool) {
        let good = [
            "machine.toml",
            "workload.toml",
            "program.toml",
            "parameters.toml",
            "new.toml",
            "vmlinuz",
            "ä \u{1f980}",
        ];
        let odd = [
            "pipe",
            "without-rights",
            "/dev/null",
            "/dev/zero",
            "/dev/stdin",
            ".",
            "/",
            "folder",
            "machine.toml/x",
        ];
        match rng.random_range(0..20) {
            0 => ("missing/x".into(), false),
            1 => ("/dev/full".into(), false),
            2 => ("n".repeat(300).into(), false),
            3..9 => (pick(rng, &odd).into(), true),
            _ if folder => ("folder".into(), true),
            _ => (pick(rng, &good).into(), true),
        }
    }
}

/// Changes a TOML file in its structure or, more rarely, in its bytes.
fn changed(rng: &mut Pcg64, text: &str) -> Vec<u8> {
    let mut text = text.to_owned();
    if rng.random_range(0..4) > 0
        && let Ok(mut table) = text.parse::<Table>()
    {
        for _ in 0..rng.random_range(1..4) {
            change_table(rng, &mut table);
        }
        text = table.to_string();
    }
    let mut bytes = text.into_bytes();
    if rng.random_range(0..6) == 0 {
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..=bytes.len());
            match rng.random_range(0..3) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] = rng.random::<u8>(),
                _ => bytes.insert(at, rng.random::<u8>()),
            }
        }
    }
    bytes
}

fn change_table(rng: &mut Pcg64, table: &mut Table) {
    let keys: Vec<String> = table.keys().cloned().collect();
    let Some(key) = choose(rng, &keys) else {
        table.insert("x".into(), odd(rng));
        return;
    };
    match rng.random_range(0..16) {
        0 => {
            table.remove(key);
        }
        1 => {
            let value = table.remove(key).expect("it is there");
            table.insert(format!("{key}x"), value);
        }
        2 => {
            table.insert("x".into(), odd(rng));
        }
        _ => change(rng, table.get_mut(key).expect("it is there")),
    }
}

fn change(rng: &mut Pcg64, value: &mut Value) {
    match value {
        Value::Table(table) if rng.random_range(0..8) > 0 => change_table(rng, table),
        Value::Array(items) if rng.random_range(0..8) > 0 && !items.is_empty() => {
            let at = rng.random_range(0..items.len());
            match rng.random_range(0..6) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => change(rng, &mut items[at]),
            }
        }
        Value::Integer(number) if rng.random::<bool>() => {
            *number = pick(rng, &[0, 1, -1, 2, 3, 63, 64, 65, 255, 1024, 1025, i64::MAX, i64::MIN]);
        }
        _ => *value = odd(rng),
    }
}

/// Returns a value that few keys accept.
fn odd(rng: &mut Pcg64) -> Value {
    match rng.random_range(0..12) {
        0 => Value::Integer(rng.random::<i64>()),
        1 => Value::Integer(rng.random_range(-2..70)),
        2 => Value::Float(f64::NAN),
        3 => Value::Float(f64::INFINITY),
        4 => Value::Float(pick(rng, &[0.0, -1.0, 1e-300, 1e300, 0.5])),
        5 => Value::String(String::new()),
        6 => Value::String("ä\u{1f980}\n".into()),
        7 => Value::String("n".repeat(10_000)),
        8 => Value::Boolean(rng.random::<bool>()),
        9 => Value::Array(vec![Value::Integer(1); 3000]),
        10 => Value::Table(Table::new()),
        _ => Value::String(pick(rng, &["x86-64", "aarch64", "yes", "none", "all"]).into()),
    }
}

/// Returns a file of parameters for some workload.
fn parameters(rng: &mut Pcg64) -> String {
    let workload = pick(rng, &Workload::all());
    let mut text = String::new();
    for parameter in workload.parameters() {
        if rng.random_range(0..3) == 0 {
            let value = pick(rng, &[parameter.default, parameter.least, parameter.most]);
            text += &format!("{} = {value}\n", parameter.name);
        }
    }
    text
}

/// Returns an image with an ELF header, some fields of which are wrong.
fn elf(rng: &mut Pcg64) -> Vec<u8> {
    let mut bytes = vec![0u8; 0x1000];
    bytes[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let mut put = |at: usize, length: usize, value: u64| {
        bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
    };
    put(16, 2, 2);
    put(18, 2, pick(rng, &[62, 183, 3]));
    put(20, 4, 1);
    put(32, 8, 64);
    put(52, 2, 64);
    put(54, 2, 56);
    put(56, 2, 2);
    for segment in 0..2 {
        let at = 64 + segment * 56;
        put(at, 4, 1);
        put(at + 8, 8, 0x200);
        put(at + 16, 8, 0x4008_0000 + segment as u64 * 0x1000);
        put(at + 24, 8, 0x4008_0000 + segment as u64 * 0x1000);
        put(at + 32, 8, 0x100);
        put(at + 40, 8, 0x200);
    }
    for _ in 0..rng.random_range(0..3) {
        let field = pick(rng, &[32, 56, 64 + 8, 64 + 16, 64 + 24, 64 + 32, 64 + 40]);
        let odd = [0, 1, 0xffff, 1 << 32, 1 << 46, u64::MAX, u64::MAX - 0xfff, 1 << 63];
        put(field, 8, pick(rng, &odd));
    }
    if rng.random_range(0..6) == 0 {
        bytes.truncate(rng.random_range(0..0x1000));
    }
    bytes
}

/// Returns an image with a changed header of Linux.
fn linux(rng: &mut Pcg64) -> Vec<u8> {
    let mut bytes = vec![0u8; 0x2000];
    bytes[0x1fe..0x200].copy_from_slice(b"\x55\xaa");
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    for _ in 0..rng.random_range(0..6) {
        let at = rng.random_range(0x1f0..0x260);
        bytes[at] = rng.random::<u8>();
    }
    bytes.truncate(rng.random_range(1..=0x2000));
    bytes
}
