//! The header of a GGUF file, checked against itself and against the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::cursor::Cursor;
use super::value::{Reading, budget};
use super::{GgmlType, GgufError, GgufValue};

/// Most tensors and keys that are read.
const MOST: u64 = 1 << 20;
/// Most dimensions of a tensor.
const DIMENSIONS: u32 = 4;
/// Alignment where `general.alignment` is not given.
const ALIGNMENT: usize = 32;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Element type.
    pub element: GgmlType,
    /// Dimensions as written: the first one varies fastest. A matrix `[out, in]` is `[in, out]` here.
    pub ne: Vec<usize>,
    /// Bytes in the file, from its first byte.
    pub range: Range<usize>,
}

impl GgufTensor {
    /// Dimensions with the slowest first, as PyTorch and safetensors have them.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        self.ne.iter().rev().copied().collect()
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.ne.iter().product()
    }
}

/// A checked header: every count, length, type, offset and alignment in it holds for the file.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    /// 1, 2 or 3.
    pub version: u32,
    /// Alignment of the data, a power of two of at least 8.
    pub alignment: usize,
    /// Metadata by key.
    pub values: BTreeMap<String, GgufValue>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, GgufTensor>,
    /// First byte of the data.
    pub data: usize,
}

/// Does this file begin as GGUF files do? False for folders and what cannot be read.
#[must_use]
pub fn is_gguf(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"GGUF"
}

/// A tensor's description, not yet placed.
struct Described {
    name: String,
    at: usize,
    element: GgmlType,
    ne: Vec<usize>,
    offset: u64,
    bytes: usize,
}

impl GgufHeader {
    /// Parses and checks the header of a whole file.
    ///
    /// # Errors
    /// [`GgufError`], the first contradiction in the order of the file; overlaps and holes in the order of the data.
    pub fn parse(file: &[u8]) -> Result<Self, GgufError> {
        let magic = file.get(..4).unwrap_or(file);
        if magic != b"GGUF" {
            return Err(GgufError::Magic(String::from_utf8_lossy(magic).into_owned()));
        }
        let mut from = Cursor::new(file, 4);
        let version = from.u32("the version")?;
        match version {
            1 => from.shorten(),
            2 | 3 => {}
            swapped if (1..=3).contains(&swapped.swap_bytes()) => return Err(GgufError::BigEndian),
            other => return Err(GgufError::Version(other)),
        }
        let length = from.length_size();
        // A tensor takes at least an empty name, the number of dimensions, one dimension, the type and the offset.
        let tensors = from.count("the number of tensors", 2 * length + 16, MOST)?;
        let pairs = from.count("the number of keys", length + 5, MOST)?;
        let values = read_values(&mut from, pairs)?;
        let alignment = alignment(&values)?;
        let described = (0..tensors)
            .map(|number| describe(&mut from, number, tensors))
            .collect::<Result<Vec<_>, _>>()?;
        let data = from.at().next_multiple_of(alignment);
        let tensors = place(described, file.len(), data, alignment)?;
        Ok(Self { version, alignment, values, tensors, data })
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }
}

fn read_values(
    from: &mut Cursor<'_>,
    pairs: usize,
) -> Result<BTreeMap<String, GgufValue>, GgufError> {
    let mut values = BTreeMap::new();
    let mut budget = budget();
    for number in 0..pairs {
        let at = from.at();
        let key = from.text(&format!("key {number} of {pairs}"))?;
        let kind = from.u32(&format!("the type of `{key}`"))?;
        let value = Reading { key, at, budget: &mut budget }.value(from, kind, 0)?;
        if values.insert(key.to_owned(), value).is_some() {
            let what = "is there twice".to_owned();
            return Err(GgufError::Key { key: key.to_owned(), at, what });
        }
    }
    Ok(values)
}

fn alignment(values: &BTreeMap<String, GgufValue>) -> Result<usize, GgufError> {
    let key = "general.alignment";
    let Some(value) = values.get(key) else { return Ok(ALIGNMENT) };
    let number = value.as_u64().and_then(|value| usize::try_from(value).ok());
    match number {
        Some(number) if number.is_power_of_two() && (8..=1 << 20).contains(&number) => Ok(number),
        _ => Err(GgufError::Key {
            key: key.to_owned(),
            at: 0,
            what: "is no power of two between 8 and 1048576".to_owned(),
        }),
    }
}

