//! Builds the engine as an object that Linux links, and the kernels: stock, and with the engine.
//!
//! Both have the same source, timestamp and configuration except `CONFIG_QUELL`, so that builds are reproducible.

use super::series;
use super::tree::{self, Lock, directory, integration};
use crate::edits::read;
use crate::toolchain::{missing, run};
use anyhow::{Context, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The required tools besides a compiler, with their Debian packages.
const TOOLS: [(&str, &str); 10] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("bc", "bc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("objcopy", "binutils"),
    ("/usr/include/libelf.h", "libelf-dev"),
    ("/usr/include/openssl/ssl.h", "libssl-dev"),
];

/// The glue's rules that `debug` and `mutants` can leave out, by name in `mm/quell_lazy.c`.
pub const RULES: [&str; 6] = [
    "LinuxFillUnflushed",
    "LinuxChangeUnflushed",
    "LinuxPendingUnseen",
    "LinuxFrameUnclaimed",
    "LinuxNmiUnasked",
    "LinuxAnyFileSystem",
];

/// A kernel to build.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Flavour {
    /// As the source is
    Stock,
    /// With the engine in it
    Quell,
    /// With the engine in it, and with Linux's own checks of memory management and locks
    Debug,
    /// With the engine, whose rules can be left out
    Mutants,
    /// With the engine in it, and with Linux's check of each access to its own memory (KASAN)
    Kasan,
    /// With the series of patches in C, without the engine
    Series,
    /// With the series, but without so many of its last patches.
    #[value(skip)]
    SeriesWithout(usize),
}

impl Flavour {
    /// Returns the flavour's name, which is also its build folder's.
    pub const fn name(self) -> &'static str {
        match self {
            Flavour::Stock => "stock",
            Flavour::Quell => "quell",
            Flavour::Debug => "debug",
            Flavour::Mutants => "mutants",
            Flavour::Kasan => "kasan",
            Flavour::Series | Flavour::SeriesWithout(_) => "series",
        }
    }

    /// Returns whether this kernel contains the engine.
    pub const fn has_engine(self) -> bool {
        !matches!(self, Flavour::Stock | Flavour::Series | Flavour::SeriesWithout(_))
    }

    /// Returns whether this kernel can leave out rules of the engine and of the glue.
    pub const fn forgets(self) -> bool {
        matches!(self, Flavour::Debug | Flavour::Mutants)
    }

    /// Returns the path of the kernel's image.
    pub fn image(self) -> PathBuf {
        directory().join(self.name()).join("arch/x86/boot/bzImage")
    }

    /// Returns the path of the image, which must be there.
    pub(super) fn built(self) -> anyhow::Result<PathBuf> {
        let image = self.image();
        if !image.is_file() {
            bail!("{} is missing: `build {}` makes it", image.display(), self.name());
        }
        Ok(image)
    }

    /// Returns the word for Linux's command line that leaves out a rule of the engine or of the glue.
    pub(super) fn forget(self, rule: Option<&str>) -> anyhow::Result<Option<String>> {
        let Some(rule) = rule else {
            return Ok(None);
        };
        if !self.forgets() {
            bail!(
                "--forget needs the kernel `debug` or `mutants`: the others have all rules compiled in"
            );
        }
        if quell_mutants::list::named(rule).is_none() && !RULES.contains(&rule) {
            bail!(
                "no rule `{rule}`: `quell explore --list` lists the engine's, and the glue's are {}",
                RULES.join(", ")
            );
        }
        Ok(Some(format!("quell_forget={rule}")))
    }

    /// Returns the fragments to merge into the smallest configuration.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Flavour::Stock | Flavour::Series | Flavour::SeriesWithout(_) => &["kernel.config"],
            Flavour::Quell => &["kernel.config", "quell.config"],
            Flavour::Mutants => &["kernel.config", "quell.config", "mutants.config"],
            Flavour::Debug => &["kernel.config", "quell.config", "debug.config", "soak.config"],
            Flavour::Kasan => &["kernel.config", "quell.config", "kasan.config", "soak.config"],
        }
    }
}

/// Checks that all tools are installed.
pub fn check_tools() -> anyhow::Result<()> {
    let missing = missing(&TOOLS);
    if !missing.is_empty() {
        bail!(
            "building Linux needs these Debian packages: {} (scripts/setup-boot --linux installs them)",
            missing.join(" ")
        );
    }
    Ok(())
}

