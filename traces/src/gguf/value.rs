//! Values of the key-value metadata.

use serde::Serialize;

use super::GgufError;
use super::cursor::Cursor;

/// Deepest nesting of arrays that is read.
const DEEPEST: usize = 4;

/// Elements of all arrays of a file together; the largest vocabularies have some 260,000 tokens and 500,000 merges.
const ELEMENTS: u64 = 1 << 22;

/// A value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum GgufValue {
    /// Any unsigned width.
    Unsigned(u64),
    /// Any signed width.
    Signed(i64),
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// Truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// Values of one type.
    Array(GgufArray),
}

/// Values of one type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct GgufArray(pub Vec<GgufValue>);

impl GgufValue {
    /// As an unsigned integer: unsigned ones, and signed ones that are not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// As a real number, exact.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::F32(value) => Some(f64::from(*value)),
            Self::F64(value) => Some(*value),
            _ => None,
        }
    }

    /// As a truth value.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// As a text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(GgufArray(values)) => Some(values),
            _ => None,
        }
    }

    /// What kind of value it is, in words.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "an unsigned integer",
            Self::Signed(_) => "a signed integer",
            Self::F32(_) | Self::F64(_) => "a real number",
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "a text",
            Self::Array(_) => "an array",
        }
    }
}

/// A key's value being read.
pub(super) struct Reading<'a> {
    pub(super) key: &'a str,
    /// Where the pair starts.
    pub(super) at: usize,
    /// Elements that arrays of this file may still have.
    pub(super) budget: &'a mut u64,
}

/// A whole file's allowance of array elements.
pub(super) const fn budget() -> u64 {
    ELEMENTS
}

impl Reading<'_> {
    fn fault(&self, what: String) -> GgufError {
        GgufError::Key { key: self.key.to_owned(), at: self.at, what }
    }

    /// A value of the type numbered `kind`.
    pub(super) fn value(
        &mut self,
        from: &mut Cursor<'_>,
        kind: u32,
        depth: usize,
    ) -> Result<GgufValue, GgufError> {
        let what = format!("the value of `{}`", self.key);
        let what = what.as_str();
        Ok(match kind {
            0 => GgufValue::Unsigned(u64::from(from.array::<1>(what)?[0])),
            1 => GgufValue::Signed(i64::from(i8::from_le_bytes(from.array(what)?))),
            2 => GgufValue::Unsigned(u64::from(u16::from_le_bytes(from.array(what)?))),
            3 => GgufValue::Signed(i64::from(i16::from_le_bytes(from.array(what)?))),
            4 => GgufValue::Unsigned(u64::from(from.u32(what)?)),
            5 => GgufValue::Signed(i64::from(i32::from_le_bytes(from.array(what)?))),
            6 => GgufValue::F32(f32::from_le_bytes(from.array(what)?)),
            7 => match from.array::<1>(what)?[0] {
                0 => GgufValue::Bool(false),
                1 => GgufValue::Bool(true),
                other => return Err(self.fault(format!("{other} is no truth value"))),
            },
            8 => GgufValue::Text(from.text(what)?.to_owned()),
            9 => self.array(from, depth)?,
            10 => GgufValue::Unsigned(from.u64(what)?),
            11 => GgufValue::Signed(i64::from_le_bytes(from.array(what)?)),
            12 => GgufValue::F64(f64::from_le_bytes(from.array(what)?)),
            other => return Err(self.fault(format!("value type {other} is not known"))),
        })
    }

    fn array(&mut self, from: &mut Cursor<'_>, depth: usize) -> Result<GgufValue, GgufError> {
        if depth >= DEEPEST {
            return Err(self.fault(format!("arrays nested deeper than {DEEPEST}")));
        }
        let what = format!("the length of the array `{}`", self.key);
        let kind = from.u32(&what)?;
        let length = from.length_size();
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 => length,
            9 => 4 + length,
            10..=12 => 8,
            other => return Err(self.fault(format!("element type {other} is not known"))),
        };
        let count = from.count(&what, least, *self.budget)?;
        *self.budget -= count as u64;
        // A string or array of the file is at least `least` bytes, so that this many elements are really there.
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(self.value(from, kind, depth + 1)?);
        }
        Ok(GgufValue::Array(GgufArray(values)))
    }
}
