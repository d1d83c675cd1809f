//! Files of a golden directory.

use std::path::{Path, PathBuf};

use lockstep_reference::select::{HeadArrays, HeadStats, KeyView, Positions, widen};
use lockstep_traces::DType;
use lockstep_traces::store::DumpFile;

/// One safetensors file of the directory; every error is one line with file and tensor.
#[derive(Debug)]
pub(crate) struct Tensors {
    path: PathBuf,
    file: DumpFile,
}

/// A tensor widened to f64.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl Array {
    pub(crate) fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Rows along the last axis.
    pub(crate) fn rows(&self) -> Vec<&[f64]> {
        self.values.chunks_exact(self.cols().max(1)).collect()
    }
}

impl Tensors {
    pub(crate) fn open(dir: &Path, relative: &str) -> Result<Self, String> {
        let path = dir.join(relative);
        let file = DumpFile::open(&path).map_err(|error| error.to_string())?;
        Ok(Self { path, file })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.get(name).is_ok()
    }

    /// Element type, shape and bytes.
    pub(crate) fn bytes(&self, name: &str) -> Result<(DType, Vec<usize>, &[u8]), String> {
        let view = self.file.get(name).map_err(|error| error.to_string())?;
        Ok((view.dtype, view.shape, view.bytes))
    }

    pub(crate) fn array(&self, name: &str) -> Result<Array, String> {
        let (dtype, shape, bytes) = self.bytes(name)?;
        Ok(Array { shape, values: widen(dtype, bytes) })
    }

    pub(crate) fn optional(&self, name: &str) -> Result<Option<Array>, String> {
        if self.has(name) { self.array(name).map(Some) } else { Ok(None) }
    }

    fn f32(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), String> {
        let (dtype, shape, bytes) = self.bytes(name)?;
        if dtype != DType::F32 {
            return Err(self.complain(name, &format!("is {}, expected f32", dtype.name())));
        }
        Ok((shape, bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    fn complain(&self, name: &str, what: &str) -> String {
        format!("{}: tensor `{name}` {what}", self.path.display())
    }

    /// Indices, which must be whole and not negative.
    pub(crate) fn indices(&self, name: &str) -> Result<(Vec<usize>, Vec<usize>), String> {
        let (dtype, shape, bytes) = self.bytes(name)?;
        if !matches!(dtype, DType::I32 | DType::I16 | DType::I64) {
            return Err(self.complain(name, &format!("is {}, expected integers", dtype.name())));
        }
        let index = |value: f64| {
            let whole = (0.0..4_294_967_296.0).contains(&value);
            whole
                .then_some(value as usize)
                .ok_or_else(|| self.complain(name, "holds a negative row"))
        };
        let rows = widen(dtype, bytes).into_iter().map(index).collect::<Result<_, _>>()?;
        Ok((shape, rows))
    }

    /// Keys of every layer of a tensor `[layers, kv_heads, rows, head_dim]`.
    pub(crate) fn keys(&self, name: &str) -> Result<Vec<KeyView<'_>>, String> {
        let (dtype, shape, bytes) = self.bytes(name)?;
        let [layers, kv_heads, rows, width] = shape[..] else {
            return Err(self.complain(name, &format!("has shape {shape:?}, expected four axes")));
        };
        let size = bytes.len().checked_div(layers).unwrap_or(0);
        bytes
            .chunks_exact(size.max(1))
            .map(|part| KeyView::new(dtype, [kv_heads, rows, width], part))
            .collect::<Result<_, _>>()
            .map_err(|error| self.complain(name, &error.to_string()))
    }

    /// Positions `[rows]`, `[kv_heads, rows]` or `[layers, kv_heads, rows]`.
    pub(crate) fn positions(&self, name: &str) -> Result<Positions, String> {
        let (shape, rows) = self.indices(name)?;
        let rows: Vec<i32> =
            rows.into_iter().map(|p| i32::try_from(p).unwrap_or(i32::MAX)).collect();
        let split = |rows: &[i32], size: usize| -> Vec<Vec<i32>> {
            rows.chunks_exact(size.max(1)).map(<[i32]>::to_vec).collect()
        };
        match shape[..] {
            [_] => Ok(Positions::Shared(rows)),
            [_, count] => Ok(Positions::PerHead(split(&rows, count))),
            [_, heads, count] => Ok(Positions::PerLayer(
                split(&rows, heads * count).iter().map(|layer| split(layer, count)).collect(),
            )),
            _ => {
                Err(self
                    .complain(name, &format!("has shape {shape:?}, expected one to three axes")))
            }
        }
    }
}

/// Calibration statistics of a case, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseStats {
    /// Layers.
    pub layers: Vec<u32>,
    /// Attention heads.
    pub heads: Vec<u32>,
    /// `[layers, heads, freqs]`.
    pub mean_real: Vec<f32>,
    /// `[layers, heads, freqs]`.
    pub mean_imag: Vec<f32>,
    /// `[layers, heads, freqs]`.
    pub modulus: Vec<f32>,
    /// Inverse frequencies.
    pub omega: Vec<f32>,
    /// Square of the attention scaling.
    pub scale: Vec<f32>,
}

impl CaseStats {
    pub(crate) fn open(dir: &Path, relative: &str) -> Result<Self, String> {
        let file = Tensors::open(dir, relative)?;
        let (shape, mean_real) = file.f32("q_mean_real")?;
        let [layers, heads, _] = shape[..] else {
            return Err(
                file.complain("q_mean_real", &format!("has shape {shape:?}, expected three axes"))
            );
        };
        let stats = Self {
            layers: (0u32..).take(layers).collect(),
            heads: (0u32..).take(heads).collect(),
            mean_real,
            mean_imag: file.f32("q_mean_imag")?.1,
            modulus: file.f32("q_abs_mean")?.1,
            omega: file.f32("inv_freq")?.1,
            scale: file.f32("freq_scale_sq")?.1,
        };
        stats.head_stats().map_err(|error| format!("{}: {error}", file.path.display()))?;
        Ok(stats)
    }

    /// As the reference reads them.
    ///
    /// # Errors
    /// Where the arrays disagree about a size.
    pub fn head_stats(&self) -> Result<HeadStats, lockstep_reference::select::SelectError> {
        HeadStats::new(HeadArrays {
            layers: &self.layers,
            heads: &self.heads,
            mean_real: &self.mean_real,
            mean_imag: &self.mean_imag,
            modulus: &self.modulus,
            omega: &self.omega,
            scale: Some(&self.scale),
            sampled: None,
        })
    }
}
