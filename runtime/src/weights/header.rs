//! The header of a safetensors file: 8 bytes of length, JSON, then data.
//!
//! Nothing in it is believed before it is checked: lengths against the file, shapes against bytes, and the ranges
//! of all tensors against each other, which must cover the data without overlap or hole.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Longest header that is read.
const LIMIT: u64 = 100_000_000;

/// What is wrong with a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer than 8 bytes.
    #[error("{0} bytes are too few for a safetensors file; download it again")]
    TooShort(usize),
    /// A Git LFS pointer.
    #[error("this is a Git LFS pointer, not the data; run `git lfs pull`")]
    LfsPointer,
    /// Length over the limit or beyond the file.
    #[error("header length {length} is beyond {bound}; the file is damaged or no safetensors file")]
    Length {
        /// As written.
        length: u64,
        /// What it exceeds.
        bound: String,
    },
    /// Header is not the JSON expected.
    #[error("header is not valid: {0}")]
    Json(String),
    /// A name is there twice.
    #[error("tensor `{0}` is in the header twice")]
    Duplicate(String),
    /// One tensor contradicts itself.
    #[error("tensor `{tensor}`: {what}")]
    Tensor {
        /// Name.
        tensor: String,
        /// What is wrong.
        what: String,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` share data bytes {start}..{end}")]
    Overlap {
        /// The one that starts earlier.
        first: String,
        /// The other.
        second: String,
        /// First shared byte.
        start: u64,
        /// End of the shared bytes.
        end: u64,
    },
    /// Bytes that no tensor has.
    #[error("data bytes {start}..{end} belong to no tensor (before `{next}`)")]
    Hole {
        /// First byte.
        start: u64,
        /// End.
        end: u64,
        /// Next tensor.
        next: String,
    },
    /// The file ends early.
    #[error(
        "{missing} bytes short ({have} of {want} data bytes); cut in tensor `{tensor}`; download it again"
    )]
    Truncated {
        /// First tensor that is cut.
        tensor: String,
        /// Bytes lacking.
        missing: u64,
        /// Data bytes there.
        have: u64,
        /// Data bytes declared.
        want: u64,
    },
    /// The file goes on after the data.
    #[error("{bytes} bytes after the data of the last tensor")]
    Trailing {
        /// How many.
        bytes: u64,
    },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Element type as written (`BF16`, `F8_E4M3`, ...).
    pub dtype: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Bytes in the file (from its first byte).
    pub range: Range<usize>,
    /// Order of its rows.
    pub order: RowOrder,
}

/// In which order the rows of a projection lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowOrder {
    /// Each head's first half, then its second: pair `i` of RoPE is rows `i` and `i + head_dim / 2`.
    #[default]
    Halves,
    /// The rows of each pair side by side, as llama.cpp's converter leaves the q and k rows of Llama models.
    Pairs {
        /// Heads in the tensor.
        heads: usize,
    },
}

/// A checked header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Tensors by name.
    pub entries: BTreeMap<String, Entry>,
}

impl Header {
    /// Parses and checks the header of a whole file.
    ///
    /// # Errors
    /// [`HeaderError`], the first contradiction in the order of the data.
    pub fn parse(file: &[u8]) -> Result<Self, HeaderError> {
        if file.starts_with(b"version https://git-lfs") {
            return Err(HeaderError::LfsPointer);
        }
        let (length, rest) =
            file.split_first_chunk::<8>().ok_or(HeaderError::TooShort(file.len()))?;
        let length = u64::from_le_bytes(*length);
        if length > rest.len() as u64 {
            let bound = format!("the end of the file ({} bytes)", file.len());
            return Err(HeaderError::Length { length, bound });
        }
        if length > LIMIT {
            let bound = format!("the limit of {LIMIT} bytes");
            return Err(HeaderError::Length { length, bound });
        }
        // `length` is at most the length of a slice, so it fits.
        let (json, data) = rest.split_at(length as usize);
        let raw: RawHeader =
            serde_json::from_slice(json).map_err(|error| HeaderError::Json(error.to_string()))?;
        if let Some(name) = raw.duplicate {
            return Err(HeaderError::Duplicate(name));
        }
        let base = 8 + json.len();
        let mut entries = BTreeMap::new();
        for (name, raw) in &raw.tensors {
            check_size(name, raw)?;
            let [start, end] = raw.data_offsets;
            // Offsets beyond the file are found by `check_coverage`; saturate so that nothing wraps before it.
            let place =
                |offset: u64| base.saturating_add(usize::try_from(offset).unwrap_or(usize::MAX));
            let shape = raw.shape.iter().map(|size| *size as usize).collect();
            let range = place(start)..place(end);
            let order = RowOrder::Halves;
            let entry = Entry { dtype: raw.dtype.clone(), shape, range, order };
            entries.insert(name.clone(), entry);
        }
        check_coverage(&raw.tensors, data.len() as u64)?;
        Ok(Self { metadata: raw.metadata, entries })
    }
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Entries in the order written; a map type would drop duplicates silently.
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: BTreeMap<String, RawEntry>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader {
                    metadata: BTreeMap::new(),
                    tensors: BTreeMap::new(),
                    duplicate: None,
                };
                let mut metadata_seen = false;
                while let Some(name) = map.next_key::<String>()? {
                    let again = if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                        std::mem::replace(&mut metadata_seen, true)
                    } else {
                        header.tensors.insert(name.clone(), map.next_value()?).is_some()
                    };
                    if again {
                        header.duplicate.get_or_insert(name);
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Bits of one element, by the format's name of the type.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

fn check_size(name: &str, raw: &RawEntry) -> Result<(), HeaderError> {
    let fault = |what: String| HeaderError::Tensor { tensor: name.to_owned(), what };
    let bits =
        bits(&raw.dtype).ok_or_else(|| fault(format!("unknown element type `{}`", raw.dtype)))?;
    let [start, end] = raw.data_offsets;
    let given = end
        .checked_sub(start)
        .ok_or_else(|| fault(format!("data ends at {end}, before it starts at {start}")))?;
    let shape = &raw.shape;
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, size| product.checked_mul(*size))
        .filter(|elements| usize::try_from(*elements).is_ok());
    let wanted = elements
        .and_then(|elements| elements.checked_mul(bits))
        .ok_or_else(|| fault(format!("shape {shape:?} overflows")))?;
    if !wanted.is_multiple_of(8) || wanted / 8 != given {
        let wanted = wanted.div_ceil(8);
        let what = format!("{} of shape {shape:?} is {wanted} bytes, {given} are given", raw.dtype);
        return Err(fault(what));
    }
    Ok(())
}

/// Tensors in order of their offsets must touch, from the first data byte to the last.
fn check_coverage(tensors: &BTreeMap<String, RawEntry>, have: u64) -> Result<(), HeaderError> {
    let mut order: Vec<(&String, [u64; 2])> =
        tensors.iter().map(|(name, raw)| (name, raw.data_offsets)).collect();
    order.sort_by_key(|(_, offsets)| *offsets);
    let mut covered = 0;
    let mut last: Option<&String> = None;
    for (name, [start, end]) in &order {
        if *start < covered {
            let first = last.map_or_else(String::new, String::clone);
            let end = covered.min(*end);
            return Err(HeaderError::Overlap {
                first,
                second: (*name).clone(),
                start: *start,
                end,
            });
        }
        if *start > covered {
            return Err(HeaderError::Hole { start: covered, end: *start, next: (*name).clone() });
        }
        covered = *end;
        last = Some(name);
    }
    if covered > have {
        let cut = order.iter().find(|(_, [_, end])| *end > have);
        let tensor = cut.map_or_else(String::new, |(name, _)| (*name).clone());
        return Err(HeaderError::Truncated {
            tensor,
            missing: covered - have,
            have,
            want: covered,
        });
    }
    if covered < have {
        return Err(HeaderError::Trailing { bytes: have - covered });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        bytes
    }

    const A: &str = r#""a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}"#;
    const B: &str = r#""b":{"dtype":"BF16","shape":[8],"data_offsets":[16,32]}"#;

    #[test]
    fn a_sound_header_gives_ranges_in_the_file() {
        let json = format!(r#"{{"__metadata__":{{"format":"pt"}},{B},{A}}}   "#);
        let header = Header::parse(&file(&json, 32)).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        let base = 8 + json.len();
        assert_eq!(header.entries["a"].range, base..base + 16);
        assert_eq!(header.entries["b"].shape, [8]);
        assert_eq!(header.entries["b"].dtype, "BF16");
    }

    #[test]
    fn an_empty_tensor_between_two_others_is_no_overlap() {
        let empty = r#""e":{"dtype":"F32","shape":[0,4],"data_offsets":[16,16]}"#;
        assert!(Header::parse(&file(&format!("{{{A},{empty},{B}}}"), 32)).is_ok());
    }

    #[test]
    fn a_cut_file_names_the_tensor_that_is_cut() {
        let error = Header::parse(&file(&format!("{{{A},{B}}}"), 25)).unwrap_err();
        let wanted =
            HeaderError::Truncated { tensor: "b".to_owned(), missing: 7, have: 25, want: 32 };
        assert_eq!(error, wanted);
    }

    #[test]
    fn bytes_after_the_data_are_counted() {
        let error = Header::parse(&file(&format!("{{{A}}}"), 21)).unwrap_err();
        assert_eq!(error, HeaderError::Trailing { bytes: 5 });
    }

    #[test]
    fn overlaps_and_holes_are_located() {
        let overlap = r#""b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}"#;
        let error = Header::parse(&file(&format!("{{{A},{overlap}}}"), 20)).unwrap_err();
        let wanted = HeaderError::Overlap {
            first: "a".to_owned(),
            second: "b".to_owned(),
            start: 8,
            end: 16,
        };
        assert_eq!(error, wanted);
        let hole = r#""b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}"#;
        let error = Header::parse(&file(&format!("{{{A},{hole}}}"), 32)).unwrap_err();
        assert_eq!(error, HeaderError::Hole { start: 16, end: 24, next: "b".to_owned() });
    }

    #[test]
    fn a_shape_that_lies_about_its_bytes_is_refused() {
        for entry in [
            r#""a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}"#,
            r#""a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}"#,
            r#""a":{"dtype":"F33","shape":[4],"data_offsets":[0,16]}"#,
            r#""a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}"#,
            r#""a":{"dtype":"F4","shape":[31],"data_offsets":[0,16]}"#,
        ] {
            let error = Header::parse(&file(&format!("{{{entry}}}"), 16)).unwrap_err();
            assert!(
                matches!(&error, HeaderError::Tensor { tensor, .. } if tensor == "a"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_name_that_comes_twice_is_refused() {
        let error = Header::parse(&file(&format!("{{{A},{A}}}"), 16)).unwrap_err();
        assert_eq!(error, HeaderError::Duplicate("a".to_owned()));
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        let mut bytes = u64::MAX.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        assert!(matches!(Header::parse(&bytes), Err(HeaderError::Length { length: u64::MAX, .. })));
        assert_eq!(Header::parse(b""), Err(HeaderError::TooShort(0)));
        assert_eq!(Header::parse(b"1234567"), Err(HeaderError::TooShort(7)));
    }

    #[test]
    fn text_after_the_header_and_pointers_are_recognised() {
        let error = Header::parse(&file("{} x", 0)).unwrap_err();
        assert!(matches!(error, HeaderError::Json(_)), "{error}");
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        assert_eq!(Header::parse(pointer), Err(HeaderError::LfsPointer));
    }
}
