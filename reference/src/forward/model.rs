//! A model ready to be fed: dimensions, mapped weights, arithmetic.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use candle_core::{Device, Tensor};

use super::layer::{self, Context, LayerWeights};
use super::watch::Collector;
use super::{Cache, Precision, Stage, Watch, ops};
use crate::rope::Rope;
use crate::weights::Weights;
use crate::{Hyper, ReferenceError};

const EMBEDDING: &str = "model.embed_tokens.weight";
const FINAL_NORM: &str = "model.norm.weight";
const HEAD: &str = "lm_head.weight";

/// Weights that widen to no more than this stay widened; larger models are widened a layer at a time, every chunk anew.
const RESIDENT_BYTES: u64 = 512 << 20;

/// Elements of the output head widened at once.
const HEAD_BLOCK: usize = 64 << 20;

/// Consecutive rows to feed.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// Absolute positions, one per id: the rotary index of each row.
    pub positions: &'a [u32],
    /// Rows (indices into the chunk) whose logits are wanted, ascending.
    pub logits: &'a [usize],
}

/// Logits of the rows that were asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Vocabulary size.
    pub vocab: usize,
    /// `[rows asked for, vocab]`; rounded from f64 where that is the arithmetic.
    pub values: Vec<f32>,
}

impl Logits {
    /// One row per row asked for, in that order.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocab)
    }
}

/// What feeding a chunk gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Fed {
    /// Logits.
    pub logits: Logits,
    /// Stages of the watched rows in order of computation.
    pub stages: Vec<Stage>,
}

/// A checkpoint and the arithmetic in which it is computed.
#[derive(Debug)]
pub struct Model {
    hyper: Hyper,
    weights: Weights,
    precision: Precision,
    resident: Option<Vec<OnceLock<LayerWeights>>>,
    head: OnceLock<Tensor>,
}

impl Model {
    /// Opens a model directory or a GGUF file. Only headers are read; every tensor is checked for presence, shape and dtype, and one that
    /// belongs to no part of the model is refused.
    ///
    /// # Errors
    /// Unreadable or unsuitable files, with the tensor's name.
    pub fn load(dir: &Path, precision: Precision) -> Result<Self, ReferenceError> {
        let hyper = Hyper::read(dir)?;
        let weights = Weights::open(dir)?;
        check_tensors(&hyper, &weights)?;
        let element = if precision == Precision::F64 { 8 } else { 4 };
        let resident = (parameters(&hyper) * element <= RESIDENT_BYTES)
            .then(|| (0..hyper.layers).map(|_| OnceLock::new()).collect());
        Ok(Self { hyper, weights, precision, resident, head: OnceLock::new() })
    }

    /// The same model with another rotary embedding.
    ///
    /// # Errors
    /// Frequencies that do not fit the head width.
    pub fn with_rope(mut self, rope: Rope) -> Result<Self, ReferenceError> {
        if rope.inv_freq().len() != self.hyper.head_dim / 2 {
            return Err(ReferenceError::input("rotary frequencies that do not fit the head width"));
        }
        self.hyper.rope = rope;
        Ok(self)
    }

    /// Resolved dimensions.
    #[must_use]
    pub const fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// Arithmetic.
    #[must_use]
    pub const fn precision(&self) -> Precision {
        self.precision
    }

    /// Checkpoint files.
    #[must_use]
    pub const fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Multiply-adds of the matmuls for one row that sees `visible` rows, doubled: floating-point operations.
    #[must_use]
    pub fn flops(&self, visible: u64) -> u64 {
        let h = &self.hyper;
        let (hidden, q) = (h.hidden as u64, (h.heads * h.head_dim) as u64);
        let kv = (h.kv_heads * h.head_dim) as u64;
        let layer = hidden * (2 * q + 2 * kv + 3 * h.intermediate as u64) + 2 * q * visible;
        2 * (h.layers as u64 * layer + hidden * h.vocab as u64)
    }

