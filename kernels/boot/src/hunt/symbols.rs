//! Names of functions in a kernel: from its ELF file, or from a `System.map`.

use anyhow::{Context, bail};
use elf::{ElfBytes, abi, endian::LittleEndian};
use std::ops::Range;
use std::path::Path;

/// A kernel's functions, by address.
#[derive(Default, Debug)]
pub struct Symbols(Vec<(u64, String)>);

/// A function reaches no farther than this from its symbol; beyond the last symbol is no code.
const LONGEST: u64 = 64 << 10;

impl Symbols {
    /// Reads a file: ELF with symbols, or lines of `address type name`.
    ///
    /// # Errors
    /// If it cannot be read or is neither.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let about = std::fs::metadata(file).with_context(|| file.display().to_string())?;
        if !about.is_file() {
            bail!(
                "{}: not a regular file: expected an ELF file with symbols, or a System.map",
                file.display()
            );
        }
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        let mut functions = if bytes.starts_with(b"\x7fELF") {
            of_elf(&bytes).with_context(|| file.display().to_string())?
        } else {
            of_map(&String::from_utf8_lossy(&bytes))
        };
        if functions.is_empty() {
            bail!(
                "{}: contains no functions: expected an ELF file with symbols, or a System.map",
                file.display()
            );
        }
        functions.sort();
        Ok(Symbols(functions))
    }

    /// Returns functions with these addresses and names.
    #[cfg(test)]
    pub(super) fn of<const N: usize>(functions: [(u64, String); N]) -> Self {
        Symbols(functions.into())
    }

    /// Returns the function that contains an address, and the offset in it.
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        let (start, name) = self.0.get(after.checked_sub(1)?)?;
        let offset = address - start;
        (offset < LONGEST && (after < self.0.len() || offset < 4096)).then_some((name, offset))
    }

    /// Returns the addresses of the function of this name. The compiler may have added a suffix (`name.isra.0`).
    ///
    /// # Errors
    /// If no function, or more than one, has this name.
    pub fn range(&self, name: &str) -> Result<Range<u64>, String> {
        let is_part = |of: &str| of.contains(".cold") || of.contains(".part.");
        let has_name = |of: &str| of == name || of.split('.').next() == Some(name) && !is_part(of);
        let mut all = (0..self.0.len()).filter(|&at| has_name(&self.0[at].1));
        let first = all.next().ok_or_else(|| format!("no function is called {name}"))?;
        if all.next().is_some() {
            return Err(format!("several functions are called {name}"));
        }
        let start = self.0[first].0;
        let mut later = self.0[first..].iter().map(|(at, _)| *at);
        Ok(start..later.find(|&at| at > start).unwrap_or(start + LONGEST))
    }

    /// Returns an address with its function's name, if there is one.
    pub fn show(&self, address: u64) -> String {
        match self.find(address) {
            Some((name, offset)) => format!("{address:#x} {name}+{offset:#x}"),
            None => format!("{address:#x}"),
        }
    }
}

fn of_elf(bytes: &[u8]) -> anyhow::Result<Vec<(u64, String)>> {
    let file = ElfBytes::<LittleEndian>::minimal_parse(bytes)?;
    let mut functions = Vec::new();
    let (Some((symbols, names)), Some(sections)) = (file.symbol_table()?, file.section_headers())
    else {
        return Ok(functions);
    };
    for symbol in symbols {
        // Assembly labels have no type. Constants of assembly have none, either, but are in no section.
        let section = sections.get(symbol.st_shndx.into());
        let code = matches!(symbol.st_symtype(), abi::STT_FUNC | abi::STT_NOTYPE)
            && section.is_ok_and(|section| section.sh_flags & u64::from(abi::SHF_EXECINSTR) != 0);
        let name = names.get(symbol.st_name as usize).unwrap_or_default();
        if code && !name.is_empty() && !name.starts_with('.') {
            let name = format!("{:#}", rustc_demangle::demangle(name));
            functions.push((symbol.st_value, name));
        }
    }
    Ok(functions)
}

fn of_map(text: &str) -> Vec<(u64, String)> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
        let name = words.next()?.to_string();
        is_code.then_some((address, name))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_map_contain_their_addresses_and_data_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("map");
        std::fs::write(&file, "1000 T first\n1100 t second\n1180 D data\n9000 T last\n").unwrap();
        let symbols = Symbols::read(&file).unwrap();
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x10ff), Some(("first", 0xff)));
        assert_eq!(symbols.find(0x1100), Some(("second", 0)));
        assert_eq!(symbols.find(0x9000 + 4096), None);
        assert_eq!(symbols.show(0x1104), "0x1104 second+0x4");
        assert_eq!(symbols.range("first"), Ok(0x1000..0x1100));
        assert!(symbols.range("data").is_err());
        std::fs::write(&file, "10 t f\n20 t f.isra.0\n30 t g.constprop.0\n40 t h.cold\n").unwrap();
        let symbols = Symbols::read(&file).unwrap();
        assert_eq!(symbols.range("g"), Ok(0x30..0x40));
        assert!(symbols.range("f").is_err_and(|why| why.contains("several")));
        assert!(symbols.range("h").is_err());
        let device = Symbols::read(Path::new("/dev/zero"));
        assert!(device.unwrap_err().to_string().contains("regular file"));
        std::fs::write(&file, "not a map").unwrap();
        let error = Symbols::read(&file).unwrap_err().to_string();
        assert!(error.contains("System.map"), "{error}");
    }

    #[test]
    fn functions_of_this_test_have_names_and_its_data_has_none() {
        let symbols = Symbols::read(&std::env::current_exe().unwrap()).unwrap();
        let has = |wanted: &str| symbols.0.iter().any(|(_, name)| name.contains(wanted));
        assert!(has("functions_of_this_test_have_names"));
        // The compiler's tables have labels, too.
        assert!(!has("GCC_except_table"));
    }
}
