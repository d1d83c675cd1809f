//! A plain f32 engine, one row at a time and with a switch for each mistake: what the recordings of these tests come from.
//! It shares no arithmetic with the reference.

use std::collections::BTreeMap;
use std::path::Path;

use lockstep_reference::Hyper;
use lockstep_reference::forward::Precision;
use lockstep_reference::weights::Weights;
use lockstep_traces::{
    Dump, DumpId, EventRow, FinishReason, MemorySink, Phase, SampleRow, StepRow, Tensor,
};

/// What the engine does wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    Base(f64),
    NormSkipped,
    Epsilon(f32),
    SelfUnseen,
    NextSeen,
    Tiled,
    Physical,
    ValueLeft,
    Stale,
}

/// A compaction: when, and which rows each KV head keeps.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) n: usize,
    pub(super) keep: Vec<Vec<usize>>,
}

#[derive(Debug, Default, Clone)]
struct Head {
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

pub(super) struct Engine {
    hyper: Hyper,
    weights: Weights,
    fault: Option<Fault>,
    loaded: BTreeMap<String, Vec<f32>>,
    cache: Vec<Vec<Head>>,
    /// Norms, projections and sums are rounded to bfloat16.
    narrow: bool,
}

fn brain(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Engine {
    pub(super) fn new(dir: &Path, fault: Option<Fault>) -> Self {
        let hyper = Hyper::read(dir).unwrap();
        let heads = vec![Head::default(); hyper.kv_heads];
        let cache = vec![heads; hyper.layers];
        let weights = Weights::open(dir).unwrap();
        Self { hyper, weights, fault, loaded: BTreeMap::new(), cache, narrow: false }
    }

    pub(super) fn narrow(mut self) -> Self {
        self.narrow = true;
        self
    }

    fn round(&self, value: f32) -> f32 {
        if self.narrow { brain(value) } else { value }
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> Vec<f32> {
        let weights = &self.weights;
        let read = || {
            let tensor = weights.widen(name, shape, Precision::F32).unwrap();
            let mut values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            if self.narrow {
                values.iter_mut().for_each(|value| *value = brain(*value));
            }
            values
        };
        self.loaded.entry(name.to_owned()).or_insert_with(read).clone()
    }

    fn linear(&mut self, layer: usize, name: &str, x: &[f32], out: usize) -> Vec<f32> {
        let full = format!("model.layers.{layer}.{name}.weight");
        let weight = self.weight(&full, &[out, x.len()]);
        weight.chunks_exact(x.len()).map(|row| self.round(dot(row, x))).collect()
    }

    fn norm(&mut self, name: &str, x: &[f32], width: usize) -> Vec<f32> {
        let weight = self.weight(name, &[width]);
        let eps = match self.fault {
            Some(Fault::Epsilon(eps)) => eps,
            _ => self.hyper.norm_eps as f32,
        };
        x.chunks_exact(width)
            .flat_map(|piece| {
                let scale = 1.0 / (dot(piece, piece) / width as f32 + eps).sqrt();
                let scaled = |(v, w): (&f32, &f32)| self.round(self.round(v * scale) * w);
                piece.iter().zip(&weight).map(scaled).collect::<Vec<_>>()
            })
            .collect()
    }

    fn rotate(&self, x: &[f32], index: usize) -> Vec<f32> {
        let width = self.hyper.head_dim;
        let half = width / 2;
        let theta = match self.fault {
            Some(Fault::Base(theta)) => theta,
            _ => self.hyper.rope.theta,
        };
        let mut out = x.to_vec();
        for (head, turned) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for i in 0..half {
                let freq = 1.0 / theta.powf(2.0 * i as f64 / width as f64);
                let (sin, cos) = (index as f32 * freq as f32).sin_cos();
                turned[i] = head[i] * cos - head[half + i] * sin;
                turned[half + i] = head[half + i] * cos + head[i] * sin;
            }
        }
        out.iter_mut().for_each(|value| *value = self.round(*value));
        out
    }

    /// Feeds `ids` from position `start` as one block, layer by layer; returns the stages of each row.
    fn feed(&mut self, ids: &[u32], start: usize) -> Vec<Vec<(String, Vec<f32>)>> {
        let h = self.hyper.clone();
        let table = self.weight("model.embed_tokens.weight", &[h.vocab, h.hidden]);
        let mut stages: Vec<Vec<(String, Vec<f32>)>> = vec![Vec::new(); ids.len()];
        let mut x: Vec<Vec<f32>> = ids
            .iter()
            .map(|id| table[*id as usize * h.hidden..(*id as usize + 1) * h.hidden].to_vec())
            .collect();
        for (row, x) in x.iter().enumerate() {
            stages[row].push(("embed".to_owned(), x.clone()));
        }
        let live = self.cache[0][0].k.len();
        for layer in 0..h.layers {
            let mut put = |row: usize, name: &str, values: &[f32]| {
                stages[row].push((format!("layer{layer:02}.{name}"), values.to_vec()));
            };
            let mut queries = Vec::new();
            for (row, x) in x.iter().enumerate() {
                let normed =
                    self.norm(&format!("model.layers.{layer}.input_layernorm.weight"), x, h.hidden);
                put(row, "input_norm", &normed);
                let mut q = self.linear(layer, "self_attn.q_proj", &normed, h.heads * h.head_dim);
                let mut k =
                    self.linear(layer, "self_attn.k_proj", &normed, h.kv_heads * h.head_dim);
                let v = self.linear(layer, "self_attn.v_proj", &normed, h.kv_heads * h.head_dim);
                put(row, "q_proj", &q);
                put(row, "k_proj", &k);
                put(row, "v_proj", &v);
                if self.fault != Some(Fault::NormSkipped) {
                    q = self.norm(
                        &format!("model.layers.{layer}.self_attn.q_norm.weight"),
                        &q,
                        h.head_dim,
                    );
                    k = self.norm(
                        &format!("model.layers.{layer}.self_attn.k_norm.weight"),
                        &k,
                        h.head_dim,
                    );
                }
                put(row, "q_norm", &q);
                put(row, "k_norm", &k);
                let physical = self.fault == Some(Fault::Physical);
                let index = if physical { live + row } else { start + row };
                let (q, k) = (self.rotate(&q, index), self.rotate(&k, index));
                put(row, "q_rope", &q);
                put(row, "k_rope", &k);
                for (head, cache) in self.cache[layer].iter_mut().enumerate() {
                    let part = head * h.head_dim..(head + 1) * h.head_dim;
                    cache.k.push(k[part.clone()].to_vec());
                    cache.v.push(v[part].to_vec());
                }
                queries.push(q);
            }
            for (row, q) in queries.iter().enumerate() {
                let mixed = self.attend(layer, q, live + row, live + ids.len());
                put(row, "attn_heads", &mixed);
                let attended = self.linear(layer, "self_attn.o_proj", &mixed, h.hidden);
                put(row, "attn_out", &attended);
                let x = &mut x[row];
                x.iter_mut().zip(&attended).for_each(|(x, a)| *x = self.round(*x + a));
                let normed = self.norm(
                    &format!("model.layers.{layer}.post_attention_layernorm.weight"),
                    x,
                    h.hidden,
                );
                put(row, "post_norm", &normed);
                let gate = self.linear(layer, "mlp.gate_proj", &normed, h.intermediate);
                let up = self.linear(layer, "mlp.up_proj", &normed, h.intermediate);
                let inner: Vec<f32> = gate
                    .iter()
                    .zip(&up)
                    .map(|(g, u)| self.round(self.round(g / (1.0 + (-g).exp())) * u))
                    .collect();
                let mlp = self.linear(layer, "mlp.down_proj", &inner, h.hidden);
                put(row, "mlp_out", &mlp);
                x.iter_mut().zip(&mlp).for_each(|(x, m)| *x = self.round(*x + m));
                put(row, "out", x);
            }
        }
        stages
    }

    /// Row `row` of the cache attends over the rows up to itself.
    fn attend(&self, layer: usize, q: &[f32], row: usize, rows: usize) -> Vec<f32> {
        let h = &self.hyper;
        let seen = match self.fault {
            Some(Fault::SelfUnseen) => row.max(1),
            Some(Fault::NextSeen) => (row + 2).min(rows),
            _ => row + 1,
        };
        let mut out = Vec::new();
        for (head, q) in q.chunks_exact(h.head_dim).enumerate() {
            let kv =
                if self.fault == Some(Fault::Tiled) { head % h.kv_heads } else { head / h.group() };
            let cache = &self.cache[layer][kv];
            let scale = 1.0 / (h.head_dim as f32).sqrt();
            let scores: Vec<f32> = cache.k[..seen].iter().map(|k| dot(q, k) * scale).collect();
            let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let shares: Vec<f32> = scores.iter().map(|score| (score - highest).exp()).collect();
            let total: f32 = shares.iter().sum();
            for i in 0..h.head_dim {
                let sum: f32 = shares.iter().zip(&cache.v).map(|(share, v)| share * v[i]).sum();
                out.push(self.round(sum / total));
            }
        }
        out
    }

    fn gather(&mut self, event: &Event) {
        for heads in &mut self.cache {
            for (head, (cache, keep)) in heads.iter_mut().zip(&event.keep).enumerate() {
                let old = cache.clone();
                cache.k = keep.iter().map(|row| old.k[*row].clone()).collect();
                cache.v = match self.fault {
                    Some(Fault::ValueLeft) => old.v[..keep.len()].to_vec(),
                    _ => keep.iter().map(|row| old.v[*row].clone()).collect(),
                };
                if self.fault == Some(Fault::Stale) && head == 1 {
                    let place = keep.len() - 2;
                    cache.k[place].clone_from(&old.k[place]);
                    cache.v[place].clone_from(&old.v[place]);
                }
            }
        }
    }

    fn cache_tensors(&self, when: &str) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        for (layer, heads) in self.cache.iter().enumerate() {
            let shape = vec![heads.len(), heads[0].k.len(), self.hyper.head_dim];
            let k: Vec<f32> = heads.iter().flat_map(|head| head.k.concat()).collect();
            let v: Vec<f32> = heads.iter().flat_map(|head| head.v.concat()).collect();
            tensors.push(Tensor::from_f32(format!("{when}.k.layer{layer:02}"), shape.clone(), &k));
            tensors.push(Tensor::from_f32(format!("{when}.v.layer{layer:02}"), shape, &v));
        }
        tensors
    }
}

/// What is recorded.
#[derive(Debug, Clone)]
pub(super) struct Script<'a> {
    pub(super) ids: &'a [u32],
    pub(super) prompt: usize,
    pub(super) events: &'a [Event],
    pub(super) hidden: &'a [usize],
    pub(super) caches: bool,
}

