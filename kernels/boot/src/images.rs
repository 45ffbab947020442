//! The images that an emulator loads: built on demand, or taken from a directory.

use crate::arch::Arch;
use crate::usage::{self, UsageError};
use crate::{attached, files, toolchain};
use elf::{ElfBytes, abi, endian::LittleEndian, segment::ProgramHeader};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The images to start: kernel and user program.
#[derive(Clone, Debug)]
pub struct Images {
    /// The file that QEMU loads as the kernel.
    pub kernel: PathBuf,
    /// The file that QEMU loads as the initial RAM disk.
    pub program: PathBuf,
}

/// Builds the kernel for an architecture, or takes it from a directory. With `mutants`, the kernel can make mistakes on
/// purpose.
///
/// # Errors
/// If no toolchain can build the kernel, the build fails, or the directory lacks a file.
pub fn prepare(arch: Arch, built: Option<&Path>, mutants: bool) -> anyhow::Result<Images> {
    let directory = match built {
        Some(directory) => directory.to_path_buf(),
        None => toolchain::build(arch, mutants)?,
    };
    let (kernel, program) = (directory.join("quell-kernel"), directory.join("quell-user"));
    for file in [&kernel, &program] {
        if !file.is_file() {
            return Err(UsageError::unfit(file, "missing; leave out --kernel to build it").into());
        }
    }
    let kernel = match arch {
        Arch::X86_64 | Arch::Riscv64 => kernel,
        // For this architecture, QEMU passes the device tree only to flat images.
        Arch::Aarch64 => flat_image(&kernel)?,
    };
    Ok(Images { kernel, program })
}

impl Images {
    /// Returns the ELF file of a kernel from [`prepare`], which has its symbols. The flat image is beside it.
    pub fn elf(&self) -> PathBuf {
        self.kernel.with_extension("")
    }

    /// Returns the images with a workload file, which the kernel then runs. The file is appended to a copy of the user
    /// program. `name` is the workload's.
    ///
    /// # Errors
    /// If the program can't be read, or the copy can't be written.
    pub fn with_file(&self, name: &str, text: &str) -> anyhow::Result<Images> {
        let mut program = usage::read(&self.program)?;
        program.extend(attached::ending(text));
        // Another run of the command may boot a file with the same name.
        let mut hasher = DefaultHasher::new();
        program.hash(&mut hasher);
        let place = format!("quell-user-{name}-{:016x}", hasher.finish());
        let place = self.program.with_file_name(place);
        files::replace(&place, &program)?;
        Ok(Images { kernel: self.kernel.clone(), program: place })
    }
}

/// Writes the memory image of a kernel's ELF file beside it and returns its path.
///
/// The image contains zeros for memory that the file leaves uninitialized.
///
/// # Errors
/// If the file can't be read, isn't an ELF file with segments ([`UsageError`]), or the image can't be written.
fn flat_image(kernel: &Path) -> anyhow::Result<PathBuf> {
    let bytes = usage::read(kernel)?;
    let image =
        flattened(&bytes).ok_or_else(|| UsageError::unfit(kernel, "not a kernel's ELF file"))?;
    let flat = kernel.with_extension("img");
    files::replace(&flat, &image)?;
    Ok(flat)
}

/// The largest image in memory. The machine has little more.
const LARGEST: u64 = 1 << 30;

/// Returns the memory image of an ELF file, from its first address to its last, or `None` if it isn't one.
fn flattened(bytes: &[u8]) -> Option<Vec<u8>> {
    let file = ElfBytes::<LittleEndian>::minimal_parse(bytes).ok()?;
    let all = file.segments()?;
    let loaded = || {
        let loaded =
            |segment: &ProgramHeader| segment.p_type == abi::PT_LOAD && segment.p_memsz > 0;
        all.iter().filter(loaded)
    };
    let start = loaded().map(|segment| segment.p_vaddr).min()?;
    let mut end = start;
    for segment in loaded() {
        end = end.max(segment.p_vaddr.checked_add(segment.p_memsz)?);
    }
    let length = Some(end - start).filter(|&length| length <= LARGEST)?;
    let mut image = vec![0; usize::try_from(length).ok()?];
    for segment in loaded() {
        let data = file.segment_data(&segment).ok()?;
        let at = usize::try_from(segment.p_vaddr - start).ok()?;
        image.get_mut(at..)?.get_mut(..data.len())?.copy_from_slice(data);
    }
    Some(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_text_behind_a_file_is_found_and_nothing_else_is(
            file in proptest::collection::vec(any::<u8>(), 0..200),
            text in ".{0,80}",
        ) {
            let mut both = file.clone();
            both.extend(attached::ending(&text));
            prop_assert_eq!(attached::text(&both), Some(text.as_str()));
            prop_assert_eq!(attached::text(&both[..both.len() - 1]), None);
            // The length reaches beyond the beginning of the file.
            let tail = both.split_off(both.len().saturating_sub(16));
            if !text.is_empty() {
                prop_assert_eq!(attached::text(&tail), None);
            }
        }
    }
}