/// Builds the engine with the mechanisms that the integration uses, and returns the object. If [`Flavour::forgets`],
/// the engine includes the mutants. In `quell` it trusts the glue; in the kernels for testing the glue, it checks for
/// misuse.
pub fn engine(_: &Lock, flavour: Flavour) -> anyhow::Result<PathBuf> {
    let mut root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The build folder is separate from the libraries that tests build with other flags.
    let mut target = directory();
    let mut flags = String::from(
        "-C relocation-model=static -C code-model=kernel -C no-redzone=yes -Zplt=yes \
         -Zdirect-access-external-data=yes -C force-unwind-tables=no \
         -Zfunction-return=thunk-extern -C jump-tables=no -Zretpoline -Zretpoline-external-thunk",
    );
    if flavour.forgets() {
        quell_mutants::tree::copy(&root).context("copying the workspace with the mutants")?;
        root = quell_mutants::tree::place(&root);
        target.push("mutants");
        flags = format!("{flags} {}", quell_mutants::run::CFG);
    }
    // We start the interpreter, because files of the copy aren't executable.
    let output = Command::new("bash")
        .arg(root.join("scripts/build-c"))
        .env("CARGO_TARGET_DIR", target)
        .env("QUELL_BUILD_STD", "1")
        .env("QUELL_FEATURES", "batch,extents,tags,lazy,remote,kernel,text")
        .env("QUELL_UNCHECKED", if flavour == Flavour::Quell { "1" } else { "" })
        .env("RUSTFLAGS", flags)
        .stderr(Stdio::inherit())
        .output()
        .context("starting scripts/build-c")?;
    if !output.status.success() {
        bail!("scripts/build-c failed: scripts/setup-boot installs a compiler for it");
    }
    let folder = directory();
    std::fs::create_dir_all(&folder)?;
    let (library, object) = (folder.join("engine.a"), folder.join("engine.o"));
    std::fs::copy(String::from_utf8(output.stdout)?.trim(), &library)?;
    // Linux has its own memory functions and compiler helpers.
    let members = Command::new("ar").arg("t").arg(&library).output().context("starting ar")?;
    let members = String::from_utf8(members.stdout)?;
    run(Command::new("ar")
        .arg("d")
        .arg(&library)
        .args(members.lines().filter(|name| name.starts_with("compiler_builtins"))))?;
    let mut link = Command::new("ld");
    link.args(["-r", "--gc-sections", "-T"])
        .arg(integration().join("engine.lds"))
        .arg("-o")
        .arg(&object);
    for function in used()? {
        link.arg("-u").arg(&function).arg("-e").arg(function);
    }
    run(link.arg(&library))?;
    // Without this section, the linker would assume that the object needs an executable stack.
    run(Command::new("objcopy")
        .args(["-R", ".note.GNU-stack", "--add-section", ".note.GNU-stack=/dev/null"])
        .args(["--redefine-sym", "memcpy=quell_copy", "--redefine-sym", "memset=quell_fill"])
        .arg(&object))?;
    let text = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(&object)
        .output()
        .context("starting objdump")?;
    let text = String::from_utf8(text.stdout)?;
    if let Some(first) = unguarded(&text).next() {
        bail!(
            "{} of the engine's instructions return or branch past Linux's thunks, the first: {first}",
            unguarded(&text).count()
        );
    }
    Ok(object)
}

/// Returns the lines of a disassembly that return or branch indirectly without Linux's thunks, which contain its
/// mitigations.
fn unguarded(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| {
        let mut words = line.split_once(":\t").map_or("", |(_, rest)| rest).split_whitespace();
        let first = words.find(|word| !["bnd", "notrack", "rep", "repz"].contains(word));
        match first.unwrap_or_default() {
            "ret" | "retq" | "lret" => true,
            "jmp" | "jmpq" | "call" | "callq" => words.next().is_some_and(|to| to.starts_with('*')),
            _ => false,
        }
    })
}