/// Runs the engine over a script and records it.
pub(super) fn record(engine: &mut Engine, script: &Script<'_>) -> MemorySink {
    let mut sink = MemorySink::default();
    let mut start = 0;
    while start < script.ids.len() {
        let stop = script.events.iter().find(|event| event.n > start);
        let end = stop.map_or(script.ids.len(), |event| event.n);
        let live = engine.cache[0][0].k.len();
        let stages = engine.feed(&script.ids[start..end], start);
        for (offset, stages) in stages.into_iter().enumerate() {
            let position = start + offset;
            let closes = stop.filter(|_| position + 1 == end);
            sink.steps.push(step(script, position, live + offset, closes.map(|e| e.keep[0].len())));
            if script.hidden.contains(&position) {
                sink.dumps.push(row_dump(position, stages));
            }
        }
        if let Some(event) = stop {
            compact(engine, script, event, &mut sink);
        }
        start = end;
    }
    sink.samples.push(sample(script));
    sink
}

fn compact(engine: &mut Engine, script: &Script<'_>, event: &Event, sink: &mut MemorySink) {
    let ordinal = u32::try_from(sink.events.len()).unwrap() + 1;
    let before = engine.cache[0][0].k.len();
    let mut tensors = if script.caches { engine.cache_tensors("pre") } else { Vec::new() };
    engine.gather(event);
    if script.caches {
        tensors.extend(engine.cache_tensors("post"));
    }
    let kept = event.keep[0].len();
    let keep: Vec<i32> = event.keep.concat().iter().map(|row| *row as i32).collect();
    tensors.push(Tensor::from_i32("keep", vec![event.keep.len(), kept], &keep));
    let id = DumpId::Compaction { sample_id: "s".to_owned(), ordinal };
    sink.dumps.push(Dump { id, metadata: BTreeMap::new(), tensors });
    sink.events.push(EventRow {
        sample_id: "s".to_owned(),
        ordinal,
        absolute_position: event.n as u32,
        round_start: None,
        rows_before: before as u32,
        rows_after: kept as u32,
        protected: 0,
        candidates: 0,
        score_seconds: 0.0,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: None,
    });
}

