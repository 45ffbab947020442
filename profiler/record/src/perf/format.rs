//! Parses the `format` file of a tracepoint, and decodes records by it.
//!
//! The kernel describes each tracepoint in a text file. It has the name and number, then a line for each field with its
//! C declaration, offset and size, then the format string by which tracefs prints it. We need the string because only
//! its conversions show that an address is a function (`%ps`). A number that the string prints by name stays a number.
//!
//! No text and no record causes a panic. We leave out fields that we can't parse. A record that is too short ends with
//! its last complete field.

use std::sync::Arc;

use crate::perf::sample::{NameTable, Value};

/// The layout of one tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The number that identifies it in records.
    pub id: u64,
    /// Its own fields, without those that all tracepoints share.
    pub fields: Vec<Field>,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: Arc<str>,
    /// Its offset in the record, in bytes.
    offset: usize,
    /// Its size in bytes.
    size: usize,
    /// The type of its content.
    kind: Kind,
}

/// The type of a field's content.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A number, which may be negative.
    Number { signed: bool },
    /// The address of a kernel function.
    Function,
    /// Text inside the fixed part, up to the first zero.
    Text,
    /// Bytes inside the fixed part.
    Bytes,
    /// A word with the offset of the data from the record's start. If `relative`, from the word's end.
    Elsewhere { relative: bool, text: bool },
}

/// The largest number of bytes of an array to decode.
const MOST_BYTES: usize = 64;

impl Format {
    /// Parses a `format` file. Returns `None` if it has no number.
    pub fn parse(text: &str, names: &mut NameTable) -> Option<Self> {
        let mut id = None;
        let mut fields = Vec::new();
        let mut print = "";
        for line in text.lines() {
            let line = line.trim();
            if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if let Some(field) = line.strip_prefix("field:") {
                fields.extend(field_of(field, names).filter(|f| !f.name.starts_with("common_")));
            } else if let Some(rest) = line.strip_prefix("print fmt:") {
                print = rest;
            }
        }
        for (conversion, argument) in arguments(print) {
            let Some(name) = referred(argument) else {
                continue;
            };
            let Some(field) = fields.iter_mut().find(|field| &*field.name == name) else {
                continue;
            };
            if matches!(conversion.as_str(), "ps" | "pS" | "pf" | "pF") && field.size == 8 {
                field.kind = Kind::Function;
            }
        }
        Some(Self { id: id?, fields })
    }

    /// Decodes the fields of a record. `function` returns the name of the kernel function at an address.
    pub fn decode(
        &self,
        record: &[u8],
        names: &mut NameTable,
        mut function: impl FnMut(u64) -> Option<Arc<str>>,
    ) -> Vec<(Arc<str>, Value)> {
        let mut values = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let Some(bytes) = part(record, field.offset, field.size) else {
                break;
            };
            let value = match &field.kind {
                Kind::Number { signed } => number(bytes, *signed),
                Kind::Function => number(bytes, false).map(|value| {
                    let name = value.number().and_then(&mut function);
                    name.map_or(value, Value::Text)
                }),
                Kind::Text => Some(Value::Text(names.get(&text(bytes)))),
                Kind::Bytes => Some(Value::Text(hexadecimal(bytes).into())),
                Kind::Elsewhere {
                    relative,
                    text: is_text,
                } => {
                    let base = if *relative {
                        field.offset + field.size
                    } else {
                        0
                    };
                    elsewhere(record, bytes, base).map(|bytes| match is_text {
                        true => Value::Text(names.get(&text(bytes))),
                        false => Value::Text(hexadecimal(bytes).into()),
                    })
                }
            };
            values.extend(value.map(|value| (field.name.clone(), value)));
        }
        values
    }
}

/// Returns `size` bytes from `offset`, if the record contains them.
fn part(record: &[u8], offset: usize, size: usize) -> Option<&[u8]> {
    record.get(offset..offset.checked_add(size)?)
}