/// Returns the functions of the header that our Linux files call, which make up the object.
fn used() -> anyhow::Result<Vec<String>> {
    let folder = integration().join("files/arch/x86/mm");
    let mut text = String::new();
    for file in std::fs::read_dir(&folder)? {
        text.push_str(&std::fs::read_to_string(file?.path())?);
    }
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/quell-c/include/quell.h");
    Ok(called(&std::fs::read_to_string(header)?, &text))
}

/// Returns the header's functions that a text or the header's inline functions call, except those of the machine.
fn called(header: &str, text: &str) -> Vec<String> {
    let starts = |line: &str, with: &[&str]| with.iter().any(|start| line.starts_with(start));
    let inline: Vec<&str> = header
        .lines()
        .filter(|line| line.starts_with(' ') && !starts(line.trim_start(), &["//", "*"]))
        .collect();
    let calls = [text, &inline.join("\n")].concat();
    let mut names: Vec<String> = header
        .lines()
        .filter(|line| !starts(line, &["//", "extern", "static", " "]))
        .filter_map(|line| {
            let (before, _) = line.split_once('(')?;
            let name = before.rsplit([' ', '*']).next()?;
            (name.starts_with("quell_") && before.contains(' ')).then(|| name.to_string())
        })
        .filter(|name| calls.contains(&format!("{name}(")))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Creates a command for a build of Linux that is reproducible and outside its source.
fn make(source: &Path, build: &Path) -> Command {
    let mut command = Command::new("make");
    command
        .current_dir(source)
        .env("KBUILD_BUILD_TIMESTAMP", "2026-01-01")
        .env("KBUILD_BUILD_USER", "quell")
        .env("KBUILD_BUILD_HOST", "quell")
        .env_remove("MAKEFLAGS")
        .arg("ARCH=x86_64")
        .arg(format!("O={}", build.display()));
    command
}

/// Runs a build, and shows its elapsed time and current file.
fn show(build: &mut Command, name: &str) -> anyhow::Result<()> {
    eprintln!("building Linux ({name}): takes minutes unless most of it is built already");
    let style = ProgressStyle::with_template("{spinner} {elapsed} {pos} files {wide_msg}")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    let started = build.stdout(Stdio::piped()).spawn();
    let mut child = started.context("starting make")?;
    let output = child.stdout.take().context("make has no output")?;
    for line in BufReader::new(output).lines() {
        bar.inc(1);
        bar.set_message(line?.trim().to_string());
    }
    bar.finish_and_clear();
    let status = child.wait()?;
    if !status.success() {
        bail!("make failed ({status})");
    }
    Ok(())
}

/// Installs the headers that Linux of this source exports to programs, and returns their folder.
pub fn headers(_: &Lock, source: &Path) -> anyhow::Result<PathBuf> {
    let build = directory().join("headers");
    std::fs::create_dir_all(&build)?;
    let build = build.canonicalize()?;
    run(make(source, &build).args(["-s", "headers"])).context("the headers of Linux")?;
    Ok(build.join("usr/include"))
}

/// Configures a kernel if its configuration has changed. Returns its build folder and its sources.
pub fn configure(lock: &Lock, flavour: Flavour) -> anyhow::Result<(PathBuf, PathBuf)> {
    check_tools()?;
    let source = tree::fetch(lock)?;
    let source = match flavour {
        Flavour::Stock => source,
        Flavour::Series => series::tree(&source, 0)?,
        Flavour::SeriesWithout(left_out) => series::tree(&source, left_out)?,
        Flavour::Quell | Flavour::Debug | Flavour::Mutants | Flavour::Kasan => {
            tree::with_engine(lock, &source, &engine(lock, flavour)?)?
        }
    };
    let source = source.canonicalize()?;
    let build = directory().join(flavour.name());
    std::fs::create_dir_all(&build)?;
    let build = build.canonicalize()?;
    let mut wanted = String::new();
    for fragment in flavour.fragments() {
        wanted += &read(&integration().join(fragment))?;
    }
    let merged = build.join("wanted.config");
    let same = std::fs::read_to_string(&merged).is_ok_and(|now| now == wanted);
    if same && build.join(".config").is_file() {
        return Ok((source, build));
    }
    run(make(&source, &build).args(["-s", "tinyconfig"]))?;
    std::fs::write(build.join("fragment"), &wanted)?;
    run(Command::new("scripts/kconfig/merge_config.sh")
        .current_dir(&source)
        .args(["-m", "-O"])
        .arg(&build)
        .arg(build.join(".config"))
        .arg(build.join("fragment"))
        .stdout(Stdio::null()))?;
    run(make(&source, &build).args(["-s", "olddefconfig"]))?;
    let config = std::fs::read_to_string(build.join(".config"))?;
    let lost = lost(&wanted, &config);
    if !lost.is_empty() {
        bail!("Linux's configuration lacks {}: is this Linux 6.12?", lost.join(", "));
    }
    std::fs::rename(build.join("fragment"), &merged)?;
    Ok((source, build))
}

/// Returns the requested options that a configuration lacks, and the excluded ones that it has.
fn lost<'w>(wanted: &'w str, config: &str) -> Vec<&'w str> {
    let left_out = |line: &'w str| line.strip_prefix("# ")?.strip_suffix(" is not set");
    let is_lost = |line: &&'w str| match left_out(line) {
        Some(option) => {
            let mut set = config.lines().filter_map(|line| line.split_once('='));
            set.any(|(name, _)| name == option)
        }
        None => line.starts_with("CONFIG_") && !config.lines().any(|has| has == *line),
    };
    wanted.lines().filter(is_lost).collect()
}