fn describe(from: &mut Cursor<'_>, number: usize, of: usize) -> Result<Described, GgufError> {
    let at = from.at();
    let name = from.text(&format!("the name of tensor {number} of {of}"))?.to_owned();
    if name.is_empty() {
        let what = format!(
            "has no name at byte {at}; the count of tensors is too high or the header is damaged"
        );
        return Err(GgufError::Tensor { tensor: format!("number {number} of {of}"), what });
    }
    let fault = |what: String| GgufError::Tensor { tensor: name.clone(), what };
    let within = format!("the description of tensor `{name}`");
    let dimensions = from.u32(&within)?;
    if !(1..=DIMENSIONS).contains(&dimensions) {
        let what = format!("{dimensions} dimensions at byte {at}; 1 to {DIMENSIONS} are possible");
        return Err(fault(what));
    }
    let mut ne = Vec::new();
    let mut elements = 1_usize;
    for _ in 0..dimensions {
        let size = if from.length_size() == 4 {
            u64::from(from.u32(&within)?)
        } else {
            from.u64(&within)?
        };
        let size = usize::try_from(size).ok().filter(|size| *size > 0);
        let product = size.and_then(|size| elements.checked_mul(size));
        let (Some(size), Some(product)) = (size, product) else {
            return Err(fault(format!("a dimension at byte {at} that no tensor can have")));
        };
        ne.push(size);
        elements = product;
    }
    let id = from.u32(&within)?;
    let element = GgmlType::from_id(id).ok_or_else(|| {
        fault(format!(
            "element type {id} is not known; the header is damaged or newer than this build"
        ))
    })?;
    let offset = from.u64(&within)?;
    let row = ne.first().copied().unwrap_or(0);
    if !row.is_multiple_of(element.block()) {
        let what = format!(
            "rows of {row} elements are no whole blocks of {} ({element})",
            element.block()
        );
        return Err(fault(what));
    }
    let bytes = (elements / element.block()).checked_mul(element.block_bytes());
    let bytes =
        bytes.ok_or_else(|| fault(format!("{elements} elements of {element} are too many")))?;
    Ok(Described { name, at, element, ne, offset, bytes })
}

/// Is the tensor aligned, and inside the `have` bytes of data? A lie about one tensor is told of that one and not of its neighbour.
fn check_bounds(tensor: &Described, have: u64, alignment: usize) -> Result<(), GgufError> {
    let Described { name, element, ne, offset, bytes, .. } = tensor;
    let fault = |what: String| Err(GgufError::Tensor { tensor: name.clone(), what });
    if !offset.is_multiple_of(alignment as u64) {
        return fault(format!("offset {offset} is no multiple of the alignment {alignment}"));
    }
    if offset.checked_add(*bytes as u64).is_none_or(|stop| stop > have) {
        return fault(format!(
            "{element} {ne:?} takes {bytes} data bytes from offset {offset}, the file has {have}; cut or damaged, download it again"
        ));
    }
    Ok(())
}

/// Turns offsets into ranges of the file: aligned, inside it, without overlap or hole, nothing behind them.
fn place(
    mut described: Vec<Described>,
    length: usize,
    data: usize,
    alignment: usize,
) -> Result<BTreeMap<String, GgufTensor>, GgufError> {
    let have = (length as u64).saturating_sub(data as u64);
    for tensor in &described {
        check_bounds(tensor, have, alignment)?;
    }
    described.sort_by_key(|tensor| (tensor.offset, tensor.at));
    let mut tensors = BTreeMap::new();
    let (mut end, mut before) = (0_u64, String::new());
    for Described { name, element, ne, offset, bytes, .. } in described {
        let fault = |what: String| GgufError::Tensor { tensor: name.clone(), what };
        let stop = offset.saturating_add(bytes as u64);
        if offset < end {
            return Err(fault(format!(
                "shares data bytes {offset}..{} with `{before}`",
                end.min(stop)
            )));
        }
        let expected = end.next_multiple_of(alignment as u64);
        if offset > expected {
            return Err(fault(format!(
                "data bytes {expected}..{offset} before it belong to no tensor"
            )));
        }
        let place = |at: u64| usize::try_from(at).map(|at| data + at);
        let (Ok(start), Ok(past)) = (place(offset), place(stop)) else {
            return Err(fault("an offset that this machine cannot address".to_owned()));
        };
        let tensor = GgufTensor { element, ne, range: start..past };
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(fault("is in the header twice".to_owned()));
        }
        (end, before) = (stop, name);
    }
    let padded = end.next_multiple_of(alignment as u64);
    if have > padded {
        return Err(GgufError::Trailing { bytes: have - end, last: before });
    }
    Ok(tensors)
}
