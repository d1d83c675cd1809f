//! Numbers in a JSON document: each rectangular list of numbers is a tensor, named by the keys that lead to it.
//!
//! A list is one of f64, unless it holds a whole number that f64 does not (from 2^53 on): then it is one of i64 or u64, or it is refused.
//! Whatever is no such list is counted and said; a key that comes twice in one object is refused, since a reader may see either value.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::element::Element;
use super::source::Mapped;
use super::tensor::{PlainTensor, fault, range};
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Bytes of a document at most: lists of numbers are small.
const LIMIT: usize = 1 << 26;

/// The lists of a document in the order of their names, and what else it holds.
pub(super) fn tensors(
    path: &Path,
    file: &Mapped,
) -> Result<(Vec<PlainTensor>, Vec<String>), TraceError> {
    if file.bytes().len() > LIMIT {
        let what = format!(
            "{} bytes of JSON; up to {LIMIT} are read, save arrays as .npy",
            file.bytes().len()
        );
        return Err(malformed(path, what));
    }
    let text = file.bytes().strip_prefix(b"\xef\xbb\xbf").unwrap_or(file.bytes());
    let document: Tree = serde_json::from_slice(text).map_err(|source| TraceError::Json {
        path: path.to_path_buf(),
        line: source.line(),
        source,
    })?;
    if let Some((line, digits)) = too_long(text) {
        let what = format!(
            "line {line}: the whole number {digits} does not fit 64 bits and would be rounded; write it as a string, or with an exponent \
             where it is a rounded value"
        );
        return Err(malformed(path, what));
    }
    let mut found = Found::default();
    found.collect(&document, String::new());
    let mut out = Vec::new();
    for (name, shape, numbers) in &found.lists {
        let (element, bytes) = encoded(numbers).map_err(|what| fault(path, name, what))?;
        let length = bytes.len();
        let spool = Mapped::spool(path, bytes.as_slice(), u64::MAX).map_err(|error| {
            error.map_or_else(|| malformed(path, "too long"), |error| io(path)(error))
        })?;
        let storage = range(path, &spool, 0..length)?;
        out.push(PlainTensor::packed(name, path, element, shape.clone(), storage)?);
    }
    Ok((out, found.remark().into_iter().collect()))
}

/// A number as it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Whole(i128),
    Real(f64),
}

/// A document as far as numbers go.
#[derive(Debug)]
enum Tree {
    Number(Number),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
    Other,
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Tree;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Whole(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Whole(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Number(Number::Real(value)))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Tree, A::Error> {
        let (mut object, mut keys) = (Vec::new(), BTreeSet::new());
        while let Some(key) = fields.next_key::<Cow<'de, str>>()? {
            if !keys.insert(key.to_string()) {
                return Err(A::Error::custom(format!(
                    "the key `{key}` comes twice in one object, so it is not known which value is meant; keep one"
                )));
            }
            object.push((key.into_owned(), fields.next_value()?));
        }
        Ok(Tree::Object(object))
    }
}

