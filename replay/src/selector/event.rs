//! One dumped compaction, read and checked.

use std::collections::BTreeMap;

use lockstep_reference::select::{Grid, Heads, Input, KeyView, Moment, Positions, Rules, widen};
use lockstep_traces::store::{DumpFile, TensorView};
use lockstep_traces::{DType, RuleSet};

use super::SelectorError;

/// A recorded compaction.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) file: String,
    pub(super) sample_id: String,
    pub(super) ordinal: u32,
    /// N.
    pub(super) absolute_position: usize,
    /// R as the selector used it, where recorded.
    pub(super) round_start: Option<usize>,
    pub(super) rows_before: usize,
    pub(super) rows_after: usize,
    /// `None` where neither the dump nor the sample tells.
    pub(super) prompt_len: Option<usize>,
    pub(super) kv_heads: usize,
    pub(super) layers: Vec<u32>,
    /// Positions of the rows; `None` where they were not dumped.
    pub(super) positions: Option<Positions>,
    /// Leading axes and rows of each keep-set, in order.
    pub(super) keep: Option<(Vec<usize>, Vec<Vec<usize>>)>,
    pub(super) scores: Recorded,
}

/// Recorded scores by stage.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Cache row of the first score column.
    pub(super) offset: usize,
    pub(super) layers: Vec<u32>,
    pub(super) heads: Vec<u32>,
    pub(super) raw: Option<Grid>,
    pub(super) z: Option<Grid>,
    pub(super) group: Option<Grid>,
    pub(super) ranked: Option<Grid>,
}

impl Recorded {
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_none() && self.z.is_none() && self.group.is_none() && self.ranked.is_none()
    }
}

/// Shape and values of an integer tensor.
type Whole = (Vec<usize>, Vec<i32>);

struct Reader<'a> {
    file: &'a DumpFile,
    name: String,
}

impl Reader<'_> {
    fn wrong(&self, what: impl Into<String>) -> SelectorError {
        SelectorError::Dump { file: self.name.clone(), what: what.into() }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.file.metadata().get(key).map(String::as_str)
    }

    fn number(&self, key: &str) -> Result<Option<usize>, SelectorError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| self.wrong(format!("metadata {key} is `{text}`, no number")))
        };
        self.text(key).map(parse).transpose()
    }

    fn list(&self, key: &str) -> Result<Vec<u32>, SelectorError> {
        let Some(text) = self.text(key) else { return Ok(Vec::new()) };
        let parse = |part: &str| {
            part.trim()
                .parse()
                .map_err(|_| self.wrong(format!("metadata {key} is `{text}`, no list")))
        };
        text.split(',').filter(|part| !part.trim().is_empty()).map(parse).collect()
    }

    fn tensor(&self, name: &str) -> Result<Option<TensorView<'_>>, SelectorError> {
        if self.file.has(name) { Ok(Some(self.file.get(name)?)) } else { Ok(None) }
    }

    fn grid(&self, name: &str) -> Result<Option<Grid>, SelectorError> {
        let Some(view) = self.tensor(name)? else { return Ok(None) };
        if !matches!(view.dtype, DType::F32 | DType::F64 | DType::F16 | DType::Bf16) {
            return Err(self.wrong(format!("tensor `{name}` is {}, no score", view.dtype.name())));
        }
        if view.shape.is_empty() || view.shape.contains(&0) {
            return Err(self.wrong(format!("tensor `{name}` has shape {:?}", view.shape)));
        }
        let values = widen(view.dtype, view.bytes);
        Ok(Some(Grid { shape: view.shape, values }))
    }

    fn whole(&self, name: &str) -> Result<Option<Whole>, SelectorError> {
        let Some(view) = self.tensor(name)? else { return Ok(None) };
        let integer = matches!(view.dtype, DType::I32 | DType::I16 | DType::I64 | DType::U8);
        if !integer || view.shape.is_empty() || view.shape.contains(&0) {
            return Err(self.wrong(format!(
                "tensor `{name}` is {} {:?}",
                view.dtype.name(),
                view.shape
            )));
        }
        let values = widen(view.dtype, view.bytes).into_iter().map(|value| value as i32).collect();
        Ok(Some((view.shape, values)))
    }
}

