//! What a tracepoint's `format` file says of its fields, and records decoded by it.
//!
//! The kernel describes each tracepoint in a text file: name and number, then a line for each field with its C
//! declaration, place and size, then the format string by which tracefs prints it. The string tells what a number does
//! not: that an address is a function (`%ps`). Values that the string prints by name stay numbers, as everywhere. No
//! text and no record makes this panic; what cannot be understood is left out, and a record that is too short ends with
//! the last field that is whole.

use std::sync::Arc;

use crate::perf::sample::{Names, Value};

/// The layout of one tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The number by which records name it.
    pub id: u64,
    /// Its own fields; those that all tracepoints share are left out.
    pub fields: Vec<Field>,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: Arc<str>,
    /// Where it begins in the record, in bytes.
    offset: usize,
    /// How many bytes it has.
    size: usize,
    /// What it holds.
    kind: Kind,
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A number, which may be negative.
    Number { signed: bool },
    /// The address of a function of the kernel.
    Function,
    /// Text in place, up to the first zero.
    Text,
    /// Bytes in place.
    Bytes,
    /// A word that says where in the record the data is: from the record's begin, or from behind the word.
    Elsewhere { relative: bool, what: Far },
}

/// What lies behind the fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Far {
    Text,
    Cpus,
    Bytes,
}

/// At most so many bytes of an array are handed out.
const MOST_BYTES: usize = 64;

impl Format {
    /// Reads a `format` file; `None` if it has no number.
    pub fn parse(text: &str, names: &mut Names) -> Option<Self> {
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

    /// The fields of a record. `function` names the function at an address of the kernel.
    pub fn decode(
        &self,
        record: &[u8],
        names: &mut Names,
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
                Kind::Elsewhere { relative, what } => {
                    let base = if *relative {
                        field.offset + field.size
                    } else {
                        0
                    };
                    elsewhere(record, bytes, base).map(|bytes| match what {
                        Far::Text => Value::Text(names.get(&text(bytes))),
                        Far::Cpus => Value::Cpus(set_bits(bytes).into()),
                        Far::Bytes => Value::Text(hexadecimal(bytes).into()),
                    })
                }
            };
            values.extend(value.map(|value| (field.name.clone(), value)));
        }
        values
    }
}

/// `size` bytes from `offset`.
fn part(record: &[u8], offset: usize, size: usize) -> Option<&[u8]> {
    record.get(offset..offset.checked_add(size)?)
}

/// Where a word of the kernel's kind for data of variable length points: the length above, the place below.
fn elsewhere<'r>(record: &'r [u8], word: &[u8], base: usize) -> Option<&'r [u8]> {
    let word = u32::from_ne_bytes(word.try_into().ok()?);
    part(
        record,
        base + (word & 0xffff) as usize,
        (word >> 16) as usize,
    )
}

/// A number of one, two, four or eight bytes.
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

/// Text up to the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// The first bytes of an array, two digits each.
fn hexadecimal(bytes: &[u8]) -> String {
    let shown = bytes.iter().take(MOST_BYTES);
    shown.map(|byte| format!("{byte:02x}")).collect()
}

/// The numbers of the bits that are set, in a bit map of native words.
fn set_bits(bytes: &[u8]) -> Vec<u32> {
    let mut bits = Vec::new();
    for (index, byte) in bytes.iter().enumerate() {
        // On a big-endian machine the bytes of a word stand the other way round.
        let index = if cfg!(target_endian = "big") {
            index ^ 7
        } else {
            index
        };
        bits.extend(
            (0..8)
                .filter(|bit| byte >> bit & 1 == 1)
                .map(|bit| index as u32 * 8 + bit),
        );
    }
    bits.sort_unstable();
    bits
}

/// A field from its line, behind `field:`.
fn field_of(line: &str, names: &mut Names) -> Option<Field> {
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
        // `char comm[16]`, but also the older `__data_loc char[] name`.
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
    let far = |kind: &str| match kind {
        _ if kind.contains("cpumask") => Far::Cpus,
        _ if kind.contains("char") => Far::Text,
        _ => Far::Bytes,
    };
    let kind = if let Some(rest) = kind.strip_prefix("__data_loc ") {
        Kind::Elsewhere {
            relative: false,
            what: far(rest),
        }
    } else if let Some(rest) = kind.strip_prefix("__rel_loc ") {
        Kind::Elsewhere {
            relative: true,
            what: far(rest),
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

/// The conversions of a `print fmt`, each with its argument.
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
            // Only `%p` is followed by letters that belong to it.
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

/// Where the quoted text that begins here ends, behind its closing quote.
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

/// The parts of a list of arguments; commas in brackets and quotes part nothing.
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

/// The one field that an argument refers to.
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
        let mut names = Names::default();
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
    fn cpus_functions_and_texts_are_told_from_numbers() {
        let mut record = vec![0; 44];
        record[8..12].copy_from_slice(&(36u32 | 8 << 16).to_ne_bytes());
        record[16] = 0x10;
        record[24] = 0x20;
        record[32..36].copy_from_slice(b"ab\0c");
        record[36..44].copy_from_slice(&0b101u64.to_ne_bytes());
        let values = decoded(SEND, &record);
        assert_eq!(values[0].1, Value::Cpus([0, 2].into()));
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
            let mut names = Names::default();
            if let Some(format) = Format::parse(&text, &mut names) {
                format.decode(&record, &mut names, |_| None);
            }
        }
    }
}
