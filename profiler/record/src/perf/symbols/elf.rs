//! Reads the functions of ELF files, by offset in the file.
//!
//! A stack contains addresses in memory. The recording contains the mappings, so we look functions up by their offset
//! in the file. The file's segments convert the offset to the address that its symbols use.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

use super::table::Table;

pub(super) struct Functions {
    segments: Segments,
    table: Table,
}

/// The mapped parts of a file: the range in the file, and the address that its symbols use.
pub(crate) type Segments = Vec<(Range<u64>, u64)>;

/// Returns the mapped parts of a file.
pub(crate) fn segments<'d>(file: &object::File<'d, impl ReadRef<'d>>) -> Segments {
    let segments = file.segments().map(|segment| {
        let (offset, bytes) = segment.file_range();
        (offset..offset.saturating_add(bytes), segment.address())
    });
    segments.collect()
}

impl Functions {
    /// Returns whether the file names no function, because it was stripped.
    pub(super) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Returns the function at this offset of the file.
    pub(super) fn name(&mut self, offset: u64) -> Option<Arc<str>> {
        let (part, address) = self.segments.iter().find(|(part, _)| part.contains(&offset))?;
        self.table.name(address.wrapping_add(offset - part.start))
    }
}

/// Reads a file's functions. If the file was stripped, uses its debug file, if that's installed.
pub(super) fn read(path: &Path) -> Result<Functions, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Err("not a regular file".to_owned());
    }
    // We read the file piece by piece instead of mapping it. If it shrinks meanwhile, we get an error and not a signal.
    let cache = ReadCache::new(file);
    let mut functions = parse(&cache)?;
    if let Some(debug) = debug_file(&cache)
        && let Ok(file) = File::open(&debug)
        && let Ok(more) = parse(&ReadCache::new(file))
        && more.table.len() > functions.table.len()
    {
        functions.table = more.table;
    }
    Ok(functions)
}

/// Parses the symbol tables of a file.
fn parse<'d>(data: impl ReadRef<'d>) -> Result<Functions, String> {
    let file = object::File::parse(data).map_err(|error| error.to_string())?;
    let mut table = Table::default();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        // Labels in assembly code have no type. We use those that have a name and are in code.
        if symbol.kind() == SymbolKind::Text
            && symbol.is_definition()
            && let Ok(name) = symbol.name()
            && !name.is_empty()
        {
            table.add(symbol.address(), symbol.size(), name);
        }
    }
    Ok(Functions { segments: segments(&file), table })
}

/// Returns the path at which distributions install a file's debug symbols.
fn debug_file<'d>(data: impl ReadRef<'d>) -> Option<PathBuf> {
    let file = object::File::parse(data).ok()?;
    let id = file.build_id().ok()??;
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug").into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a small ELF file with one segment and one function.
    fn image() -> Vec<u8> {
        use object::write::{Object, StandardSection, Symbol, SymbolSection};
        use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolScope};
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = object.section_id(StandardSection::Text);
        object.append_section_data(text, &[0xc3; 64], 16);
        object.add_symbol(Symbol {
            name: b"leaf".to_vec(),
            value: 16,
            size: 16,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        });
        object.write().unwrap()
    }

    #[inline(never)]
    fn known_function() -> usize {
        std::hint::black_box(known_function as *const () as usize)
    }

    #[test]
    fn a_function_of_this_program_is_found_by_its_place_in_the_file() {
        let address = known_function() as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let offset = maps.lines().find_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let (start, end) = words[0].split_once('-')?;
            let hex = |digits| u64::from_str_radix(digits, 16).unwrap();
            (hex(start)..hex(end)).contains(&address).then(|| address - hex(start) + hex(words[2]))
        });
        let mut functions = read(&std::env::current_exe().unwrap()).unwrap();
        let name = functions.name(offset.unwrap()).unwrap();
        assert!(name.contains("known_function"), "{name}");
    }

    #[test]
    fn what_is_no_elf_file_is_told() {
        let Err(why) = read(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path())
        else {
            panic!("a text was taken for a program");
        };
        assert!(why.contains("file"), "{why}");
        assert!(read(Path::new("/dev/null")).is_err());
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
            cut in any::<prop::sample::Index>(),
            cut_it: bool,
            offset: u64,
        ) {
            let mut bytes = image();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if cut_it {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Ok(mut functions) = parse(&bytes[..]) {
                functions.name(offset);
                functions.table.name(offset % 128);
            }
        }
    }
}
