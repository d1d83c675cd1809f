//! From a pickle to statistics: the per-head and the layer variant.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Number, Value};

use super::QueryStats;
use super::dense::every_head;
use super::pickle::{Id, Node, Pickle};
use super::torch_read::TorchFile;
use crate::TraceError;
use crate::store::fail::malformed;

/// Metadata values at most: shared references could make a small pickle unfold without end.
const METADATA_LIMIT: usize = 1 << 20;
const METADATA_DEPTH: usize = 32;
/// Frequencies of a head at most.
const FREQS_LIMIT: usize = 1 << 14;

pub(super) fn read(path: &Path) -> Result<QueryStats, TraceError> {
    let (torch, pickle) = TorchFile::open(path)?;
    let mut reader = Reader { torch, pickle };
    let root = reader.dict(reader.pickle.root, "the file")?;
    let mut metadata = match root.get("metadata") {
        Some(&id) => reader.metadata(id)?,
        None => BTreeMap::new(),
    };
    let sampled = metadata.remove("sampled_heads").map(|value| pairs(path, &value)).transpose()?;
    let inv_freq =
        metadata.remove("inv_freq").map(|value| numbers(path, "inv_freq", &value)).transpose()?;
    let scale = metadata
        .remove("freq_scale_sq")
        .map(|value| numbers(path, "freq_scale_sq", &value))
        .transpose()?;
    let mut stats = if let Some(&id) = root.get("stats") {
        reader.per_head(id)?
    } else if let Some(&id) = root.get("layer_stats") {
        reader.layers(id)?
    } else {
        let keys: Vec<&String> = root.keys().collect();
        return Err(malformed(
            path,
            format!("holds {keys:?} but neither `stats` nor `layer_stats`: no query statistics"),
        ));
    };
    if let Some(sampled) = sampled {
        stats.sampled = sampled;
    }
    stats.inv_freq = inv_freq;
    stats.freq_scale_sq = scale.or(stats.freq_scale_sq);
    stats.metadata = metadata;
    Ok(stats)
}

struct Reader {
    torch: TorchFile,
    pickle: Pickle,
}

impl Reader {
    fn fault(&self, what: impl Into<String>) -> TraceError {
        malformed(self.torch.path(), what)
    }

    /// A dict by key; integer keys as their digits. A repeated key has its last value, as in Python.
    fn dict(&self, id: Id, what: &str) -> Result<BTreeMap<String, Id>, TraceError> {
        let Node::Dict(items) = self.pickle.node(id) else {
            return Err(self.fault(format!("{what} is no dict")));
        };
        let mut out = BTreeMap::new();
        for &(key, value) in items {
            let key = match self.pickle.node(key) {
                Node::Text(text) => text.clone(),
                Node::Int(number) => number.to_string(),
                _ => return Err(self.fault(format!("{what} has a key that is no string"))),
            };
            out.insert(key, value);
        }
        Ok(out)
    }

    fn metadata(&mut self, id: Id) -> Result<BTreeMap<String, Value>, TraceError> {
        let mut left = METADATA_LIMIT;
        let mut out = BTreeMap::new();
        for (key, value) in self.dict(id, "metadata")? {
            out.insert(key, self.json(value, METADATA_DEPTH, &mut left)?);
        }
        Ok(out)
    }