fn row_dump(position: usize, stages: Vec<(String, Vec<f32>)>) -> Dump {
    let tensors = stages
        .into_iter()
        .map(|(name, values)| {
            Tensor::from_f32(format!("hidden.{name}"), vec![values.len()], &values)
        })
        .collect();
    let id = DumpId::Step { sample_id: "s".to_owned(), position: position as u32 };
    Dump { id, metadata: BTreeMap::new(), tensors }
}

fn step(script: &Script<'_>, position: usize, rows: usize, kept: Option<usize>) -> StepRow {
    StepRow {
        sample_id: "s".to_owned(),
        position: position as u32,
        phase: if position < script.prompt { Phase::Prompt } else { Phase::Decode },
        token_id: script.ids[position],
        next_token: None,
        rows_before: rows as u32,
        rows_after: kept.unwrap_or(rows + 1) as u32,
        rows_bucketed: None,
        compaction: None,
        rope_index: None,
        argmax: 0,
        top_ids: vec![0],
        top_logits: vec![0.0],
        logsumexp: None,
        top2_margin: None,
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

fn sample(script: &Script<'_>) -> SampleRow {
    SampleRow {
        sample_id: "s".to_owned(),
        prompt_ids: script.ids[..script.prompt].to_vec(),
        prompt_ids_sha256: String::new(),
        prompt_text_sha256: None,
        prompt_len: Some(script.prompt as u32),
        base_seed: None,
        seed_index: None,
        effective_seed: None,
        generated_ids: script.ids[script.prompt..].to_vec(),
        text: None,
        gold: None,
        answer: None,
        answer_rule: None,
        finish: FinishReason::Unknown,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
    }
}