/// Builds a kernel and returns its image.
pub fn build(lock: &Lock, flavour: Flavour) -> anyhow::Result<PathBuf> {
    let (source, build) = configure(lock, flavour)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = make(&source, &build);
    command.arg(format!("-j{jobs}")).arg("bzImage");
    show(&mut command, flavour.name())
        .with_context(|| format!("building Linux ({})", flavour.name()))?;
    Ok(flavour.image())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_are_called_are_found() {
        let header = "// quell_not(this)\nextern void quell_hw_relax(void);\nenum quell_status quell_one(int);\n\
                      const char *quell_two(void);\nvoid quell_three(void);\n\
                      static inline void quell_four(void)\n{\n    quell_five();\n}\nvoid quell_five(void);\n";
        let text = "x = quell_one(1); quell_two(); quell_four();";
        assert_eq!(called(header, text), ["quell_five", "quell_one", "quell_two"]);
    }

    #[test]
    fn what_passes_the_thunks_is_found() {
        let text = "0000 <quell_is_flushed>:\n   0:\tmov    %rsi,%rax\n   3:\tjmp    8 <__x86_return_thunk>\n   \
                    8:\tjmp    *%rax\n   a:\tcall   *0x8(%rdi)\n   d:\tnotrack jmp *%rcx\n  10:\tret\n  11:\trepz ret\n  \
                    13:\tcall   20 <quell_panic>\n";
        let found: Vec<&str> = unguarded(text).map(|line| &line[..3]).collect();
        assert_eq!(found, ["8:\t", "a:\t", "d:\t", "10:", "11:"]);
    }

    #[test]
    fn an_option_that_linux_refuses_is_named() {
        let wanted =
            "# a comment\nCONFIG_A=y\nCONFIG_B=7\n# CONFIG_C is not set\n# CONFIG_D is not set\n";
        let config = "CONFIG_A=y\nCONFIG_B=8\n# CONFIG_C is not set\nCONFIG_D=y\nCONFIG_CC=y\n";
        let lost = lost(wanted, config);
        assert_eq!(lost, ["CONFIG_B=7", "# CONFIG_D is not set"]);
    }

    #[test]
    fn the_rules_of_the_glue_are_those_that_it_can_leave_out() {
        let file = integration().join("files/mm/quell_lazy.c");
        let text = std::fs::read_to_string(file).unwrap();
        let mut names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_once("] = \"Linux"))
            .filter_map(|(_, rest)| rest.strip_suffix("\","))
            .collect();
        names.sort();
        let mut known: Vec<&str> = RULES.iter().map(|name| &name["Linux".len()..]).collect();
        known.sort();
        assert_eq!(names, known);
    }

    #[test]
    fn the_glue_calls_the_engine() {
        let used = used().unwrap();
        for name in ["quell_switch_to", "quell_batch_finish", "quell_on_interrupt", "quell_zero"] {
            assert!(used.iter().any(|used| used == name), "{name} is not in {used:?}");
        }
        assert!(used.iter().all(|name| !name.starts_with("quell_hw_")));
    }
}