/// The first whole number that fits neither i64 nor u64, with its line: the parser rounds those to f64 without a word.
fn too_long(text: &[u8]) -> Option<(usize, String)> {
    let (mut at, mut line) = (0, 1);
    while let Some(byte) = text.get(at) {
        match byte {
            b'\n' => line += 1,
            b'"' => {
                at += 1;
                while let Some(inside) = text.get(at).filter(|byte| **byte != b'"') {
                    at += if *inside == b'\\' { 2 } else { 1 };
                }
            }
            b'-' | b'0'..=b'9' => {
                let rest = text.get(at..).unwrap_or_default();
                let part =
                    |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let length = rest.iter().position(|byte| !part(byte)).unwrap_or(rest.len());
                let number = String::from_utf8_lossy(rest.get(..length).unwrap_or_default());
                let whole = !number.contains(['.', 'e', 'E']);
                if whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some((line, number.into_owned()));
                }
                at += length;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The type that holds every number of a list exactly, and the bytes.
fn encoded(numbers: &[Number]) -> Result<(Element, Vec<u8>), String> {
    let exact = |number: &Number| match number {
        Number::Real(_) => true,
        Number::Whole(value) => as_f64(*value).1,
    };
    let Some(Number::Whole(long)) = numbers.iter().find(|number| !exact(number)) else {
        let value = |number: &Number| match number {
            Number::Real(value) => *value,
            Number::Whole(value) => as_f64(*value).0,
        };
        let bytes = numbers.iter().flat_map(|number| value(number).to_le_bytes());
        return Ok((Element::F64, bytes.collect()));
    };
    let whole: Option<Vec<i128>> = numbers
        .iter()
        .map(|number| match number {
            Number::Whole(value) => Some(*value),
            Number::Real(_) => None,
        })
        .collect();
    let whole = whole.ok_or_else(|| {
        format!("{long} is no f64, and other numbers of the list are no whole numbers; save the two apart")
    })?;
    let signed: Option<Vec<i64>> = whole.iter().map(|value| i64::try_from(*value).ok()).collect();
    if let Some(signed) = signed {
        return Ok((Element::I64, signed.iter().flat_map(|value| value.to_le_bytes()).collect()));
    }
    let unsigned: Option<Vec<u64>> = whole.iter().map(|value| u64::try_from(*value).ok()).collect();
    let unsigned = unsigned.ok_or_else(|| {
        format!("no type of 64 bits holds {long} and a negative number of the list")
    })?;
    Ok((Element::U64, unsigned.iter().flat_map(|value| value.to_le_bytes()).collect()))
}

/// The nearest f64, and whether it is the number itself.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "the loss is what is looked at"
)]
const fn as_f64(value: i128) -> (f64, bool) {
    let near = value as f64;
    (near, near as i128 == value)
}

type List = (String, Vec<usize>, Vec<Number>);

/// Lists so far, and what is none.
#[derive(Debug, Default)]
struct Found {
    lists: Vec<List>,
    others: usize,
    first: Option<String>,
}

impl Found {
    /// `serde_json` bounds the depth of a document, so this may recurse.
    fn collect(&mut self, value: &Tree, name: String) {
        match value {
            Tree::List(items) => {
                let (mut shape, mut numbers) = (Vec::new(), Vec::new());
                if !items.is_empty() && rectangular(value, 0, &mut shape, &mut numbers) {
                    self.lists.push((name, shape, numbers));
                    return;
                }
                if items.is_empty() {
                    self.left_out(&name);
                }
                for (at, item) in items.iter().enumerate() {
                    self.collect(item, join(&name, &at.to_string()));
                }
            }
            Tree::Object(fields) => {
                for (key, value) in fields {
                    self.collect(value, join(&name, key));
                }
            }
            Tree::Number(_) | Tree::Other => self.left_out(&name),
        }
    }

    fn left_out(&mut self, name: &str) {
        self.others += 1;
        self.first.get_or_insert_with(|| name.to_owned());
    }

    fn remark(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(format!(
            "{} values are no rectangular lists of numbers and are not compared, the first is `{first}`",
            self.others
        ))
    }
}

fn join(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") }
}

fn rectangular(
    value: &Tree,
    depth: usize,
    shape: &mut Vec<usize>,
    numbers: &mut Vec<Number>,
) -> bool {
    match value {
        Tree::List(items) => {
            if shape.len() == depth {
                if !numbers.is_empty() {
                    return false;
                }
                shape.push(items.len());
            }
            shape.get(depth) == Some(&items.len())
                && items.iter().all(|item| rectangular(item, depth + 1, shape, numbers))
        }
        Tree::Number(number) => {
            let whole = shape.len() == depth;
            numbers.extend(whole.then_some(*number));
            whole
        }
        _ => false,
    }
}
