//! Typed access to the columns of a record batch that came from outside.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, ListArray, PrimitiveArray, RecordBatch,
    StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{ArrowNativeType as _, DataType, Field, Float32Type, UInt32Type};

use super::fail::malformed;
use crate::TraceError;

/// A batch and the file it came from.
pub(crate) struct Table<'a> {
    pub(crate) batch: &'a RecordBatch,
    pub(crate) path: &'a Path,
}

impl<'a> Table<'a> {
    fn column<T: Array + 'static>(&self, name: &str) -> Result<&'a T, TraceError> {
        let array = self
            .batch
            .column_by_name(name)
            .ok_or_else(|| malformed(self.path, format!("column `{name}` is missing")))?;
        array.as_any().downcast_ref::<T>().ok_or_else(|| {
            malformed(self.path, format!("column `{name}` has type {}", array.data_type()))
        })
    }

    fn required<T: Array + 'static>(&self, name: &str) -> Result<&'a T, TraceError> {
        let array = self.column::<T>(name)?;
        if array.null_count() > 0 {
            return Err(malformed(self.path, format!("column `{name}` has empty cells")));
        }
        Ok(array)
    }

    /// Values of a column without empty cells.
    pub(crate) fn values<T: ArrowPrimitiveType>(
        &self,
        name: &str,
    ) -> Result<&'a [T::Native], TraceError> {
        Ok(self.required::<PrimitiveArray<T>>(name)?.values())
    }

    /// Values of a column with empty cells.
    pub(crate) fn options<T: ArrowPrimitiveType>(
        &self,
        name: &str,
    ) -> Result<impl Iterator<Item = Option<T::Native>> + 'a, TraceError> {
        Ok(self.column::<PrimitiveArray<T>>(name)?.iter())
    }

    /// Text of a column without empty cells.
    pub(crate) fn texts(&self, name: &str) -> Result<&'a StringArray, TraceError> {
        self.required::<StringArray>(name)
    }

    /// Text of a column with empty cells.
    pub(crate) fn text_options(&self, name: &str) -> Result<&'a StringArray, TraceError> {
        self.column::<StringArray>(name)
    }

    /// Truth values without empty cells.
    pub(crate) fn truths(&self, name: &str) -> Result<&'a BooleanArray, TraceError> {
        self.required::<BooleanArray>(name)
    }

    /// A list column: row offsets (one more than rows) and the flat values between the first and the last.
    pub(crate) fn lists<T: ArrowPrimitiveType>(
        &self,
        name: &str,
    ) -> Result<Lists<'a, T::Native>, TraceError> {
        let array = self.required::<ListArray>(name)?;
        let values = array
            .values()
            .as_any()
            .downcast_ref::<PrimitiveArray<T>>()
            .filter(|values| values.null_count() == 0)
            .ok_or_else(|| {
                let what = format!("column `{name}` has elements of type {}", array.data_type());
                malformed(self.path, what)
            })?;
        Ok(Lists { offsets: array.value_offsets(), values: values.values() })
    }

    /// An error about this file.
    pub(crate) fn error(&self, what: impl Into<String>) -> TraceError {
        malformed(self.path, what)
    }
}

/// A list column.
pub(crate) struct Lists<'a, T> {
    offsets: &'a [i32],
    values: &'a [T],
}

impl<'a, T> Lists<'a, T> {
    /// The rows' lists in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [T]> + use<'a, T> {
        let values = self.values;
        self.offsets.windows(2).map(move |pair| {
            let start = pair.first().map_or(0, |offset| offset.as_usize());
            let end = pair.last().map_or(0, |offset| offset.as_usize());
            values.get(start..end).unwrap_or_default()
        })
    }

    /// All rows' values in one piece, where each row has exactly `stride` of them.
    pub(crate) fn flat(&self, stride: usize) -> Option<&'a [T]> {
        let even = self.offsets.windows(2).all(|pair| match pair {
            [start, end] => end.as_usize().checked_sub(start.as_usize()) == Some(stride),
            _ => false,
        });
        let (first, last) = (self.offsets.first()?.as_usize(), self.offsets.last()?.as_usize());
        if even { self.values.get(first..last) } else { None }
    }
}

/// Type of a list column whose elements are never empty.
pub(crate) fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", element, false)))
}

/// A list column of ids.
pub(crate) fn id_lists<'a>(
    rows: impl Iterator<Item = &'a [u32]> + Clone,
) -> Result<ArrayRef, arrow::error::ArrowError> {
    let offsets = OffsetBuffer::from_lengths(rows.clone().map(<[u32]>::len));
    let values = PrimitiveArray::<UInt32Type>::from_iter_values(rows.flatten().copied());
    let field = Arc::new(Field::new("element", DataType::UInt32, false));
    Ok(Arc::new(ListArray::try_new(field, offsets, Arc::new(values), None)?))
}

/// A list column of logits.
pub(crate) fn logit_lists<'a>(
    rows: impl Iterator<Item = &'a [f32]> + Clone,
) -> Result<ArrayRef, arrow::error::ArrowError> {
    let offsets = OffsetBuffer::from_lengths(rows.clone().map(<[f32]>::len));
    let values = PrimitiveArray::<Float32Type>::from_iter_values(rows.flatten().copied());
    let field = Arc::new(Field::new("element", DataType::Float32, false));
    Ok(Arc::new(ListArray::try_new(field, offsets, Arc::new(values), None)?))
}
