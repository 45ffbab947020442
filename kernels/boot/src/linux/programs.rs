//! Builds and packs the programs of `soak.toml`: from Linux's source, our own (`programs/`), or the host, with the
//! libraries that they load.

use super::make::headers;
use super::tree::{self, Lock, directory, integration};
use crate::toolchain::{missing, run, which};
use crate::versus::protocol::Program;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The time limit of a self-test, in seconds.
const SECONDS: u64 = 240;
/// The time in seconds that a stressor may take beyond its run time. It needs this to create and free its memory under
/// a debugging kernel.
const BEYOND: u64 = 180;
/// The memory of a stressor, in megabytes.
const MEMORY_MB: u64 = 160;

/// The file with the number of reserved huge pages.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// The file that allows mapping more than there is: some self-tests map gigabytes and touch little.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// The users of the machine.
const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\n";

/// Libraries of self-tests, with their packages.
const LIBRARIES: [(&str, &str); 2] =
    [("/usr/include/numaif.h", "libnuma-dev"), ("/usr/include/sys/capability.h", "libcap-dev")];

/// The content of `soak.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    own: Vec<Entry>,
    selftest: Vec<Entry>,
    stressor: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    run: Vec<String>,
    #[serde(default)]
    huge_pages: u64,
    seconds: Option<u64>,
    memory_mb: Option<u64>,
}

impl Entry {
    fn settings(&self, overcommit: &str) -> Vec<(String, String)> {
        vec![
            (HUGE_PAGES.into(), self.huge_pages.to_string()),
            (OVERCOMMIT.into(), overcommit.into()),
        ]
    }

    /// Returns a program of this folder.
    fn of(&self, folder: &str) -> Program {
        let mut command = self.run.clone();
        command[0] = format!("/{folder}/{}", self.run[0]);
        Program {
            name: self.run.join(" "),
            command,
            seconds: self.seconds.unwrap_or(SECONDS),
            memory: self.memory_mb.map(|mb| mb << 20),
            settings: self.settings("1"),
        }
    }

    fn stressor(&self, seconds: u64) -> Program {
        let mut command: Vec<String> =
            ["/usr/bin/stress-ng", "--verify", "--no-rand-seed"].map(String::from).into();
        command.extend(["--temp-path".into(), "/files".into()]);
        command.extend(["--timeout".into(), format!("{seconds}s")]);
        command.extend(self.run.iter().cloned());
        Program {
            name: format!("stress-ng {}", self.run.join(" ")),
            command,
            seconds: seconds + self.seconds.unwrap_or(BEYOND),
            memory: Some(self.memory_mb.unwrap_or(MEMORY_MB) << 20),
            settings: self.settings("0"),
        }
    }
}

/// The programs to run, and their files.
#[derive(Default, Debug)]
pub struct ProgramImage {
    /// The programs.
    pub programs: Vec<Program>,
    /// Each file's path and content.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The programs left out, with the reason.
    pub skipped: Vec<String>,
}

/// Returns whether an exit code means a skip: 4, or 3 from stress-ng.
pub fn is_skip(program: &Program, code: i32) -> bool {
    code == 4 || (code == 3 && program.name.starts_with("stress-ng"))
}

/// Builds and packs the programs whose names contain a text of `only`. An empty list selects all programs. Each
/// stressor runs for this many seconds.
pub fn pack(only: &[String], seconds: u64) -> anyhow::Result<ProgramImage> {
    let place = integration().join("soak.toml");
    let list = read(&crate::edits::read(&place)?).with_context(|| place.display().to_string())?;
    let wanted =
        |program: &Program| only.is_empty() || only.iter().any(|text| program.name.contains(text));
    let of = |entries: &[Entry], program: &dyn Fn(&Entry) -> Program| -> Vec<Program> {
        entries.iter().map(program).filter(wanted).collect()
    };
    let own = of(&list.own, &|entry| entry.of("own"));
    let selftests = of(&list.selftest, &|entry| entry.of("selftests"));
    let stressors = of(&list.stressor, &|entry| entry.stressor(seconds));
    if own.is_empty() && selftests.is_empty() && stressors.is_empty() {
        bail!("no program of {} has {} in its name", place.display(), only.join(" or "));
    }
    let lock = Lock::take()?;
    let mut packed = ProgramImage::default();
    for program in own {
        let name = program.command[0].trim_start_matches("/own/");
        match compile(&lock, name) {
            Ok(built) => {
                packed.add(&program.command[0], &built)?;
                packed.add_mkfs(&program)?;
                packed.programs.push(program);
            }
            Err(error) => packed.skipped.push(format!("{name}: {error:#}")),
        }
    }
    if !selftests.is_empty() {
        match build(&lock) {
            Ok(folder) => packed.add_selftests(&folder, selftests)?,
            Err(error) => packed.skipped.push(format!("Linux's self-tests: {error:#}")),
        }
    }
    if !stressors.is_empty() {
        match which("stress-ng") {
            Some(program) => {
                packed.add("/usr/bin/stress-ng", &program)?;
                packed.programs.extend(stressors);
            }
            None => packed
                .skipped
                .push("stress-ng is not installed (Debian's package of that name)".into()),
        }
    }
    // Some programs call `system()`.
    for (place, program) in [("/bin/sh", "dash"), ("/bin/cat", "cat"), ("/bin/grep", "grep")] {
        match which(program) {
            Some(program) => packed.add(place, &program)?,
            None => packed.skipped.push(format!("{program} is missing; some programs call it")),
        }
    }
    // In a self-test, the kernel reads this file into pages that the program may not write.
    packed.files.insert("etc/passwd".into(), PASSWD.into());
    Ok(packed)
}