impl Event {
    /// Reads one dump; keys stay in the file (see [`Event::keys`]).
    pub(super) fn read(
        file: &DumpFile,
        sample_id: &str,
        ordinal: u32,
    ) -> Result<Self, SelectorError> {
        let reader = Reader { file, name: file.path().display().to_string() };
        let layers = key_layers(file);
        let raw = reader.grid("scores.raw")?;
        let (rows, kv_heads) = size(&reader, &layers)?;
        let rows_before = reader.number("rows_before")?.or(rows).ok_or_else(|| {
            reader.wrong("neither metadata rows_before nor keys before the compaction are there")
        })?;
        if rows.is_some_and(|rows| rows != rows_before) {
            return Err(reader.wrong(format!(
                "metadata rows_before is {rows_before}, the tensors hold {rows:?} rows"
            )));
        }
        let keep = keep_sets(&reader, rows_before)?;
        let kept = keep.as_ref().and_then(|(_, sets)| sets.first()).map(Vec::len);
        let rows_after = reader.number("rows_after")?.or(kept).unwrap_or(rows_before);
        let absolute_position = reader
            .number("absolute_position")?
            .ok_or_else(|| reader.wrong("metadata absolute_position is missing"))?;
        let scores = Recorded {
            offset: reader.number("score_row_offset")?.unwrap_or(0),
            layers: reader.list("score_layers")?,
            heads: reader.list("score_heads")?,
            raw,
            z: reader.grid("scores.z")?,
            group: reader.grid("scores.group")?,
            ranked: reader.grid("scores.final")?,
        };
        Ok(Self {
            sample_id: sample_id.to_owned(),
            ordinal,
            absolute_position,
            round_start: reader.number("round_start")?,
            rows_before,
            rows_after,
            prompt_len: reader.number("prompt_len")?,
            kv_heads,
            positions: positions(&reader, rows_before)?,
            keep,
            scores,
            layers,
            file: reader.name,
        })
    }

    /// Keys before the compaction, by layer; empty where they were not dumped.
    pub(super) fn keys<'a>(&self, file: &'a DumpFile) -> Result<Vec<KeyView<'a>>, SelectorError> {
        let mut keys = Vec::new();
        for layer in &self.layers {
            let name = format!("pre.k.layer{layer:02}");
            let view = file.get(&name)?;
            let [heads, rows, width] = view.shape[..] else {
                return Err(self.wrong(format!(
                    "tensor `{name}` has shape {:?}, expected three axes",
                    view.shape
                )));
            };
            if heads != self.kv_heads || rows != self.rows_before {
                return Err(self.wrong(format!(
                    "tensor `{name}` has shape {:?}, the first layer holds {} heads and {} rows",
                    view.shape, self.kv_heads, self.rows_before
                )));
            }
            keys.push(KeyView::new(view.dtype, [heads, rows, width], view.bytes)?);
        }
        Ok(keys)
    }

    /// The selection's input at this moment.
    pub(super) fn input<'a>(
        &self,
        keys: Vec<KeyView<'a>>,
        positions: Positions,
        q_heads: usize,
        rules: &Rules,
    ) -> Input<'a> {
        let full = rules.max_rows.is_some_and(|capacity| self.rows_before >= capacity);
        let mut moment =
            Moment::of(rules.rule_set, self.absolute_position, self.prompt_len.unwrap_or(0));
        moment.before_append = full;
        // The page leaves it open whether sglang has N or N + 1: either may be recorded.
        if rules.rule_set == RuleSet::Sglang && self.round_start == Some(self.absolute_position) {
            moment.round_start = self.absolute_position;
        }
        Input {
            layers: if keys.is_empty() { self.scored_layers() } else { self.layers.clone() },
            keys,
            positions,
            heads: Heads { q_heads, kv_heads: self.kv_heads },
            moment,
        }
    }

    /// Layers whose raw scores are recorded.
    fn scored_layers(&self) -> Vec<u32> {
        let count =
            self.scores.raw.as_ref().and_then(|grid| grid.shape.first()).copied().unwrap_or(0);
        if self.scores.layers.len() == count {
            return self.scores.layers.clone();
        }
        (0u32..).take(count).collect()
    }

    pub(super) fn wrong(&self, what: impl Into<String>) -> SelectorError {
        SelectorError::Dump { file: self.file.clone(), what: what.into() }
    }
}

