//! The statistics themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::{dense, variants};
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Values of one array at most; the largest known model needs two million.
const VALUES_LIMIT: usize = 1 << 24;

/// Per layer and head: the mean of the un-rotated query as complex numbers, and the mean of their moduli.
///
/// Arrays are row-major `[layers.len(), heads.len(), freqs]` f32. A head that the file does not have is a row of zeros
/// and is not in `sampled`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueryStats {
    /// Layer numbers of the first axis, ascending.
    pub layers: Vec<u32>,
    /// Head numbers of the second axis, ascending: attention heads, or KV heads where a file of the layer variant has
    /// only as many.
    pub heads: Vec<u32>,
    /// Frequencies, half the head dimension.
    pub freqs: usize,
    /// Real part of the mean.
    pub q_mean_real: Vec<f32>,
    /// Imaginary part of the mean.
    pub q_mean_imag: Vec<f32>,
    /// Mean of the modulus.
    pub q_abs_mean: Vec<f32>,
    /// Inverse frequencies `[freqs]`, where the file has them.
    pub inv_freq: Option<Vec<f32>>,
    /// Square of the rotary attention scaling `[freqs]`, where the file has it.
    pub freq_scale_sq: Option<Vec<f32>>,
    /// (layer, head) pairs in the order of the file, which is the row order of upstream's head matrix.
    pub sampled: Vec<(u32, u32)>,
    /// Other metadata as written; a number that JSON has not (NaN, infinity) is null.
    pub metadata: BTreeMap<String, Value>,
}

/// Statistics of one head, each `[freqs]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadStats<'a> {
    /// Real part of the mean.
    pub mean_real: &'a [f32],
    /// Imaginary part of the mean.
    pub mean_imag: &'a [f32],
    /// Mean of the modulus.
    pub abs_mean: &'a [f32],
}

/// Reads a statistics file: `.pt` in the per-head or the layer variant, or safetensors with the dense arrays.
/// Half and bfloat16 are widened exactly, double is rounded to the nearest f32.
///
/// # Errors
/// [`TraceError::Malformed`] for anything that is none of these, with what it is; [`TraceError::Tensor`] for a missing or
/// ill-shaped array; [`TraceError::Io`].
pub fn read(path: &Path) -> Result<QueryStats, TraceError> {
    let mut magic = [0_u8; 4];
    let mut file = File::open(path).map_err(io(path))?;
    let zip = match file.read_exact(&mut magic) {
        Ok(()) => magic == *b"PK\x03\x04",
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => false,
        Err(error) => return Err(io(path)(error)),
    };
    let stats = if zip {
        variants::read(path)?
    } else if magic.first() == Some(&0x80) {
        return Err(malformed(
            path,
            "a bare pickle (torch before 1.6); save it again with a current torch",
        ));
    } else {
        dense::read(path)?
    };
    stats.check(path)?;
    Ok(stats)
}

impl QueryStats {
    /// Statistics of attention head `head` of layer `layer`; `None` where the axes have it not.
    #[must_use]
    pub fn head(&self, layer: u32, head: u32) -> Option<HeadStats<'_>> {
        let layer = self.layers.binary_search(&layer).ok()?;
        let head = self.heads.binary_search(&head).ok()?;
        let start = (layer * self.heads.len() + head) * self.freqs;
        let range = start..start + self.freqs;
        Some(HeadStats {
            mean_real: self.q_mean_real.get(range.clone())?,
            mean_imag: self.q_mean_imag.get(range.clone())?,
            abs_mean: self.q_abs_mean.get(range)?,
        })
    }

    /// Zeroed arrays for these axes.
    pub(super) fn zeros(
        path: &Path,
        layers: Vec<u32>,
        heads: Vec<u32>,
        freqs: usize,
    ) -> Result<Self, TraceError> {
        let values = values(path, layers.len(), heads.len(), freqs)?;
        Ok(Self {
            layers,
            heads,
            freqs,
            q_mean_real: vec![0.0; values],
            q_mean_imag: vec![0.0; values],
            q_abs_mean: vec![0.0; values],
            ..Self::default()
        })
    }

    /// Checks what a reader relies on: axes ascending, arrays of the right length and finite, sampled heads on the axes
    /// and none twice.
    pub(super) fn check(&self, path: &Path) -> Result<(), TraceError> {
        let expected = values(path, self.layers.len(), self.heads.len(), self.freqs)?;
        if !self.layers.is_sorted_by(|a, b| a < b) || !self.heads.is_sorted_by(|a, b| a < b) {
            return Err(malformed(path, "layers or heads do not ascend"));
        }
        let frequencies =
            |values: &Option<Vec<f32>>| values.clone().unwrap_or_else(|| vec![0.0; self.freqs]);
        for (name, array, len) in [
            ("q_mean_real", &self.q_mean_real, expected),
            ("q_mean_imag", &self.q_mean_imag, expected),
            ("q_abs_mean", &self.q_abs_mean, expected),
            ("inv_freq", &frequencies(&self.inv_freq), self.freqs),
            ("freq_scale_sq", &frequencies(&self.freq_scale_sq), self.freqs),
        ] {
            let fault = |what: String| TraceError::Tensor {
                path: path.to_path_buf(),
                tensor: name.to_owned(),
                what,
            };
            if array.len() != len {
                return Err(fault(format!("has {} values, expected {len}", array.len())));
            }
            if let Some(at) = array.iter().position(|value| !value.is_finite()) {
                return Err(fault(format!("value {at} is not finite; calibrate again")));
            }
        }
        let mut seen = BTreeSet::new();
        for &(layer, head) in &self.sampled {
            if self.head(layer, head).is_none() {
                return Err(malformed(
                    path,
                    format!("sampled head {head} of layer {layer} has no statistics"),
                ));
            }
            if !seen.insert((layer, head)) {
                return Err(malformed(
                    path,
                    format!("head {head} of layer {layer} is sampled twice"),
                ));
            }
        }
        Ok(())
    }
}

fn values(path: &Path, layers: usize, heads: usize, freqs: usize) -> Result<usize, TraceError> {
    layers
        .checked_mul(heads)
        .and_then(|rows| rows.checked_mul(freqs))
        .filter(|&values| values > 0 && values <= VALUES_LIMIT)
        .ok_or_else(|| {
            malformed(
                path,
                format!("{layers} layers of {heads} heads of {freqs} frequencies: no model is so"),
            )
        })
}
