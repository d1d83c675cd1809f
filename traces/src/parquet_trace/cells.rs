//! Cells of a record batch, whatever width or kind of list their column has. An empty cell is `None`.

use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray as _, RecordBatch};
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use super::columns::Found;
use crate::TraceError;
use crate::store::fail::{arrow, malformed};

/// A batch with the names of its columns.
pub(super) struct Batch<'a> {
    pub(super) path: &'a Path,
    pub(super) found: &'a Found,
    pub(super) batch: &'a RecordBatch,
    /// Rows before this batch.
    pub(super) before: usize,
}

/// The elements of a list's cell.
pub(super) type List<T> = Vec<Option<T>>;

impl Batch<'_> {
    fn array(&self, ours: &str) -> Option<&ArrayRef> {
        self.found.name(ours).and_then(|name| self.batch.column_by_name(name))
    }

    /// Whole numbers as they stand; as many `None` as there are rows where the column is absent.
    pub(super) fn wholes(&self, ours: &str) -> Result<Vec<Option<i128>>, TraceError> {
        match self.array(ours) {
            Some(array) => self.whole_values(ours, array.as_ref()),
            None => Ok(vec![None; self.batch.num_rows()]),
        }
    }

    /// Whole numbers that fit an id or a count.
    pub(super) fn ids(&self, ours: &str) -> Result<Vec<Option<u32>>, TraceError> {
        let values = self.wholes(ours)?;
        values
            .into_iter()
            .enumerate()
            .map(|(row, value)| value.map(|value| self.fit(ours, row, value)).transpose())
            .collect()
    }

    fn fit(&self, ours: &str, row: usize, value: i128) -> Result<u32, TraceError> {
        u32::try_from(value).map_err(|_| self.error(ours, row, format!("{value} is out of range")))
    }

    /// Numbers.
    pub(super) fn numbers(&self, ours: &str) -> Result<Vec<Option<f64>>, TraceError> {
        match self.array(ours) {
            Some(array) => self.number_values(ours, array.as_ref()),
            None => Ok(vec![None; self.batch.num_rows()]),
        }
    }

    /// Truth values.
    pub(super) fn truths(&self, ours: &str) -> Vec<Option<bool>> {
        match self.array(ours).and_then(|array| array.as_boolean_opt()) {
            Some(array) => array.iter().collect(),
            None => vec![None; self.batch.num_rows()],
        }
    }

    /// Texts.
    pub(super) fn texts(&self, ours: &str) -> Result<Vec<Option<String>>, TraceError> {
        let Some(array) = self.array(ours) else { return Ok(vec![None; self.batch.num_rows()]) };
        let plain = arrow::compute::cast(array, &DataType::Utf8).map_err(arrow(self.path))?;
        Ok(plain.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect())
    }

    /// Lists of ids; `None` where the whole cell is empty.
    pub(super) fn id_lists(&self, ours: &str) -> Result<Vec<Option<List<u32>>>, TraceError> {
        self.lists(ours, |batch, row, values| {
            let values = batch.whole_values(ours, values)?;
            let fit =
                |value: Option<i128>| value.map(|value| batch.fit(ours, row, value)).transpose();
            values.into_iter().map(fit).collect()
        })
    }

    /// Lists of numbers.
    pub(super) fn number_lists(&self, ours: &str) -> Result<Vec<Option<List<f64>>>, TraceError> {
        self.lists(ours, |batch, _, values| batch.number_values(ours, values))
    }

    fn lists<T: Clone>(
        &self,
        ours: &str,
        each: impl Fn(&Self, usize, &dyn Array) -> Result<List<T>, TraceError>,
    ) -> Result<Vec<Option<List<T>>>, TraceError> {
        let rows = self.batch.num_rows();
        let Some(array) = self.array(ours) else { return Ok(vec![None; rows]) };
        (0..rows)
            .map(|row| {
                if array.is_null(row) {
                    return Ok(None);
                }
                let values = match array.data_type() {
                    DataType::List(_) => array.as_list::<i32>().value(row),
                    DataType::LargeList(_) => array.as_list::<i64>().value(row),
                    DataType::FixedSizeList(..) => array.as_fixed_size_list().value(row),
                    other => return Err(self.error(ours, row, format!("{other} is no list"))),
                };
                each(self, row, values.as_ref()).map(Some)
            })
            .collect()
    }

    fn whole_values(&self, ours: &str, array: &dyn Array) -> Result<List<i128>, TraceError> {
        macro_rules! wide {
            ($type:ty) => {
                array.as_primitive::<$type>().iter().map(|v| v.map(i128::from)).collect()
            };
        }
        Ok(match array.data_type() {
            DataType::Int8 => wide!(Int8Type),
            DataType::Int16 => wide!(Int16Type),
            DataType::Int32 => wide!(Int32Type),
            DataType::Int64 => wide!(Int64Type),
            DataType::UInt8 => wide!(UInt8Type),
            DataType::UInt16 => wide!(UInt16Type),
            DataType::UInt32 => wide!(UInt32Type),
            DataType::UInt64 => wide!(UInt64Type),
            other => return Err(self.error(ours, 0, format!("{other} is no whole number"))),
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "whole numbers among logits are small")]
    fn number_values(&self, ours: &str, array: &dyn Array) -> Result<List<f64>, TraceError> {
        Ok(match array.data_type() {
            DataType::Float16 => {
                array.as_primitive::<Float16Type>().iter().map(|v| v.map(f64::from)).collect()
            }
            DataType::Float32 => {
                array.as_primitive::<Float32Type>().iter().map(|v| v.map(f64::from)).collect()
            }
            DataType::Float64 => array.as_primitive::<Float64Type>().iter().collect(),
            _ => self.whole_values(ours, array)?.into_iter().map(|v| v.map(|v| v as f64)).collect(),
        })
    }

    /// An error about a cell; rows count from 1 over the file.
    pub(super) fn error(&self, ours: &str, row: usize, what: impl std::fmt::Display) -> TraceError {
        let name = self.found.name(ours).unwrap_or(ours);
        malformed(self.path, format!("row {}, column `{name}`: {what}", self.before + row + 1))
    }
}
