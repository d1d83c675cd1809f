//! Polygraphy's `RunResults`: JSON in which each array is the base64 of a `.npy` file, each torch tensor that of a `.pt` file.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::read::{Part, content};
use super::source::Mapped;
use crate::TraceError;
use crate::store::fail::{io, malformed};

#[derive(Debug, Deserialize)]
struct RunResults<'a> {
    #[serde(borrow)]
    lst: Vec<(Cow<'a, str>, Vec<Iteration<'a>>)>,
}

#[derive(Debug, Deserialize)]
struct Iteration<'a> {
    #[serde(borrow)]
    outputs: Outputs<'a>,
}

/// Outputs in the order of the file, which is that of execution.
#[derive(Debug)]
struct Outputs<'a>(Vec<(Cow<'a, str>, Lazy<'a>)>);

#[derive(Debug, Deserialize)]
struct Lazy<'a> {
    #[serde(borrow)]
    values: Encoded<'a>,
}

#[derive(Debug, Deserialize)]
struct Encoded<'a> {
    #[serde(borrow, default)]
    array: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tensor: Option<Cow<'a, str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Outputs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Order;
        impl<'de> Visitor<'de> for Order {
            type Value = Vec<(Cow<'de, str>, Lazy<'de>)>;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a map from output names to arrays")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut outputs = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "polygraphy_class" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        outputs.push((Cow::Owned(key), map.next_value()?));
                    }
                }
                Ok(outputs)
            }
        }
        deserializer.deserialize_map(Order).map(Outputs)
    }
}

/// Does the document claim to be one? Only its ends are looked at.
pub(super) fn claims(bytes: &[u8]) -> bool {
    let ends = |range: &[u8]| {
        let text = String::from_utf8_lossy(range);
        text.contains("\"RunResults\"") || text.contains("polygraphy_serialized_json_type")
    };
    let edge = bytes.len().min(4096);
    ends(bytes.get(..edge).unwrap_or_default())
        || ends(bytes.get(bytes.len() - edge..).unwrap_or_default())
}

/// Every output of every iteration: `iteration_0/NAME`, with the runner before it where there are several.
pub(super) fn tensors(path: &Path, file: &Mapped) -> Result<Part, TraceError> {
    let results: RunResults<'_> = serde_json::from_slice(file.bytes()).map_err(|source| {
        TraceError::Json { path: path.to_path_buf(), line: source.line(), source }
    })?;
    let several = results.lst.len() > 1;
    let mut whole = Part { format: "Polygraphy run results", ..Part::default() };
    for (runner, iterations) in &results.lst {
        for (at, iteration) in iterations.iter().enumerate() {
            for (output, lazy) in &iteration.outputs.0 {
                let place = format!("iteration_{at}/{output}");
                let name = if several { format!("{runner}/{place}") } else { place };
                let text = lazy.values.array.as_ref().or(lazy.values.tensor.as_ref());
                let text = text.ok_or_else(|| {
                    malformed(path, format!("`{name}` holds neither array nor tensor"))
                })?;
                let bytes = Base64 { text: text.as_bytes(), held: [0; 3], ready: 0 };
                let spool =
                    Mapped::spool(path, bytes, text.len() as u64).map_err(|error| match error {
                        Some(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                            malformed(path, format!("`{name}`: {error}"))
                        }
                        Some(error) => io(path)(error),
                        None => malformed(path, format!("`{name}`: too long")),
                    })?;
                whole.add(&name, content(path, &spool, "", None)?);
            }
        }
    }
    Ok(whole)
}

/// Decodes standard base64 as it is read.
struct Base64<'a> {
    text: &'a [u8],
    held: [u8; 3],
    ready: usize,
}

impl Read for Base64<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let mut written = 0;
        while written < out.len() {
            if self.ready == 0 && !self.group()? {
                break;
            }
            let take = self.ready.min(out.len() - written);
            let from = 3 - self.ready;
            for (to, byte) in
                out.iter_mut().skip(written).zip(self.held.iter().skip(from).take(take))
            {
                *to = *byte;
            }
            self.ready -= take;
            written += take;
        }
        Ok(written)
    }
}

impl Base64<'_> {
    /// Decodes the next four characters to the end of `held`; false at the end.
    fn group(&mut self) -> std::io::Result<bool> {
        if self.text.is_empty() {
            return Ok(false);
        }
        let bad = || {
            std::io::Error::new(std::io::ErrorKind::InvalidData, "not base64; the file is damaged")
        };
        let (group, rest) = self.text.split_first_chunk::<4>().ok_or_else(bad)?;
        self.text = rest;
        let padding = group.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || (padding > 0 && !rest.is_empty()) {
            return Err(bad());
        }
        let mut bits = 0_u32;
        for byte in group.iter().take(4 - padding) {
            bits = bits << 6 | u32::from(value(*byte).ok_or_else(bad)?);
        }
        bits <<= 6 * padding;
        let [_, a, b, c] = bits.to_be_bytes();
        self.ready = 3 - padding;
        self.held = match padding {
            0 => [a, b, c],
            1 => [0, a, b],
            _ => [0, 0, a],
        };
        Ok(true)
    }
}

const fn value(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}
