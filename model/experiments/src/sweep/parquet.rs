//! A sweep's results as Parquet: the columns of the CSV with their types, in one row group.
//!
//! Texts are strings, counts are unsigned 64-bit numbers, and figures are doubles. A run may lack its figure or the
//! reason why it has none; other columns are optional only if a value is missing. We compress only with the format's
//! own dictionaries and run lengths. The file doesn't record when or where it was written.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::{ColumnWriterImpl, get_typed_column_writer_mut};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::columns::{Cells, Column};

/// Returns whether each run has a value.
fn is_whole(cells: &Cells) -> bool {
    match cells {
        Cells::Text(cells) => cells.iter().all(Option::is_some),
        Cells::Count(..) => true,
        Cells::Real(cells) => cells.iter().all(Option::is_some),
    }
}

/// Returns whether a value may be missing. Always `true` for `value` and `error`, so that files of different results
/// have the same schema.
fn may_miss(column: &Column) -> bool {
    matches!(column.name.as_str(), "value" | "error") || !is_whole(&column.cells)
}

fn field(column: &Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match &column.cells {
        Cells::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Cells::Count(..) => (Physical::INT64, Some(LogicalType::integer(64, false))),
        Cells::Real(_) => (Physical::DOUBLE, None),
    };
    let repetition = match may_miss(column) {
        true => Repetition::OPTIONAL,
        false => Repetition::REQUIRED,
    };
    Type::primitive_type_builder(&column.name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()
}

/// Writes the existing values and, if values may be missing, which ones exist.
fn put<T: DataType>(
    to: &mut ColumnWriterImpl<'_, T>,
    cells: impl Iterator<Item = Option<T::T>> + Clone,
    may_miss: bool,
) -> Result<(), ParquetError> {
    let values: Vec<_> = cells.clone().flatten().collect();
    let levels: Option<Vec<i16>> =
        may_miss.then(|| cells.map(|cell| i16::from(cell.is_some())).collect());
    to.write_batch(&values, levels.as_deref(), None).map(|_| ())
}

fn written(columns: &[Column], to: &mut Vec<u8>) -> Result<(), ParquetError> {
    let fields: Vec<_> =
        columns.iter().map(|column| field(column).map(Arc::new)).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("run").with_fields(fields).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(to, Arc::new(schema), properties)?;
    let mut group = file.next_row_group()?;
    for column in columns {
        let may_miss = may_miss(column);
        let Some(mut open) = group.next_column()? else {
            return Err(ParquetError::General("fewer columns than fields".into()));
        };
        let to = open.untyped();
        match &column.cells {
            Cells::Text(cells) => {
                let cells = cells.iter();
                put::<ByteArrayType>(
                    get_typed_column_writer_mut(to),
                    cells.map(|cell| cell.as_deref().map(ByteArray::from)),
                    may_miss,
                )?;
            }
            Cells::Count(cells, _) => {
                // The format stores an unsigned number in the bits of a signed one.
                let cells = cells.iter().map(|&count| Some(count as i64));
                put::<Int64Type>(get_typed_column_writer_mut(to), cells, may_miss)?;
            }
            Cells::Real(cells) => {
                let cells = cells.iter().copied();
                put::<DoubleType>(get_typed_column_writer_mut(to), cells, may_miss)?;
            }
        }
        open.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

/// Writes the columns as a Parquet file.
///
/// # Errors
/// If writing fails, or two columns have the same name.
pub fn write(columns: &[Column], to: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    written(columns, &mut bytes).map_err(io::Error::other)?;
    to.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::super::{Record, columns};
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use serde_json::json;
    use std::collections::BTreeMap;

    const RUNS: [(u64, Option<f64>, &str, u64); 3] =
        [(1, Some(0.1), "64K", 64 << 10), (2, None, "512", 512), (3, Some(-3e300), "1M", 1 << 20)];
    const ERROR: &str = "it \"broke\",\nüber";

    #[test]
    fn what_is_read_back_is_what_was_there() {
        let record = |(seed, value, size, _): (u64, Option<f64>, &str, u64)| -> Record {
            serde_json::from_value(json!({
                "index": 0, "workload": "w", "machine": "m", "policy": "S0,inline=no", "cpus": 2,
                "seed": seed, "parameters": { "size": size, "how": "fast, or not" },
                "value": value, "window_ns": 1.5, "violations": 0,
                "engine": { "flushes": u64::MAX - seed }, "machine_counts": {},
                "error": value.is_none().then_some(ERROR),
            }))
            .unwrap()
        };
        let mut bytes = Vec::new();
        write(&columns::of(&RUNS.map(record)), &mut bytes).unwrap();
        let mut at = tempfile::tempfile().unwrap();
        at.write_all(&bytes).unwrap();
        let file = SerializedFileReader::new(at).unwrap();
        let rows: Vec<_> = file
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap().into_columns().into_iter().collect::<BTreeMap<_, _>>())
            .collect();
        assert_eq!(rows.len(), RUNS.len());
        for (row, (seed, value, _, size)) in rows.iter().zip(RUNS) {
            let text = |text: &str| Field::Str(text.to_owned());
            let expected = [
                ("workload", text("w")),
                ("machine", text("m")),
                ("policy", text("S0,inline=no")),
                ("cpus", Field::ULong(2)),
                ("seed", Field::ULong(seed)),
                ("param.how", text("fast, or not")),
                ("param.size", Field::ULong(size)),
                ("value", value.map_or(Field::Null, Field::Double)),
                ("window_ns", Field::Double(1.5)),
                ("violations", Field::ULong(0)),
                ("error", value.map_or_else(|| text(ERROR), |_| Field::Null)),
                ("engine.flushes", Field::ULong(u64::MAX - seed)),
            ];
            let expected = expected.map(|(name, field)| (name.to_owned(), field));
            assert_eq!(*row, BTreeMap::from(expected));
        }
    }
}
