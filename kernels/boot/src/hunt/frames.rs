//! Functions of a kernel that free page frames or hand them out, from a small file.
//!
//! With them, the judge knows the moment from which a frame may have a new owner.

use super::{Symbols, Target};
use anyhow::{Context, bail};
use quell_workloads::files::hint;
use serde::Deserialize;
use std::path::Path;

/// Kernels whose files are built in.
const BUILT_IN: [(&str, &str); 2] = [
    ("linux", include_str!("../../hunt/kernels/linux.toml")),
    ("linux-arm64", include_str!("../../hunt/kernels/linux-arm64.toml")),
];

/// The registers of x86-64, in the order of their numbers.
const X86_64: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Returns a register's number.
fn register(name: &str, target: Target) -> anyhow::Result<usize> {
    let (number, expected) = match target {
        Target::X86_64 => (X86_64.iter().position(|known| *known == name), "rax to r15"),
        Target::Aarch64 => ((0..31).find(|number| name == format!("x{number}")), "x0 to x30"),
    };
    number.with_context(|| format!("`{name}` is no register: expected {expected}"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FramesFile {
    frames: Vec<Entry>,
}

/// One function of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    function: String,
    /// The function's name in later versions of the kernel.
    renamed: Option<String>,
    /// Whether `frame` is read when the function returns, not at its first instruction.
    #[serde(default)]
    returns: bool,
    frame: String,
    /// The registers that have the number of frames, its logarithm, or their bytes, at the first instruction.
    count: Option<String>,
    order: Option<String>,
    size: Option<String>,
    /// The value of the first frame of memory, and the distance to the next one's.
    base: Option<String>,
    #[serde(default = "page_bytes")]
    bytes: u64,
}

fn page_bytes() -> u64 {
    4096
}

/// How a register says the number of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Frames = 0,
    Logarithm = 1,
    /// Part of a frame counts as one.
    Bytes = 2,
}

/// A function that frees frames or hands them out, as the emulated machine reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameSource {
    function: u64,
    base: u64,
    bytes: u64,
    frame: usize,
    number: usize,
    returns: bool,
    unit: Unit,
}

impl FrameSource {
    /// Reads the functions of a kernel: a built-in one, by its name, or those of a file.
    ///
    /// # Errors
    /// If there is no such file, it has a mistake, or the kernel doesn't have one of its functions.
    pub fn read(name: &str, symbols: &Symbols, target: Target) -> anyhow::Result<Vec<FrameSource>> {
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let text = match built_in {
            Some((_, text)) => (*text).to_owned(),
            None if Path::new(name).is_file() => std::fs::read_to_string(name)?,
            None => bail!("no such file or kernel{}", hint(name, BUILT_IN.map(|(known, _)| known))),
        };
        let file: FramesFile = toml::from_str(&text)?;
        if file.frames.is_empty() {
            bail!("it names no function");
        }
        let sources = file.frames.iter().map(|entry| {
            entry.source(symbols, target).with_context(|| format!("frames of {}", entry.function))
        });
        sources.collect()
    }

    /// Returns its part of the machine's setting.
    pub(crate) fn setting(&self) -> String {
        let FrameSource { function, base, bytes, frame, number, .. } = self;
        let (returns, unit) = (u8::from(self.returns), self.unit as u8);
        format!("{function:x} {base:x} {bytes:x} {frame} {number} {returns} {unit}")
    }
}