/// Returns the data that a word refers to. Its upper half is the length, its lower half the offset.
fn elsewhere<'r>(record: &'r [u8], word: &[u8], base: usize) -> Option<&'r [u8]> {
    let word = u32::from_ne_bytes(word.try_into().ok()?);
    part(
        record,
        base + (word & 0xffff) as usize,
        (word >> 16) as usize,
    )
}

/// Decodes a number of one, two, four or eight bytes.
fn number(bytes: &[u8], signed: bool) -> Option<Value> {
    let unsigned = match *bytes {
        [byte] => u64::from(byte),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => u64::from_ne_bytes(bytes.try_into().ok()?),
    };
    let unused = 64 - 8 * bytes.len() as u32;
    let extended = ((unsigned << unused) as i64) >> unused;
    Some(match signed {
        true => Value::Signed(extended),
        false => Value::Unsigned(unsigned),
    })
}

/// Decodes text up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// Formats the first bytes of an array, two digits each.
fn hexadecimal(bytes: &[u8]) -> String {
    let shown = bytes.iter().take(MOST_BYTES);
    shown.map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a field's line, after `field:`.
fn field_of(line: &str, names: &mut NameTable) -> Option<Field> {
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next()?;
    let (mut offset, mut size, mut signed) = (None, None, false);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", number)) => offset = number.parse().ok(),
            Some(("size", number)) => size = number.parse().ok(),
            Some(("signed", number)) => signed = number == "1",
            _ => {}
        }
    }
    let (offset, size) = (offset?, size?);
    let (declaration, array) = match declaration.split_once('[') {
        // Besides `char comm[16]` there's the older form `__data_loc char[] name`.
        Some((before, after)) => match after.split_once(']') {
            Some((_, name)) if !name.trim().is_empty() => {
                (format!("{before} {}", name.trim()), true)
            }
            _ => (before.to_owned(), true),
        },
        None => (declaration.to_owned(), false),
    };
    let (kind, name) = declaration
        .trim()
        .rsplit_once(|c: char| c.is_whitespace() || c == '*')?;
    let kind = kind.trim();
    let kind = if let Some(rest) = kind.strip_prefix("__data_loc ") {
        Kind::Elsewhere {
            relative: false,
            text: rest.contains("char"),
        }
    } else if let Some(rest) = kind.strip_prefix("__rel_loc ") {
        Kind::Elsewhere {
            relative: true,
            text: rest.contains("char"),
        }
    } else if array && kind.ends_with("char") {
        Kind::Text
    } else if matches!(size, 1 | 2 | 4 | 8) {
        Kind::Number { signed }
    } else {
        Kind::Bytes
    };
    Some(Field {
        name: names.get(name),
        offset,
        size,
        kind,
    })
}

/// Returns the conversions of a `print fmt`, each with its argument.
fn arguments(print: &str) -> Vec<(String, &str)> {
    let print = print.trim();
    let Some(end) = quoted_end(print) else {
        return Vec::new();
    };
    let arguments = split_at_commas(&print[end..]);
    let mut arguments = arguments
        .into_iter()
        .filter(|argument| !argument.is_empty());
    let mut pairs = Vec::new();
    let mut rest = &print[..end];
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        let flags = rest
            .find(|c: char| !"-+ #0123456789.lhzjtq*".contains(c))
            .unwrap_or(rest.len());
        for _ in rest[..flags].matches('*') {
            arguments.next();
        }
        let conversion: String = rest[flags..]
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        rest = &rest[flags..];
        if let Some(behind) = rest.strip_prefix('%') {
            rest = behind;
        } else if !conversion.is_empty() {
            // Only the conversion `%p` has letters after it.
            let pointer = conversion.starts_with('p');
            let conversion = if pointer {
                conversion.get(..2.min(conversion.len()))
            } else {
                conversion.get(..1)
            };
            if let (Some(conversion), Some(argument)) = (conversion, arguments.next()) {
                pairs.push((conversion.to_owned(), argument));
            }
        }
    }
    pairs
}

