//! Names of functions in a kernel: from its ELF file, or from a `System.map`.

use anyhow::{Context, bail};
use object::{Object as _, ObjectSymbol as _, SymbolKind};
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

    /// Returns the function that contains an address, and the offset in it.
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        let (start, name) = self.0.get(after.checked_sub(1)?)?;
        let offset = address - start;
        (offset < LONGEST && (after < self.0.len() || offset < 4096)).then_some((name, offset))
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
    let file = object::File::parse(bytes)?;
    let mut functions = Vec::new();
    for symbol in file.symbols() {
        // Assembly labels have no kind.
        let code = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label)
            || (symbol.kind() == SymbolKind::Unknown && symbol.is_definition());
        let name = symbol.name().unwrap_or_default();
        if code && !name.is_empty() && !name.starts_with('.') {
            let name = format!("{:#}", rustc_demangle::demangle(name));
            functions.push((symbol.address(), name));
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
        std::fs::write(
            &file,
            "1000 T first\n1100 t second\n1180 D data\n9000 T last\n",
        )
        .unwrap();
        let symbols = Symbols::read(&file).unwrap();
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x10ff), Some(("first", 0xff)));
        assert_eq!(symbols.find(0x1100), Some(("second", 0)));
        assert_eq!(symbols.find(0x9000 + 4096), None);
        assert_eq!(symbols.show(0x1104), "0x1104 second+0x4");
        std::fs::write(&file, "not a map").unwrap();
        let error = Symbols::read(&file).unwrap_err().to_string();
        assert!(error.contains("System.map"), "{error}");
    }

    #[test]
    fn functions_of_this_test_have_names() {
        let symbols = Symbols::read(&std::env::current_exe().unwrap()).unwrap();
        let has = |wanted: &str| symbols.0.iter().any(|(_, name)| name.contains(wanted));
        assert!(has("functions_of_this_test_have_names"));
    }
}