impl Entry {
    fn source(&self, symbols: &Symbols, target: Target) -> anyhow::Result<FrameSource> {
        let register = |name: &String| register(name, target);
        let given = [
            (&self.count, Unit::Frames),
            (&self.order, Unit::Logarithm),
            (&self.size, Unit::Bytes),
        ];
        let mut given = given.iter().filter_map(|(name, unit)| Some((name.as_ref()?, *unit)));
        let (Some((number, unit)), None) = (given.next(), given.next()) else {
            bail!("expected one of `count`, `order` and `size`");
        };
        let base = match &self.base {
            Some(text) => {
                let digits = text.strip_prefix("0x").unwrap_or_default();
                u64::from_str_radix(digits, 16)
                    .with_context(|| format!("base: `{text}`: expected 0x and digits"))?
            }
            None => 0,
        };
        if self.bytes == 0 {
            bail!("bytes: expected more than 0");
        }
        let named = |name: &String| symbols.range(name);
        let function = named(&self.function)
            .or_else(|why| self.renamed.as_ref().map_or(Err(why), named))
            .map_err(anyhow::Error::msg)?;
        Ok(FrameSource {
            function: function.start,
            base,
            bytes: self.bytes,
            frame: register(&self.frame)?,
            number: register(number)?,
            returns: self.returns,
            unit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(text: &str) -> Symbols {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Symbols::read(file.path()).unwrap()
    }

    #[test]
    fn a_built_in_file_becomes_the_machines_setting() {
        let kernel = |frees| {
            symbols(&format!(
                "2000 t get_page_from_freelist\n3000 t __rmqueue_pcplist\n4000 t {frees}\n5000 t free_one_page\n"
            ))
        };
        let linux = [
            "2000 ffffea0000000000 40 0 6 1 1",
            "3000 ffffea0000000000 40 0 6 1 1",
            "4000 ffffea0000000000 40 2 8 0 1",
            "5000 ffffea0000000000 40 6 1 0 1",
        ];
        for frees in ["free_unref_page_commit", "free_frozen_page_commit"] {
            let sources = FrameSource::read("linux", &kernel(frees), Target::X86_64).unwrap();
            let settings: Vec<_> = sources.iter().map(FrameSource::setting).collect();
            assert_eq!(settings, linux);
        }
    }

    #[test]
    fn the_file_for_nanos_has_sizes_in_bytes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/hunt/kernels/nanos.toml");
        let kernel = symbols("1000 t pageheap_alloc\n2000 t pageheap_dealloc\n");
        let sources = FrameSource::read(path, &kernel, Target::X86_64).unwrap();
        let settings: Vec<_> = sources.iter().map(FrameSource::setting).collect();
        assert_eq!(settings, ["1000 0 1000 0 6 1 2", "2000 0 1000 6 2 0 2"]);
    }

    #[test]
    fn the_file_for_asterinas_names_methods_of_a_trait() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/hunt/kernels/asterinas.toml");
        // As `rustc_demangle` returns them; the lines of a map are split at spaces.
        let allocator = "<osdk_frame_allocator::FrameAllocator as ostd::mm::frame::allocator::GlobalFrameAllocator>";
        let methods = [(0x1000, "alloc"), (0x2000, "dealloc")];
        let kernel = Symbols::of(methods.map(|(at, name)| (at, format!("{allocator}::{name}"))));
        let sources = FrameSource::read(path, &kernel, Target::X86_64).unwrap();
        let settings: Vec<_> = sources.iter().map(FrameSource::setting).collect();
        assert_eq!(settings, ["1000 0 1000 2 2 1 2", "2000 0 1000 6 2 0 2"]);
    }

    #[test]
    fn the_number_of_frames_has_one_of_three_units() {
        let kernel = symbols("1000 t f\n2000 t g\n");
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        for (unit, number) in [("count", 0), ("order", 1), ("size", 2)] {
            let text = format!("[[frames]]\nfunction = 'f'\nframe = 'rdi'\n{unit} = 'rsi'");
            std::fs::write(path, text).unwrap();
            let sources = FrameSource::read(path, &kernel, Target::X86_64).unwrap();
            assert_eq!(sources[0].setting(), format!("1000 0 1000 7 6 0 {number}"));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let kernel = symbols("1000 t f\n2000 t g\n");
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let wrong = |text: &str| {
            std::fs::write(path, text).unwrap();
            format!("{:#}", FrameSource::read(path, &kernel, Target::X86_64).unwrap_err())
        };
        for (text, why) in [
            ("frames = []", "it names no function"),
            (
                "[[frames]]\nfunction = 'f'\nframe = 'rdi'",
                "frames of f: expected one of `count`, `order` and `size`",
            ),
            (
                "[[frames]]\nfunction = 'f'\nframe = 'rdi'\norder = 'rsi'\nsize = 'rsi'",
                "frames of f: expected one of `count`, `order` and `size`",
            ),
            ("[[frames]]\nfunction = 'f'\nframe = 'edi'\ncount = 'rsi'", "`edi` is no register"),
            ("[[frames]]\nfunction = 'h'\nframe = 'rdi'\ncount = 'rsi'", "no function is called h"),
            ("[[frames]]\nfunction = 'f'\nframe = 'rdi'\norder = 'rsi'\nbase = '12'", "base: `12`"),
            ("[[frames]]\nfunction = 'f'\nframe = 'rdi'\norder = 'rsi'\nbytes = 0", "more than 0"),
            ("[[frames]]\nfunctions = 'f'", "functions"),
        ] {
            let said = wrong(text);
            assert!(said.contains(why), "{said}");
        }
        let said = FrameSource::read("linus", &kernel, Target::X86_64).unwrap_err().to_string();
        assert!(said.contains("did you mean `linux`?"), "{said}");
    }
}