    /// An empty cache.
    ///
    /// # Errors
    /// Memory.
    pub fn new_cache(&self) -> Result<Cache, ReferenceError> {
        let h = &self.hyper;
        Cache::new(h.layers, h.kv_heads, h.head_dim, self.precision.element())
    }

    /// Feeds a chunk: appends its rows to `cache` and returns logits and watched stages.
    ///
    /// # Errors
    /// Ids outside the vocabulary, uneven lengths, rows outside the chunk; the cache is then unchanged.
    pub fn feed(
        &self,
        cache: &mut Cache,
        chunk: &Chunk<'_>,
        watch: Watch<'_>,
    ) -> Result<Fed, ReferenceError> {
        self.check_chunk(chunk, watch)?;
        let rounding = self.precision.rounding();
        let (cos, sin) = self.rotary(chunk.positions)?;
        let mut stages = Collector::new(watch);
        cache.reserve(chunk.ids.len())?;
        let mut x = self.embed(chunk.ids)?;
        stages.take(None, "embed", &x, 0)?;
        let context = Context { hyper: &self.hyper, cache, cos, sin, rounding };
        for index in 0..self.hyper.layers {
            x = match &self.resident {
                Some(kept) => {
                    layer::run(&context, self.kept(kept, index)?, index, &x, &mut stages)?
                }
                None => layer::run(&context, &self.layer(index)?, index, &x, &mut stages)?,
            };
        }
        let norm = self.weights.widen(FINAL_NORM, &[self.hyper.hidden], self.precision)?;
        let x = ops::rms_norm(&x, &norm, self.hyper.norm_eps, rounding)?;
        stages.take(None, "final_norm", &x, 0)?;
        let logits = self.logits(&x, chunk.logits)?;
        for row in watch.rows {
            let values = self.logits_f64(&x.narrow(0, *row, 1)?)?;
            stages.stages.push(Stage { row: *row, layer: None, name: "logits", values });
        }
        cache.advance(chunk.positions);
        Ok(Fed { logits, stages: stages.stages })
    }

    fn check_chunk(&self, chunk: &Chunk<'_>, watch: Watch<'_>) -> Result<(), ReferenceError> {
        let rows = chunk.ids.len();
        if rows == 0 || rows != chunk.positions.len() {
            return Err(ReferenceError::input(format!(
                "a chunk of {rows} ids and {} positions",
                chunk.positions.len()
            )));
        }
        if let Some(id) = chunk.ids.iter().find(|id| **id as usize >= self.hyper.vocab) {
            return Err(ReferenceError::input(format!(
                "token id {id} is outside the vocabulary of {}",
                self.hyper.vocab
            )));
        }
        match chunk.logits.iter().chain(watch.rows).find(|row| **row >= rows) {
            Some(row) => Err(ReferenceError::input(format!("row {row} of a chunk of {rows}"))),
            None => Ok(()),
        }
    }

