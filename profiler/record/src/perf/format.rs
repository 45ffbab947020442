//! Parses the `format` file of a tracepoint, and decodes records by it.
//!
//! The kernel describes each tracepoint in a text file. It has the name and number, then a line for each field with its
//! C declaration, offset and size. We decode numbers, and an address in a field of the name `func` to its function.
//!
//! No text and no record causes a panic. We leave out other fields, and fields that we can't parse. A record that is
//! too short ends with its last complete field.

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
    size: usize,
    signed: bool,
}

/// The name of fields that contain a function's address.
const FUNCTION: &str = "func";

impl Format {
    /// Parses a `format` file. Returns `None` if it has no number.
    pub fn parse(text: &str, names: &mut NameTable) -> Option<Self> {
        let mut id = None;
        let mut fields = Vec::new();
        for line in text.lines() {
            let line = line.trim();
            if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if let Some(field) = line.strip_prefix("field:") {
                fields.extend(field_of(field, names).filter(|f| !f.name.starts_with("common_")));
            }
        }
        Some(Self { id: id?, fields })
    }

    /// Decodes the fields of a record. `function` returns the name of the kernel function at an address.
    pub fn decode(
        &self,
        record: &[u8],
        mut function: impl FnMut(u64) -> Option<Arc<str>>,
    ) -> Vec<(Arc<str>, Value)> {
        let mut values = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let end = field.offset.saturating_add(field.size);
            let Some(bytes) = record.get(field.offset..end) else {
                break;
            };
            let value = number(bytes, field.signed).map(|value| {
                let is_function = (&*field.name, field.size) == (FUNCTION, 8);
                let name = value.number().filter(|_| is_function).and_then(&mut function);
                name.map_or(value, Value::Text)
            });
            values.extend(value.map(|value| (field.name.clone(), value)));
        }
        values
    }
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
    Some(if signed { Value::Signed(extended) } else { Value::Unsigned(unsigned) })
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
    // An array is no number.
    let is_number = matches!(size, 1 | 2 | 4 | 8) && !declaration.contains('[');
    let (kind, name) = declaration.rsplit_once(|c: char| c.is_whitespace() || c == '*')?;
    (is_number && !kind.contains("_loc ")).then_some(())?;
    Some(Field { name: names.get(name), offset, size, signed })
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
"#;

    const QUEUED: &str = r#"name: csd_queue_cpu
ID: 353
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;

	field:__data_loc cpumask_t cpumask;	offset:8;	size:4;	signed:0;
	field:void * func;	offset:16;	size:8;	signed:0;
	field:void * csd;	offset:24;	size:8;	signed:0;
	field:char comm[4];	offset:32;	size:4;	signed:0;
"#;

    fn decoded(text: &str, record: &[u8]) -> Vec<(String, Value)> {
        let mut names = NameTable::default();
        let format = Format::parse(text, &mut names).unwrap();
        let values =
            format.decode(record, |address| (address == 0x10).then(|| "flush_tlb_func".into()));
        let values = values.into_iter();
        values.map(|(name, value)| (name.to_string(), value)).collect()
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
        assert_eq!(decoded(FLUSH, &record[..20]).len(), 1, "what is cut off is left out");
    }

    #[test]
    fn functions_have_their_name_and_arrays_are_left_out() {
        let mut record = vec![0; 44];
        record[16] = 0x10;
        record[24] = 0x20;
        let expected = [
            ("func".to_owned(), Value::Text("flush_tlb_func".into())),
            ("csd".to_owned(), Value::Unsigned(0x20)),
        ];
        assert_eq!(decoded(QUEUED, &record), expected);
    }

    proptest! {
        #[test]
        fn no_text_and_no_record_makes_it_panic(
            text in prop::sample::select(vec![FLUSH, QUEUED]),
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
                format.decode(&record, |_| None);
            }
        }
    }
}
