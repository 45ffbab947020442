//! What an emulator loads: built on demand, or taken from a directory.

use crate::arch::Arch;
use crate::toolchain;
use anyhow::{Context, bail};
use elf::{ElfBytes, abi, endian::LittleEndian};
use std::path::{Path, PathBuf};

/// What can be started: the kernel's image and the user program.
#[derive(Clone, Debug)]
pub struct Images {
    /// What QEMU loads as the kernel.
    pub kernel: PathBuf,
    /// What it loads as the initial RAM disk.
    pub program: PathBuf,
}

/// Builds the kernel for an architecture, or takes it from a directory. With `mutants`, one that can
/// make mistakes on purpose.
///
/// # Errors
/// If no toolchain can build it, the build fails, or the directory lacks a file.
pub fn prepare(arch: Arch, built: Option<&Path>, mutants: bool) -> anyhow::Result<Images> {
    let directory = match built {
        Some(directory) => directory.to_path_buf(),
        None => toolchain::build(arch, mutants)?,
    };
    let (kernel, program) = (directory.join("quell-kernel"), directory.join("quell-user"));
    for file in [&kernel, &program] {
        if !file.is_file() {
            bail!(
                "{} is missing; leave --kernel out to build it",
                file.display()
            );
        }
    }
    let kernel = match arch {
        Arch::X86_64 => kernel,
        // QEMU passes the device tree only to flat images.
        Arch::Aarch64 => flat_image(&kernel)?,
    };
    Ok(Images { kernel, program })
}

/// Writes the memory image of a kernel's ELF file beside it and returns its path.
///
/// Memory that the file leaves to be zeroed is in the image as zeros.
///
/// # Errors
/// If the file cannot be read, is no ELF file with segments, or the image cannot be written.
fn flat_image(kernel: &Path) -> anyhow::Result<PathBuf> {
    let bytes = std::fs::read(kernel).with_context(|| format!("reading {}", kernel.display()))?;
    let wrong = || format!("{} is not a kernel", kernel.display());
    let file = ElfBytes::<LittleEndian>::minimal_parse(&bytes).with_context(wrong)?;
    let loaded: Vec<_> = file
        .segments()
        .with_context(wrong)?
        .iter()
        .filter(|segment| segment.p_type == abi::PT_LOAD && segment.p_memsz > 0)
        .collect();
    let start = loaded
        .iter()
        .map(|segment| segment.p_vaddr)
        .min()
        .with_context(wrong)?;
    let end = loaded
        .iter()
        .map(|s| s.p_vaddr + s.p_memsz)
        .max()
        .with_context(wrong)?;
    let mut image = vec![0; usize::try_from(end - start).with_context(wrong)?];
    for segment in &loaded {
        let data = file.segment_data(segment).with_context(wrong)?;
        let at = (segment.p_vaddr - start) as usize;
        image[at..at + data.len()].copy_from_slice(data);
    }
    let flat = kernel.with_extension("img");
    std::fs::write(&flat, image).with_context(|| format!("writing {}", flat.display()))?;
    Ok(flat)
}
