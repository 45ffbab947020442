//! A table of functions by address.

use std::sync::Arc;

/// A function: its range, and the position and length of its name in the text.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    end: u64,
    name: (u32, u32),
}

/// Functions in the order of their addresses.
///
/// A kernel has two hundred thousand functions, and a recording needs about a hundred. So all names are in one text,
/// and only those that were looked up are kept demangled.
#[derive(Debug, Default)]
pub(super) struct Table {
    functions: Vec<Function>,
    text: String,
    asked: std::collections::HashMap<u32, Arc<str>>,
    sorted: bool,
}

impl Table {
    /// Adds a function of `size` bytes. With size 0 it reaches to the next function.
    ///
    /// Names beyond 4 GiB in total are dropped.
    pub(super) fn add(&mut self, start: u64, size: u64, name: &str) {
        let at = self.text.len() as u64;
        let (Ok(at), Ok(length)) = (u32::try_from(at), u32::try_from(name.len())) else {
            return;
        };
        self.text.push_str(name);
        let end = start.saturating_add(size);
        self.functions.push(Function { start, end, name: (at, length) });
        self.sorted = false;
    }

    /// Returns the number of functions.
    pub(super) fn len(&self) -> usize {
        self.functions.len()
    }

    /// Returns the start of the first function of this name.
    pub(super) fn address(&self, name: &str) -> Option<u64> {
        let named = |function: &&Function| {
            let (at, length) = function.name;
            &self.text[at as usize..][..length as usize] == name
        };
        self.functions.iter().find(named).map(|found| found.start)
    }

    /// Returns the name of the function at this address. If several begin there, the last one added counts.
    pub(super) fn name(&mut self, address: u64) -> Option<Arc<str>> {
        if !self.sorted {
            self.functions.sort_by_key(|function| function.start);
            self.sorted = true;
        }
        let behind = self.functions.partition_point(|function| function.start <= address);
        // An address may be behind a function that lies inside another, or behind an empty label. A few steps back find
        // the outer function.
        let mut near = self.functions[..behind].iter().rev().take(4);
        let first = near.next()?;
        let covers = |function: &Function| address < function.end;
        let open = first.end == first.start;
        let found = if open || covers(first) {
            Some(first)
        } else {
            near.find(|function| covers(function))
        };
        let (at, length) = found?.name;
        let text = &self.text;
        let name = self
            .asked
            .entry(at)
            .or_insert_with(|| demangled(&text[at as usize..][..length as usize]).into());
        Some(name.clone())
    }
}

fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    // No program has longer names, and demangling them may take long.
    if name.starts_with("_Z")
        && name.len() < 4096
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && let Ok(cpp) = symbol.demangle()
    {
        return cpp;
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_covers_an_address_is_found() {
        let mut table = Table::default();
        table.add(0x200, 0x10, "_ZN3std2io5stdio6_print17h0123456789abcdefE");
        table.add(0x100, 0x80, "outer");
        table.add(0x140, 0x10, "inner");
        table.add(0x300, 0, "open");
        assert_eq!(table.name(0xff), None);
        assert_eq!(table.name(0x120).as_deref(), Some("outer"));
        assert_eq!(table.name(0x14f).as_deref(), Some("inner"));
        assert_eq!(table.name(0x150).as_deref(), Some("outer"), "behind what lies inside it");
        assert_eq!(table.name(0x180), None);
        assert_eq!(table.name(0x208).as_deref(), Some("std::io::stdio::_print"));
        assert_eq!(table.name(0x210), None);
        assert_eq!(table.name(0xfff).as_deref(), Some("open"));
        assert_eq!(demangled("_ZN4leaf3runEi"), "leaf::run(int)");
        assert_eq!(demangled("madvise"), "madvise");
    }
}