    fn rotary(&self, positions: &[u32]) -> Result<(Tensor, Tensor), ReferenceError> {
        let shape = (positions.len(), self.hyper.head_dim / 2);
        let rope = &self.hyper.rope;
        if self.precision == Precision::F64 {
            let (cos, sin) = rope.table_f64(positions);
            Ok((
                Tensor::from_vec(cos, shape, &Device::Cpu)?,
                Tensor::from_vec(sin, shape, &Device::Cpu)?,
            ))
        } else {
            let (cos, sin) = rope.table_f32(positions);
            Ok((
                Tensor::from_vec(cos, shape, &Device::Cpu)?,
                Tensor::from_vec(sin, shape, &Device::Cpu)?,
            ))
        }
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor, ReferenceError> {
        let shape = [self.hyper.vocab, self.hyper.hidden];
        let wanted: Vec<u32> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let rows = wanted
            .iter()
            .map(|id| {
                let row = *id as usize;
                self.weights.widen_rows(EMBEDDING, shape, row..row + 1, self.precision)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let table = Tensor::cat(&rows, 0)?;
        let places: Vec<u32> = ids
            .iter()
            .map(|id| u32::try_from(wanted.partition_point(|other| other < id)).unwrap_or(u32::MAX))
            .collect();
        Ok(table.index_select(&Tensor::from_vec(places, ids.len(), &Device::Cpu)?, 0)?)
    }

    fn layer(&self, index: usize) -> Result<LayerWeights, ReferenceError> {
        LayerWeights::load(&self.weights, &self.hyper, index, self.precision)
    }

    fn kept<'a>(
        &self,
        kept: &'a [OnceLock<LayerWeights>],
        index: usize,
    ) -> Result<&'a LayerWeights, ReferenceError> {
        if let Some(layer) = kept[index].get() {
            return Ok(layer);
        }
        let layer = self.layer(index)?;
        Ok(kept[index].get_or_init(|| layer))
    }

    /// Calls `use_block(first id, weight block [ids, hidden])` over the whole output head.
    fn for_head(
        &self,
        mut use_block: impl FnMut(usize, &Tensor) -> Result<(), ReferenceError>,
    ) -> Result<(), ReferenceError> {
        let name = if self.hyper.tied { EMBEDDING } else { HEAD };
        let shape = [self.hyper.vocab, self.hyper.hidden];
        let block = (HEAD_BLOCK / self.hyper.hidden).max(1);
        if let Some(head) = self.head.get() {
            return use_block(0, head);
        }
        if self.resident.is_some() {
            let head = self.weights.widen_rows(name, shape, 0..shape[0], self.precision)?;
            return use_block(0, self.head.get_or_init(|| head));
        }
        let mut start = 0;
        while start < shape[0] {
            let end = (start + block).min(shape[0]);
            let weight = self.weights.widen_rows(name, shape, start..end, self.precision)?;
            use_block(start, &weight)?;
            start = end;
        }
        Ok(())
    }

    fn logits(&self, x: &Tensor, rows: &[usize]) -> Result<Logits, ReferenceError> {
        let vocab = self.hyper.vocab;
        if rows.is_empty() {
            return Ok(Logits { vocab, values: Vec::new() });
        }
        let x = if rows.len() == x.dim(0)? {
            x.clone()
        } else {
            let index = rows.iter().map(|row| u32::try_from(*row).unwrap_or(u32::MAX)).collect();
            x.index_select(&Tensor::from_vec(index, rows.len(), &Device::Cpu)?, 0)?
        };
        let mut values = vec![0f32; rows.len() * vocab];
        self.for_head(|start, weight| {
            let part = ops::linear(&x, weight, None, self.precision.rounding())?
                .to_dtype(candle_core::DType::F32)?;
            let width = part.dim(1)?;
            let part = part.flatten_all()?.to_vec1::<f32>()?;
            for (row, part) in values.chunks_exact_mut(vocab).zip(part.chunks_exact(width)) {
                row[start..start + width].copy_from_slice(part);
            }
            Ok(())
        })?;
        Ok(Logits { vocab, values })
    }

    fn logits_f64(&self, x: &Tensor) -> Result<Vec<f64>, ReferenceError> {
        let mut values = Vec::with_capacity(self.hyper.vocab);
        self.for_head(|_, weight| {
            let part = ops::linear(&x.contiguous()?, weight, None, self.precision.rounding())?;
            let part = part.flatten_all()?.to_dtype(candle_core::DType::F64)?;
            values.extend(part.to_vec1::<f64>()?);
            Ok(())
        })?;
        Ok(values)
    }
}

fn parameters(hyper: &Hyper) -> u64 {
    let head = (hyper.vocab * hyper.hidden) as u64;
    let layer: u64 = layer::tensors(hyper, 0)
        .iter()
        .map(|(_, shape)| shape.iter().product::<usize>() as u64)
        .sum();
    head + layer * hyper.layers as u64
}

fn check_tensors(hyper: &Hyper, weights: &Weights) -> Result<(), ReferenceError> {
    let mut expected = BTreeSet::new();
    let mut check = |name: String, shape: &[usize]| -> Result<(), ReferenceError> {
        weights.check(&name, shape)?;
        expected.insert(weights.stored_name(&name));
        Ok(())
    };
    check(EMBEDDING.to_owned(), &[hyper.vocab, hyper.hidden])?;
    check(FINAL_NORM.to_owned(), &[hyper.hidden])?;
    if !hyper.tied {
        check(HEAD.to_owned(), &[hyper.vocab, hyper.hidden])?;
    }
    for index in 0..hyper.layers {
        for (name, shape) in layer::tensors(hyper, index) {
            check(name, &shape)?;
        }
    }
    for name in weights.names() {
        // Checkpoints with a tied head often store it a second time, old ones store the rotary buffer.
        let known = (hyper.tied && name == HEAD)
            || name.ends_with("rotary_emb.inv_freq")
            || (hyper.gguf && name == crate::gguf::ROPE_DIVISORS);
        if !known && !expected.contains(name) {
            return Err(weights.error(
                name,
                format!(
                    "belongs to no part of a {} with these dimensions",
                    hyper.architecture.name()
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tiny model under another configuration.
    fn load(change: impl Fn(&mut serde_json::Value)) -> Result<Model, ReferenceError> {
        let source = lockstep_testkit::data().join("models").join("llama_linear");
        let dir = tempfile::tempdir().unwrap();
        let text = std::fs::read(source.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
        change(&mut config);
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let weights = "model.safetensors";
        std::fs::copy(source.join(weights), dir.path().join(weights)).unwrap();
        Model::load(dir.path(), Precision::F32)
    }

    #[test]
    fn tensors_must_be_those_of_the_configuration() {
        assert!(load(|_| ()).is_ok());
        for (key, value, tensor, word) in [
            ("num_hidden_layers", 1, "model.layers.1.", "belongs to no part"),
            ("num_hidden_layers", 3, "model.layers.2.", "is missing"),
            ("vocab_size", 95, "model.embed_tokens.weight", "has shape"),
        ] {
            let message = load(|config| config[key] = value.into()).unwrap_err().to_string();
            assert!(message.contains(tensor) && message.contains(word), "{message}");
            assert!(message.contains("model.safetensors") || word == "is missing", "{message}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_leaves_the_cache_alone() {
        let model = load(|_| ()).unwrap();
        let mut cache = model.new_cache().unwrap();
        let good = Chunk { ids: &[1, 2], positions: &[0, 1], logits: &[1] };
        for (chunk, word) in [
            (Chunk { ids: &[1, 96], ..good }, "token id 96"),
            (Chunk { ids: &[1], ..good }, "1 ids and 2 positions"),
            (Chunk { logits: &[2], ..good }, "row 2 of a chunk of 2"),
            (Chunk { ids: &[], positions: &[], logits: &[] }, "0 ids"),
        ] {
            let message = model.feed(&mut cache, &chunk, Watch::default()).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        assert_eq!(cache.rows(), 0);
        let fed = model.feed(&mut cache, &good, Watch { rows: &[1] }).unwrap();
        assert_eq!((cache.rows(), fed.logits.rows().count()), (2, 1));
        let watched = fed.stages.iter().find(|stage| stage.name == "logits").unwrap();
        let logits: Vec<f64> = fed.logits.values.iter().map(|v| f64::from(*v)).collect();
        assert_eq!(watched.values.len(), logits.len());
        let off =
            watched.values.iter().zip(&logits).fold(0f64, |off, (a, b)| off.max((a - b).abs()));
        assert!(off < 1e-5, "{off}");
    }

    #[test]
    fn operations_count_the_weights_and_the_visible_rows() {
        let model = load(|_| ()).unwrap();
        let h = model.hyper().clone();
        let kv = h.kv_heads * h.head_dim;
        let layer = h.hidden * (2 * h.heads * h.head_dim + 2 * kv + 3 * h.intermediate);
        let weights = h.layers * layer + h.hidden * h.vocab;
        assert_eq!(model.flops(0), 2 * weights as u64);
        let attention = 2 * 2 * (h.layers * h.heads * h.head_dim) as u64;
        assert_eq!(model.flops(5) - model.flops(4), attention);
    }
}