/// Layers whose keys are in the dump, ascending.
fn key_layers(file: &DumpFile) -> Vec<u32> {
    let mut layers: Vec<u32> =
        file.names().filter_map(|name| name.strip_prefix("pre.k.layer")?.parse().ok()).collect();
    layers.sort_unstable();
    layers
}

/// Rows and KV heads, from whatever tensor tells them.
fn size(reader: &Reader<'_>, layers: &[u32]) -> Result<(Option<usize>, usize), SelectorError> {
    if let Some(layer) = layers.first() {
        let view = reader.file.get(&format!("pre.k.layer{layer:02}"))?;
        if let [heads, rows, _] = view.shape[..] {
            return Ok((Some(rows), heads));
        }
        return Err(reader.wrong(format!(
            "tensor `pre.k.layer{layer:02}` has shape {:?}, expected three axes",
            view.shape
        )));
    }
    let by_name = [("positions.pre", 0), ("scores.group", 1), ("keep", 0)];
    let mut shapes = BTreeMap::new();
    for (name, _) in by_name {
        if let Some(view) = reader.tensor(name)? {
            shapes.insert(name, view.shape);
        }
    }
    let rows = shapes.get("positions.pre").and_then(|shape| shape.last()).copied();
    let heads =
        |shape: &Vec<usize>| shape.len().checked_sub(2).and_then(|at| shape.get(at)).copied();
    let found =
        ["scores.group", "positions.pre", "keep"].iter().find_map(|name| heads(shapes.get(name)?));
    Ok((rows, found.unwrap_or(1)))
}

fn positions(reader: &Reader<'_>, rows: usize) -> Result<Option<Positions>, SelectorError> {
    let Some((shape, values)) = reader.whole("positions.pre")? else { return Ok(None) };
    if shape.last() != Some(&rows) {
        return Err(reader
            .wrong(format!("tensor `positions.pre` has shape {shape:?}, the cache {rows} rows")));
    }
    let split = |values: &[i32], size: usize| -> Vec<Vec<i32>> {
        values.chunks_exact(size.max(1)).map(<[i32]>::to_vec).collect()
    };
    match shape[..] {
        [_] => Ok(Some(Positions::Shared(values))),
        [_, rows] => Ok(Some(Positions::PerHead(split(&values, rows)))),
        [_, heads, rows] => Ok(Some(Positions::PerLayer(
            split(&values, heads * rows).iter().map(|layer| split(layer, rows)).collect(),
        ))),
        _ => Err(reader.wrong(format!("tensor `positions.pre` has shape {shape:?}"))),
    }
}

type Sets = (Vec<usize>, Vec<Vec<usize>>);

fn keep_sets(reader: &Reader<'_>, rows: usize) -> Result<Option<Sets>, SelectorError> {
    let Some((mut shape, values)) = reader.whole("keep")? else { return Ok(None) };
    let kept = shape.pop().unwrap_or(0);
    let row = |value: &i32| {
        usize::try_from(*value).ok().filter(|row| *row < rows).ok_or_else(|| {
            reader.wrong(format!("tensor `keep` holds row {value}, the cache has {rows} rows"))
        })
    };
    let values: Vec<usize> = values.iter().map(row).collect::<Result<_, _>>()?;
    Ok(Some((shape, values.chunks_exact(kept.max(1)).map(<[usize]>::to_vec).collect())))
}
