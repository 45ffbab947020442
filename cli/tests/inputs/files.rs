//! Changed files, and paths where no file should be.
//!
//! The files are real ones, some with changed bytes and numbers. Each parser has its own test with changed structures.

use crate::command::Folder;
use crate::inputs::words::{number, pick};
use quell_clock::file::BUILT_IN;
use quell_workloads::Workload;
use rand::RngExt;
use rand_pcg::Pcg64;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The folder in which all runs take place.
pub struct Playground {
    folder: Folder,
    /// Programs that the adversary wrote.
    programs: Vec<Vec<u8>>,
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

impl Playground {
    pub fn new() -> Self {
        let folder = Folder::new();
        fs::create_dir(folder.join("bin")).expect("a folder");
        for name in ["qemu-system-x86_64", "qemu-system-aarch64", "qemu-system-riscv64", "bochs"] {
            folder.script(&format!("bin/{name}"), EMULATOR);
        }
        folder.run("explore --generate --schedules 1 --jobs 1 --corpus corpus").code(0);
        let files = fs::read_dir(folder.join("corpus")).expect("a corpus");
        let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        paths.sort();
        let programs: Vec<_> =
            paths.iter().map(|path| fs::read(path).expect("a program")).collect();
        assert!(!programs.is_empty(), "the adversary writes programs");
        Playground { folder, programs }
    }

    /// Creates a folder with one file of each kind, and with things that aren't files.
    pub fn place(&self, rng: &mut Pcg64) -> Place {
        let name = |name: &str| format!("run/{name}");
        fs::create_dir(self.folder.join("run")).expect("a folder");
        fs::create_dir(self.folder.join("run/folder")).expect("a folder");
        let (_, machine) = pick(rng, BUILT_IN);
        let program = &self.programs[rng.random_range(0..self.programs.len())];
        let workload = pick(rng, &Workload::all());
        let parameters = parameters(rng);
        // Its header has the fields of a kernel's image.
        let mut image = [0; 0x1000];
        let itself = fs::File::open("/proc/self/exe").or_else(|_| fs::File::open("/bin/sh"));
        itself.and_then(|mut file| file.read_exact(&mut image)).expect("a program");
        for (file, content) in [
            ("machine.toml", machine.as_bytes()),
            ("program.toml", program),
            ("workload.toml", workload.text().as_bytes()),
            ("parameters.toml", parameters.as_bytes()),
            ("folder/program.toml", program),
            ("folder/quell-kernel", &image),
            ("folder/quell-user", &image),
            ("vmlinuz", &linux()),
        ] {
            self.folder.write(&name(file), changed(rng, content));
        }
        self.folder.write(&name("without-rights"), "name = 1\n");
        let rights = Permissions::from_mode(0o000);
        fs::set_permissions(self.folder.join("run/without-rights"), rights).expect("its rights");
        self.folder.pipe(&name("pipe"));
        Place { path: self.folder.join("run"), programs: self.folder.join("bin") }
    }
}

impl Place {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of programs: a folder of scripts in place of emulators.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    pub fn clear(self) {
        fs::remove_dir_all(&self.path).expect("the run's folder goes");
    }
}

/// Returns a path, and whether it can be read or written.
pub fn path(rng: &mut Pcg64, folder: bool) -> (OsString, bool) {
    let good =
        "machine.toml workload.toml program.toml parameters.toml new.toml vmlinuz ä\u{1f980}";
    let odd = "pipe without-rights /dev/null /dev/zero /dev/stdin . / folder machine.toml/x";
    let one_of = |rng: &mut Pcg64, names: &str| {
        pick(rng, &names.split(' ').collect::<Vec<_>>()).to_owned().into()
    };
    match rng.random_range(0..20) {
        0 => ("missing/x".into(), false),
        1 => ("/dev/full".into(), false),
        2 => ("n".repeat(300).into(), false),
        3..9 => (one_of(rng, odd), true),
        _ if folder => ("folder".into(), true),
        _ => (one_of(rng, good), true),
    }
}

/// Changes some bytes, mostly none.
fn changed(rng: &mut Pcg64, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_owned();
    let changes = pick(rng, &[0, 0, 0, 0, 1, 5]);
    for _ in 0..changes {
        // Headers are at the beginning.
        let most = pick(rng, &[bytes.len(), bytes.len().min(0x260)]);
        let at = rng.random_range(0..=most);
        match rng.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random::<u8>()),
            2 if at < bytes.len() => bytes[at] = rng.random::<u8>(),
            _ => {
                let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(at..at + digits, number(rng).into_bytes());
            }
        }
    }
    bytes
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

/// Returns an image with a header of Linux.
fn linux() -> Vec<u8> {
    let mut bytes = vec![0u8; 0x2000];
    bytes[0x1fe..0x200].copy_from_slice(b"\x55\xaa");
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
    bytes
}
