//! Functions by their addresses.

use std::sync::Arc;

/// A function: where it begins and ends, and where its name stands.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    end: u64,
    name: (u32, u32),
}

/// Functions in the order of their addresses. Names are kept in one text, because a kernel has two hundred thousand and
/// a recording asks for a hundred; those that were asked for are kept demangled.
#[derive(Debug, Default)]
pub(super) struct Table {
    functions: Vec<Function>,
    text: String,
    asked: std::collections::HashMap<u32, Arc<str>>,
    sorted: bool,
}

impl Table {
    /// Adds a function of `size` bytes; 0 if it reaches to the next one. Names beyond 4 GiB of them are left out.
    pub(super) fn add(&mut self, start: u64, size: u64, name: &str) {
        let at = self.text.len() as u64;
        let (Ok(at), Ok(length)) = (u32::try_from(at), u32::try_from(name.len())) else {
            return;
        };
        self.text.push_str(name);
        let end = start.saturating_add(size);
        self.functions.push(Function {
            start,
            end,
            name: (at, length),
        });
        self.sorted = false;
    }

    /// How many functions there are.
    pub(super) fn len(&self) -> usize {
        self.functions.len()
    }

    /// Where the function of this name begins, the first of its kind.
    pub(super) fn address(&self, name: &str) -> Option<u64> {
        let named = |function: &&Function| {
            let (at, length) = function.name;
            &self.text[at as usize..][..length as usize] == name
        };
        self.functions.iter().find(named).map(|found| found.start)
    }

    /// The name of the function at this address. Where several begin at one place, the one that was added last.
    pub(super) fn name(&mut self, address: u64) -> Option<Arc<str>> {
        if !self.sorted {
            self.functions.sort_by_key(|function| function.start);
            self.sorted = true;
        }
        let behind = self
            .functions
            .partition_point(|function| function.start <= address);
        // A function may lie inside another, or an empty label behind its begin: a few steps back find the outer one.
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

/// The name as it stands in the source, of Rust and C++.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    // Names longer than this are no program's, and demangling them may take long.
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
        assert_eq!(
            table.name(0x150).as_deref(),
            Some("outer"),
            "behind what lies inside it"
        );
        assert_eq!(table.name(0x180), None);
        assert_eq!(table.name(0x208).as_deref(), Some("std::io::stdio::_print"));
        assert_eq!(table.name(0x210), None);
        assert_eq!(table.name(0xfff).as_deref(), Some("open"));
        assert_eq!(demangled("_ZN4leaf3runEi"), "leaf::run(int)");
        assert_eq!(demangled("madvise"), "madvise");
    }
}