impl ProgramImage {
    /// Adds the `mkfs` that `fresh on TYPE` needs.
    fn add_mkfs(&mut self, program: &Program) -> anyhow::Result<()> {
        let [_, on, kind, ..] = program.command.as_slice() else {
            return Ok(());
        };
        if on == "on" {
            let name = format!("mkfs.{kind}");
            let places = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(&name));
            match places.iter().find(|file| file.is_file()) {
                Some(file) => self.add(&format!("/sbin/{name}"), file)?,
                None => self.skipped.push(format!(
                    "{name} is missing: e2fsprogs, xfsprogs, btrfs-progs, dosfstools, f2fs-tools, bcachefs-tools and \
                     util-linux have such programs"
                )),
            }
        }
        Ok(())
    }

    fn add_selftests(&mut self, folder: &Path, selftests: Vec<Program>) -> anyhow::Result<()> {
        for program in selftests {
            let place = &program.command[0];
            let file = folder.join(place.trim_start_matches("/selftests/"));
            if file.is_file() {
                self.add(place, &file)?;
                self.programs.push(program);
            } else {
                self.skipped.push(format!("{}: was not built", program.name));
            }
        }
        Ok(())
    }

    /// Adds a program with everything that its loader needs.
    fn add(&mut self, place: &str, program: &Path) -> anyhow::Result<()> {
        if !self.add_file(place, program)? {
            return Ok(());
        }
        let output = Command::new("ldd").arg(program).output().context("starting ldd")?;
        let text = String::from_utf8_lossy(&output.stdout);
        // If a thread is cancelled, the C library opens this library by itself.
        let unwinder = libraries(&text)
            .find(|library| library.ends_with("/libc.so.6"))
            .map(|library| library.replace("libc.so.6", "libgcc_s.so.1"))
            .filter(|library| Path::new(library).is_file());
        for library in libraries(&text).chain(unwinder.as_deref()) {
            self.add_file(library, Path::new(library))?;
        }
        Ok(())
    }

    /// Adds a file, and returns whether it is new.
    fn add_file(&mut self, place: &str, file: &Path) -> anyhow::Result<bool> {
        let place = place.trim_start_matches('/');
        if self.files.contains_key(place) {
            return Ok(false);
        }
        let content = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        self.files.insert(place.into(), content);
        Ok(true)
    }
}

fn read(text: &str) -> anyhow::Result<List> {
    let list: List = toml::from_str(text)?;
    for entry in list.own.iter().chain(&list.selftest).chain(&list.stressor) {
        if entry.run.is_empty() {
            bail!("an entry names no program to run");
        }
    }
    Ok(list)
}

/// Returns the files in the output of `ldd`.
fn libraries(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

/// Compiles one of our programs with the compiler that builds Linux, and returns its path.
fn compile(_: &Lock, name: &str) -> anyhow::Result<PathBuf> {
    let folder = directory().join("programs");
    std::fs::create_dir_all(&folder)?;
    let built = folder.join(name);
    run(Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&built)
        .arg(integration().join(format!("programs/{name}.c"))))
    .context("compiling it")?;
    Ok(built)
}

/// Builds the self-tests of memory management and returns their folder.
///
/// Their build writes a file into its source tree, so we build them in a copy.
fn build(lock: &Lock) -> anyhow::Result<PathBuf> {
    let missing = missing(&LIBRARIES);
    if !missing.is_empty() {
        bail!("missing Debian packages: {}", missing.join(" "));
    }
    let source = directory().join("tree-of-selftests");
    tree::link(&tree::fetch(lock)?, &source)?;
    let source = source.canonicalize()?;
    let folder = directory().join("selftests");
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let headers = headers(lock, &source)?;
    run(Command::new("make")
        .current_dir(source.join("tools/testing/selftests/mm"))
        .env_remove("MAKEFLAGS")
        // We leave out a program that doesn't build, and report it.
        .args(["-k", "-s", "-i"])
        .arg(format!("OUTPUT={}", folder.display()))
        .arg(format!("KHDR_INCLUDES=-isystem {}", headers.display()))
        // khugepaged.c of 6.12.117 uses a constant of this header without including it.
        .arg("EXTRA_CFLAGS=-w -include ../kselftest.h")
        .stdout(std::process::Stdio::null()))
    .context("building Linux's self-tests")?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_read_and_names_each_program_once() {
        let text = std::fs::read_to_string(integration().join("soak.toml")).unwrap();
        let list = read(&text).unwrap();
        let programs: Vec<Program> = list
            .selftest
            .iter()
            .map(|entry| entry.of("selftests"))
            .chain(list.own.iter().map(|entry| entry.of("own")))
            .chain(list.stressor.iter().map(|entry| entry.stressor(10)))
            .collect();
        assert!(programs.len() > 80);
        let mut names: Vec<_> = programs.iter().map(|program| &program.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), programs.len());
    }

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f2a)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2b)\n\tlibgone.so => not found\n";
        let found: Vec<_> = libraries(text).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