    fn json(&mut self, id: Id, depth: usize, left: &mut usize) -> Result<Value, TraceError> {
        if depth == 0 || *left == 0 {
            return Err(self.fault("metadata is nested or repeated beyond reason"));
        }
        *left -= 1;
        Ok(match self.pickle.node(id).clone() {
            Node::None => Value::Null,
            Node::Bool(truth) => Value::Bool(truth),
            Node::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
            Node::Text(text) => Value::String(text),
            Node::Int(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) => number.into(),
                _ => return Err(self.fault(format!("metadata holds the number {number}"))),
            },
            Node::Tuple(items) | Node::List(items) => {
                let items: Result<_, _> =
                    items.into_iter().map(|item| self.json(item, depth - 1, left)).collect();
                Value::Array(items?)
            }
            Node::Dict(_) => {
                let mut object = serde_json::Map::new();
                for (key, value) in self.dict(id, "metadata")? {
                    object.insert(key, self.json(value, depth - 1, left)?);
                }
                Value::Object(object)
            }
            Node::Tensor(tensor) => {
                let values = self.torch.values(&tensor)?;
                *left = left.saturating_sub(values.len());
                values
                    .into_iter()
                    .map(|value| Number::from_f64(value.into()).map_or(Value::Null, Value::Number))
                    .collect()
            }
            Node::Global(_) | Node::Storage(_) => {
                return Err(self.fault("metadata holds a class or a storage"));
            }
        })
    }

    /// Array `key` of `dict` with `shape`; `None` is any size on that axis.
    fn array(
        &mut self,
        dict: &BTreeMap<String, Id>,
        place: &str,
        key: &str,
        shape: &[Option<usize>],
    ) -> Result<(Vec<usize>, Vec<f32>), TraceError> {
        let name = format!("{place}.{key}");
        let path = self.torch.path().to_path_buf();
        let fault = |what: String| TraceError::Tensor { path, tensor: name, what };
        let Some(&id) = dict.get(key) else {
            return Err(fault("is not in this file".to_owned()));
        };
        let Node::Tensor(tensor) = self.pickle.node(id).clone() else {
            return Err(fault("is no tensor".to_owned()));
        };
        let fits = tensor.size.len() == shape.len()
            && tensor
                .size
                .iter()
                .zip(shape)
                .all(|(size, want)| want.is_none_or(|want| want == *size));
        if !fits {
            let want: Vec<String> = shape
                .iter()
                .map(|axis| axis.map_or("_".to_owned(), |size| size.to_string()))
                .collect();
            return Err(fault(format!(
                "has shape {:?}, expected [{}]",
                tensor.size,
                want.join(", ")
            )));
        }
        let values = self.torch.values(&tensor)?;
        Ok((tensor.size, values))
    }

    /// `{"layer00_head00": {q_mean_real, q_mean_imag, q_abs_mean: [F]}}`.
    fn per_head(&mut self, id: Id) -> Result<QueryStats, TraceError> {
        let entries = self.dict(id, "stats")?;
        let mut keyed = BTreeMap::new();
        for (name, id) in entries {
            let pair = layer_and_head(&name)
                .ok_or_else(|| self.fault(format!("`{name}` in stats is not `layerNN_headNN`")))?;
            if keyed.insert(pair, (name.clone(), id)).is_some() {
                return Err(self.fault(format!("`{name}` occurs in two spellings")));
            }
        }
        let layers: BTreeSet<u32> = keyed.keys().map(|&(layer, _)| layer).collect();
        let heads: BTreeSet<u32> = keyed.keys().map(|&(_, head)| head).collect();
        let (layers, heads): (Vec<u32>, Vec<u32>) =
            (layers.into_iter().collect(), heads.into_iter().collect());
        let mut stats: Option<QueryStats> = None;
        for ((layer, head), (name, id)) in &keyed {
            let dict = self.dict(*id, name)?;
            let freqs = stats.as_ref().map(|stats| stats.freqs);
            let (shape, real) = self.array(&dict, name, "q_mean_real", &[freqs])?;
            let freqs = shape.iter().product();
            if freqs > FREQS_LIMIT {
                return Err(self.fault(format!("`{name}` has {freqs} frequencies")));
            }
            let (_, imag) = self.array(&dict, name, "q_mean_imag", &[Some(freqs)])?;
            let (_, abs) = self.array(&dict, name, "q_abs_mean", &[Some(freqs)])?;
            let out = match &mut stats {
                Some(stats) => stats,
                None => stats.insert(QueryStats::zeros(
                    self.torch.path(),
                    layers.clone(),
                    heads.clone(),
                    freqs,
                )?),
            };
            let row = (layers.binary_search(layer), heads.binary_search(head));
            let (Ok(layer), Ok(head)) = row else { continue };
            let start = (layer * heads.len() + head) * freqs;
            for (to, from) in [
                (&mut out.q_mean_real, real),
                (&mut out.q_mean_imag, imag),
                (&mut out.q_abs_mean, abs),
            ] {
                if let Some(slot) = to.get_mut(start..start + freqs) {
                    slot.copy_from_slice(&from);
                }
            }
        }
        let mut stats = stats.ok_or_else(|| self.fault("stats is empty"))?;
        stats.sampled = keyed.into_keys().collect();
        Ok(stats)
    }

    /// `{layer: {q_mean_complex [H,F,2], q_abs_mean [H,F], freq_scale_sq [H,F]}}`.
    fn layers(&mut self, id: Id) -> Result<QueryStats, TraceError> {
        let mut keyed = BTreeMap::new();
        for (name, id) in self.dict(id, "layer_stats")? {
            let layer: u32 = name
                .parse()
                .map_err(|_| self.fault(format!("`{name}` in layer_stats is no layer number")))?;
            if keyed.insert(layer, id).is_some() {
                return Err(self.fault(format!("layer {layer} occurs twice")));
            }
        }
        let mut stats = QueryStats::default();
        let mut shape = [None, None];
        let mut scales: Option<Vec<f32>> = None;
        for (layer, id) in keyed {
            let place = format!("layer_stats[{layer}]");
            let dict = self.dict(id, &place)?;
            let (found, mean) =
                self.array(&dict, &place, "q_mean_complex", &[shape[0], shape[1], Some(2)])?;
            shape = [found.first().copied(), found.get(1).copied()];
            let (_, abs) = self.array(&dict, &place, "q_abs_mean", &shape)?;
            let (pairs, _) = mean.as_chunks::<2>();
            stats.q_mean_real.extend(pairs.iter().map(|[real, _]| *real));
            stats.q_mean_imag.extend(pairs.iter().map(|[_, imag]| *imag));
            stats.q_abs_mean.extend(abs);
            stats.layers.push(layer);
            if dict.contains_key("freq_scale_sq") {
                let (_, scale) = self.array(&dict, &place, "freq_scale_sq", &shape)?;
                self.same_scale(&mut scales, &scale, shape[1].unwrap_or(0), &place)?;
            }
        }
        let (heads, freqs) = (shape[0].unwrap_or(0), shape[1].unwrap_or(0));
        stats.heads = (0..).take(heads).collect();
        stats.freqs = freqs;
        stats.freq_scale_sq = scales;
        stats.sampled = every_head(&stats.layers, &stats.heads);
        Ok(stats)
    }

    /// One value per frequency, the same in every layer and head.
    fn same_scale(
        &self,
        known: &mut Option<Vec<f32>>,
        found: &[f32],
        freqs: usize,
        place: &str,
    ) -> Result<(), TraceError> {
        for row in found.chunks(freqs.max(1)) {
            let first = known.get_or_insert_with(|| row.to_vec());
            if !row
                .iter()
                .map(|value| value.to_bits())
                .eq(first.iter().map(|value| value.to_bits()))
            {
                return Err(self.fault(format!(
                    "{place}.freq_scale_sq differs between heads or layers; one row for all is read"
                )));
            }
        }
        Ok(())
    }
}

fn layer_and_head(name: &str) -> Option<(u32, u32)> {
    let (layer, head) = name.strip_prefix("layer")?.split_once("_head")?;
    Some((layer.parse().ok()?, head.parse().ok()?))
}

fn pairs(path: &Path, value: &Value) -> Result<Vec<(u32, u32)>, TraceError> {
    serde_json::from_value(value.clone()).map_err(|error| {
        malformed(path, format!("metadata `sampled_heads` is no list of [layer, head]: {error}"))
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the numbers were f32 before they were Python floats"
)]
fn numbers(path: &Path, key: &str, value: &Value) -> Result<Vec<f32>, TraceError> {
    let wide: Vec<f64> = serde_json::from_value(value.clone()).map_err(|error| {
        malformed(path, format!("metadata `{key}` is no list of numbers: {error}"))
    })?;
    Ok(wide.into_iter().map(|number| number as f32).collect())
}