/// Returns the position after the quoted text at the start of `text`.
fn quoted_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if at == 0 => {}
            _ if at == 0 => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Splits a list of arguments at its commas, except those in brackets or quotes.
fn split_at_commas(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[begin..].trim());
    parts
}

/// Returns the field that an argument refers to.
fn referred(argument: &str) -> Option<&str> {
    let rest = &argument[argument.find("REC->")? + 5..];
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    Some(&rest[..end.unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLUSH: &str = r#"name: tlb_flush
ID: 188
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:int reason;	offset:8;	size:4;	signed:1;
	field:unsigned long pages;	offset:16;	size:8;	signed:0;

print fmt: "pages:%ld reason:%s (%d)", REC->pages, __print_symbolic(REC->reason, { 0, "flush on task switch" }, { 1, "remote shootdown" }), REC->reason
"#;

    const SEND: &str = r#"name: ipi_send_cpumask
ID: 353
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;

	field:__data_loc cpumask_t cpumask;	offset:8;	size:4;	signed:0;
	field:void * callsite;	offset:16;	size:8;	signed:0;
	field:void * callback;	offset:24;	size:8;	signed:0;
	field:char comm[4];	offset:32;	size:4;	signed:0;

print fmt: "100%% cpumask=%s callsite=%pS, callback=%pS %*d", __get_cpumask(cpumask), REC->callsite, REC->callback, REC->comm, 1
"#;

    fn decoded(text: &str, record: &[u8]) -> Vec<(String, Value)> {
        let mut names = NameTable::default();
        let format = Format::parse(text, &mut names).unwrap();
        let values = format.decode(record, &mut names, |address| {
            (address == 0x10).then(|| "flush_tlb_func".into())
        });
        let values = values.into_iter();
        values
            .map(|(name, value)| (name.to_string(), value))
            .collect()
    }

    #[test]
    fn numbers_have_their_size_and_sign() {
        let mut record = vec![0; 24];
        record[8] = 1;
        record[16..].copy_from_slice(&u64::MAX.to_ne_bytes());
        let expected = [
            ("reason".to_owned(), Value::Signed(1)),
            ("pages".to_owned(), Value::Unsigned(u64::MAX)),
        ];
        assert_eq!(decoded(FLUSH, &record), expected);
        record[8..12].copy_from_slice(&(-2i32).to_ne_bytes());
        assert_eq!(decoded(FLUSH, &record)[0].1, Value::Signed(-2));
        assert_eq!(
            decoded(FLUSH, &record[..20]).len(),
            1,
            "what is cut off is left out"
        );
    }

    #[test]
    fn arrays_functions_and_texts_are_told_from_numbers() {
        let mut record = vec![0; 44];
        record[8..12].copy_from_slice(&(36u32 | 8 << 16).to_ne_bytes());
        record[16] = 0x10;
        record[24] = 0x20;
        record[32..36].copy_from_slice(b"ab\0c");
        record[36..44].copy_from_slice(&0b101u64.to_ne_bytes());
        let values = decoded(SEND, &record);
        assert_eq!(values[0].1, Value::Text("0500000000000000".into()));
        assert_eq!(values[1].1, Value::Text("flush_tlb_func".into()));
        assert_eq!(
            values[2].1,
            Value::Unsigned(0x20),
            "a function that has no name"
        );
        assert_eq!(values[3].1, Value::Text("ab".into()));
    }

    proptest! {
        #[test]
        fn no_text_and_no_record_makes_it_panic(
            text in prop::sample::select(vec![FLUSH, SEND]),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), "\\PC{0,6}"), 0..4),
            record in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut text: Vec<char> = text.chars().collect();
            for (at, with) in cuts {
                let at = at.index(text.len());
                let end = text.len().min(at + with.chars().count());
                text.splice(at..end, with.chars().rev());
            }
            let text: String = text.into_iter().collect();
            let mut names = NameTable::default();
            if let Some(format) = Format::parse(&text, &mut names) {
                format.decode(&record, &mut names, |_| None);
            }
        }
    }
}
