//! Reads the kernel's functions from `/proc/kallsyms`.

use super::table::Table;

/// Reads the kernel's functions.
///
/// # Errors
///
/// If the file can't be read, or the kernel hides the addresses from us. The text is a sentence.
pub(super) fn read() -> Result<Table, String> {
    let text = std::fs::read_to_string("/proc/kallsyms")
        .map_err(|error| format!("/proc/kallsyms: {error}"))?;
    parse(&text).ok_or_else(|| {
        "/proc/kallsyms shows no addresses; root sees them, unless kernel.kptr_restrict is 2"
            .to_owned()
    })
}

/// Parses the functions in a text. Returns `None` if no function has an address.
fn parse(text: &str) -> Option<Table> {
    let mut table = Table::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if let (Ok(address @ 1..), "t" | "T" | "w" | "W") = (u64::from_str_radix(address, 16), kind)
        {
            table.add(address, 0, name);
        }
    }
    (table.len() > 0).then_some(table)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn functions_are_found_and_hidden_addresses_told() {
        let text = "ffffffff81000000 T _text\nffffffff81000100 d data\nffffffff81000200 t flush_tlb_func\t[mod]\n";
        let mut table = parse(text).unwrap();
        assert_eq!(table.name(0xffff_ffff_8100_0150).as_deref(), Some("_text"));
        assert_eq!(table.name(0xffff_ffff_8100_0204).as_deref(), Some("flush_tlb_func"));
        assert!(parse("0000000000000000 T _text\n").is_none());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([0-9a-f]{0,17} [tTdx]? ?\\PC{0,8}\n){0,8}", address: u64) {
            if let Some(mut table) = parse(&text) {
                table.name(address);
            }
        }
    }
}
