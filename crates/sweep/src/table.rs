//! Tables of numbers and texts as Parquet files.

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::Field;
use parquet::schema::types::{Type, TypePtr};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Whole numbers.
    Whole,
    /// Numbers.
    Number,
    /// Texts.
    Text,
    /// Yes or no.
    Flag,
}

/// A column: its name, and what its values are.
pub type Column = (String, Kind);

/// A value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// None.
    Absent,
    /// In a column of whole numbers.
    Whole(i64),
    /// In a column of numbers.
    Number(f64),
    /// In a column of texts.
    Text(Arc<str>),
    /// In a column of flags.
    Flag(bool),
}

impl Cell {
    /// The value as a number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            #[allow(clippy::cast_precision_loss)] // Counts are far below what a double holds exactly.
            Cell::Whole(value) => Some(*value as f64),
            Cell::Number(value) => Some(*value),
            Cell::Absent | Cell::Text(_) | Cell::Flag(_) => None,
        }
    }

    /// The value as a text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Cell::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// One value for each column.
pub type Row = Vec<Cell>;

fn schema(columns: &[Column]) -> Result<TypePtr, ParquetError> {
    let field = |(name, kind): &Column| {
        let (physical, logical) = match kind {
            Kind::Whole => (Physical::INT64, None),
            Kind::Number => (Physical::DOUBLE, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Flag => (Physical::BOOLEAN, None),
        };
        let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        field.with_logical_type(logical).build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<_, _>>()?;
    Ok(Arc::new(Type::group_type_builder("rows").with_fields(fields).build()?))
}

/// Writes a Parquet file. The same rows give the same bytes.
///
/// # Errors
/// `out` cannot be written.
pub fn write(columns: &[Column], rows: &[&Row], out: impl Write + Send) -> Result<(), ParquetError> {
    let properties = WriterProperties::builder().set_created_by("frontdesk".to_owned()).build();
    let mut file = SerializedFileWriter::new(out, schema(columns)?, Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    let mut number = 0;
    while let Some(mut column) = group.next_column()? {
        let cells = || rows.iter().filter_map(|row| row.get(number));
        let there: Vec<i16> = cells().map(|cell| i16::from(*cell != Cell::Absent)).collect();
        let there = Some(there.as_slice());
        match column.untyped() {
            ColumnWriter::Int64ColumnWriter(writer) => {
                let whole = cells().filter_map(|cell| match cell {
                    Cell::Whole(value) => Some(*value),
                    _ => None,
                });
                writer.write_batch(&whole.collect::<Vec<_>>(), there, None)?;
            }
            ColumnWriter::DoubleColumnWriter(writer) => {
                let numbers: Vec<f64> = cells().filter_map(Cell::number).collect();
                writer.write_batch(&numbers, there, None)?;
            }
            ColumnWriter::ByteArrayColumnWriter(writer) => {
                let texts: Vec<ByteArray> = cells().filter_map(Cell::text).map(ByteArray::from).collect();
                writer.write_batch(&texts, there, None)?;
            }
            ColumnWriter::BoolColumnWriter(writer) => {
                let flags = cells().filter_map(|cell| match cell {
                    Cell::Flag(flag) => Some(*flag),
                    _ => None,
                });
                writer.write_batch(&flags.collect::<Vec<_>>(), there, None)?;
            }
            _ => return Err(ParquetError::General("a column of another type".to_owned())),
        }
        column.close()?;
        number += 1;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

/// Reads a Parquet file with these columns.
///
/// # Errors
/// It cannot be read, is not whole, or has other columns.
pub(crate) fn read(columns: &[Column], source: impl ChunkReader + 'static) -> Result<Vec<Row>, ParquetError> {
    let reader = SerializedFileReader::new(source)?;
    if reader.metadata().file_metadata().schema().get_fields() != schema(columns)?.get_fields() {
        return Err(ParquetError::General("it has other columns".to_owned()));
    }
    let cell = |(_, field): (String, Field)| match field {
        Field::Null => Ok(Cell::Absent),
        Field::Long(value) => Ok(Cell::Whole(value)),
        Field::Double(value) => Ok(Cell::Number(value)),
        Field::Str(text) => Ok(Cell::Text(text.into())),
        Field::Bool(flag) => Ok(Cell::Flag(flag)),
        other => Err(ParquetError::General(format!("{other} is of another type"))),
    };
    reader.get_row_iter(None)?.map(|row| row?.into_columns().into_iter().map(cell).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<Column>, Vec<Row>) {
        let columns =
            [("run", Kind::Whole), ("mean_ms", Kind::Number), ("arm", Kind::Text), ("hit", Kind::Flag)];
        let columns = columns.map(|(name, kind)| (name.to_owned(), kind)).to_vec();
        let rows = vec![
            vec![Cell::Whole(-1), Cell::Number(0.1), Cell::Text("stock".into()), Cell::Flag(true)],
            vec![Cell::Whole(i64::MAX), Cell::Absent, Cell::Text("".into()), Cell::Flag(false)],
            vec![Cell::Absent, Cell::Number(f64::MIN_POSITIVE), Cell::Absent, Cell::Absent],
        ];
        (columns, rows)
    }

    fn written(columns: &[Column], rows: &[Row]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(columns, &rows.iter().collect::<Vec<_>>(), &mut bytes).unwrap();
        bytes
    }

    fn read_back(columns: &[Column], bytes: &[u8]) -> Result<Vec<Row>, ParquetError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(columns, file)
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let (columns, rows) = sample();
        assert_eq!(read_back(&columns, &written(&columns, &rows)).unwrap(), rows);
        assert_eq!(read_back(&columns, &written(&columns, &[])).unwrap(), Vec::<Row>::new());
    }

    #[test]
    fn a_file_that_is_cut_anywhere_and_one_with_other_columns_are_refused() {
        let (mut columns, rows) = sample();
        let bytes = written(&columns, &rows);
        for length in 0..bytes.len() {
            assert!(read_back(&columns, &bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        columns[0].0 = "other".to_owned();
        assert!(read_back(&columns, &bytes).unwrap_err().to_string().contains("other columns"));
    }
}
