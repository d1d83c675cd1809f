//! A whole selection, queued.

use lockstep_traces::{Aggregation, DType, RuleSet, SelectionMode};

use super::DeviceNoise;
use super::answer::SelectFailure;
use super::reduce::{GuardRows, Guards, Lists, Moments, ReduceOps, WORDS, ZRule};
use super::score::{
    CacheKeys, Floors, HeadTables, Phase, ScoreOps, Turned, Units, Unrotate, narrow,
};
use super::tables::{Plan, noise_order, values};
use super::top::{Choice, TopOps};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};
use crate::cuda::ops::gather::{KeepLists, KeepShape};
use crate::select::parts::{
    Direct, Outline, PromptRows, Protection, Sizes, check_exact, outline, table_row,
};
use crate::select::{KeepSet, Selector, StageSeconds};

/// One compaction to decide, in device memory.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSelect {
    /// Address of K, `[layers][kv_heads][capacity][head_dim]` of the cache dtype.
    pub k_base: u64,
    /// Rows from one head to the next, of K and of positions.
    pub capacity: usize,
    /// Live rows T.
    pub rows: usize,
    /// Absolute positions, `[kv_heads][capacity]` or `[layers][kv_heads][capacity]`.
    pub positions: View<u32>,
    /// The latter?
    pub positions_by_layer: bool,
    /// R, as [`crate::select::SelectInput::round_start`].
    pub round_start: u32,
    /// P, as [`crate::select::SelectInput::prompt_len`].
    pub prompt_len: usize,
    /// As [`crate::select::SelectInput::keep`].
    pub keep: usize,
    /// Take the seconds of each stage: the host waits for every one.
    pub timed: bool,
}

/// What is decided before any score is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The rule set declines: the cache keeps growing.
    Refused,
    /// Decided without scores.
    Settled {
        /// Rows to keep, in device memory too.
        keep: KeepSet,
        /// Rows kept outright, KV head 0.
        protected: usize,
    },
    /// Ranked.
    Ranked {
        /// First row that is ranked; the ones before it are kept.
        first_row: usize,
        /// Rows taken of the others.
        count: usize,
    },
}

/// A selection under way. Its memory is the [`SelectOps`]'s, until the next selection.
#[derive(Debug, Clone)]
pub struct Queued {
    /// What was decided.
    pub decision: Decision,
    /// Rows to keep; `None` where the rule set declines.
    pub keep: Option<KeepLists>,
    /// Result words, written where rows are ranked: bit 0 of the first, a ranking holds a NaN; then guarded rows; then the largest position.
    pub words: View<u32>,
    /// Live rows before.
    pub rows: usize,
    /// R that entered the scores.
    pub round_start: u32,
    /// Columns of the raw scores, leading ones that are dropped later included.
    pub raw_columns: usize,
    /// Seconds by stage, where they were asked for.
    pub seconds: StageSeconds,
}

impl Queued {
    /// Ranked columns.
    pub(super) fn columns(&self) -> usize {
        match self.decision {
            Decision::Ranked { first_row, .. } => self.rows - first_row,
            Decision::Refused | Decision::Settled { .. } => 0,
        }
    }
}

/// A selector on the device: its tables, kernels and memory for caches of up to `max_rows` rows.
#[derive(Debug)]
pub struct SelectOps {
    pub(super) selector: Selector,
    pub(super) plan: Plan,
    pub(super) shape: KeepShape,
    score: ScoreOps,
    reduce: ReduceOps,
    top: TopOps,
    tables: HeadTables,
    units: Units,
    group: Option<Lists>,
    rankings: Lists,
    order: Buffer<u32>,
    skipped_rows: usize,
    memory: Memory,
    max_rows: usize,
}

/// Memory of one selection.
#[derive(Debug)]
struct Memory {
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    turned: Buffer<f32>,
    /// `[heads][raw columns]`.
    raw: Buffer<f32>,
    /// `[rows of the shared matrix][columns]`.
    scores: Buffer<f32>,
    /// `[lists][columns]`.
    ranked: Buffer<f32>,
    flags: Buffer<u32>,
    words: Buffer<u32>,
    keys: Buffer<u64>,
    keep: Buffer<u32>,
}

impl SelectOps {
    /// Uploads the tables of `selector` and allocates everything that selections need.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for a head width or dtype that is not scored; compile errors, too little memory.
    pub fn new(
        gpu: &Gpu,
        selector: &Selector,
        cache_dtype: DType,
        max_rows: usize,
    ) -> Result<Self, GpuError> {
        if max_rows == 0 {
            return Err(GpuError::unsupported("selections of caches without rows"));
        }
        let (parts, rules) = (selector.parts(), selector.rules());
        let plan = Plan::new(rules, &parts);
        let shape = match rules.mode {
            SelectionMode::Union => KeepShape::Shared,
            SelectionMode::PerHead => KeepShape::PerHead,
            SelectionMode::PerLayer => KeepShape::PerLayer,
            SelectionMode::PerLayerPerHead | SelectionMode::LegacyLayerLocal => {
                KeepShape::PerLayerPerHead
            }
        };
        let (heads, offsets) = (parts.heads.len(), &parts.scorer.offsets);
        let w = &parts.scorer.frequencies;
        let (order, skipped_rows) = noise_order(rules, &parts);
        let phases = offsets.len() * w.len();
        let turns = turns(selector);
        let lists = plan.rankings.len();
        let memory = Memory {
            cos: gpu.alloc(phases)?,
            sin: gpu.alloc(phases)?,
            turned: gpu.alloc(heads * turns * 2 * w.len())?,
            raw: gpu.alloc(heads * max_rows)?,
            scores: gpu.alloc(plan.rows * max_rows)?,
            ranked: gpu.alloc(lists * max_rows)?,
            flags: gpu.alloc(max_rows)?,
            words: gpu.zeros(WORDS)?,
            keys: gpu.alloc(if by_score(selector) {
                TopOps::scratch(lists, max_rows)
            } else {
                0
            })?,
            keep: gpu.alloc(lists * max_rows)?,
        };
        let group = &plan.group;
        Ok(Self {
            score: ScoreOps::new(gpu, cache_dtype, parts.dims.head_dim)?,
            reduce: ReduceOps::new(gpu)?,
            top: TopOps::new(gpu)?,
            tables: HeadTables::new(gpu, heads, &values(parts.heads), offsets, w)?,
            units: Units::new(gpu, &parts.scorer.units)?,
            group: if group.is_empty() { None } else { Some(Lists::new(gpu, group)?) },
            rankings: Lists::new(gpu, &plan.rankings)?,
            order: gpu.upload(&narrow(order.into_iter())?)?,
            selector: selector.clone(),
            plan,
            shape,
            skipped_rows,
            memory,
            max_rows,
        })
    }

    /// Bytes of device memory that selections work in.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let memory = &self.memory;
        let words =
            [&memory.cos, &memory.sin, &memory.turned, &memory.raw, &memory.scores, &memory.ranked];
        let words: usize = words.iter().map(|buffer| buffer.len()).sum();
        4 * (words + memory.flags.len() + memory.words.len() + memory.keep.len())
            + 8 * memory.keys.len()
    }

    /// Queues a whole selection; nothing waits (but where `timed`). Noise is drawn only where something is scored.
    ///
    /// # Errors
    /// [`SelectFailure::Select`] where R or the rows are too many for exact phases; [`SelectFailure::Gpu`] where sizes do not fit, and driver
    /// errors.
    pub fn select(
        &self,
        gpu: &Gpu,
        input: &DeviceSelect,
        noise: Option<&DeviceNoise>,
    ) -> Result<Queued, SelectFailure> {
        self.check(input)?;
        check_exact(input.round_start, input.rows)?;
        let dims = self.selector.parts().dims;
        let sizes = Sizes { rows: input.rows, prompt_len: input.prompt_len, keep: input.keep };
        let round_start = if self.selector.parts().faults.round_start_is_rows() {
            u32::try_from(input.rows).unwrap_or(u32::MAX)
        } else {
            input.round_start
        };
        let mut queued = Queued {
            decision: Decision::Refused,
            keep: None,
            words: self.memory.words.view(),
            rows: input.rows,
            round_start,
            raw_columns: 0,
            seconds: StageSeconds::default(),
        };
        match outline(self.selector.rules(), dims, sizes) {
            Outline::Refused => {}
            Outline::Settled { keep, protected } => {
                let shape = KeepShape::of(&keep);
                let (rows, count) = (self.memory.keep.view(), keep.len());
                // Rows decided without scores are always the first ones; none at all is for the caller to see.
                if count > 0 {
                    self.top.in_order(gpu, rows, shape.lists(dims), count)?;
                }
                queued.keep = Some(KeepLists { rows, shape, count });
                queued.decision = Decision::Settled { keep, protected };
            }
            Outline::Rank { first_row, count, protection } => {
                queued.decision = Decision::Ranked { first_row, count };
                let rows = self.memory.keep.view();
                queued.keep = Some(KeepLists { rows, shape: self.shape, count: first_row + count });
                self.rank(gpu, input, noise, protection, &mut queued)?;
            }
        }
        Ok(queued)
    }

    fn check(&self, input: &DeviceSelect) -> Result<(), GpuError> {
        if input.rows == 0 || input.rows > self.max_rows || input.rows > input.capacity {
            return Err(GpuError::unsupported(format!(
                "{} rows of a cache of {}; 1 to {} are selected from",
                input.rows, input.capacity, self.max_rows
            )));
        }
        input.positions.arg(self.position_lists(input) * input.capacity).map(|_| ())
    }

    fn position_lists(&self, input: &DeviceSelect) -> usize {
        let dims = self.selector.parts().dims;
        if input.positions_by_layer { dims.layers * dims.kv_heads } else { dims.kv_heads }
    }

    fn rank(
        &self,
        gpu: &Gpu,
        input: &DeviceSelect,
        noise: Option<&DeviceNoise>,
        protection: Protection,
        queued: &mut Queued,
    ) -> Result<(), GpuError> {
        let Decision::Ranked { first_row, count } = queued.decision else { return Ok(()) };
        let faults = self.selector.parts().faults;
        // The planted row set of `hf` takes in the prefix, which is otherwise not scored.
        let outside = if faults.zscore_rows() { first_row } else { 0 };
        queued.raw_columns = input.rows - first_row + outside;
        let stage = |work: &dyn Fn() -> Result<(), GpuError>| {
            if input.timed { gpu.timed(work) } else { work().map(|()| 0.0) }
        };
        let keys = CacheKeys {
            base: input.k_base,
            capacity: input.capacity,
            first_row: first_row - outside,
            columns: queued.raw_columns,
        };
        let score = stage(&|| self.score(gpu, input, &keys, queued.round_start))?;
        let reduce = stage(&|| {
            self.guard(gpu, input, first_row, protection)?;
            self.reduce(gpu, queued.raw_columns, outside, noise)
        })?;
        let choice = Choice {
            lists: self.plan.rankings.len(),
            columns: queued.columns(),
            count,
            prefix: first_row,
            falling: by_score(&self.selector),
            higher: faults.higher_row_wins(),
        };
        let memory = &self.memory;
        let (ranked, keys, keep) = (memory.ranked.view(), memory.keys.view(), memory.keep.view());
        let select = stage(&|| self.top.best(gpu, &choice, ranked, keys, keep))?;
        queued.seconds = StageSeconds { score, reduce, select };
        Ok(())
    }

    fn score(
        &self,
        gpu: &Gpu,
        input: &DeviceSelect,
        keys: &CacheKeys,
        round_start: u32,
    ) -> Result<(), GpuError> {
        let (rules, parts) = (self.selector.rules(), self.selector.parts());
        let (tables, raw) = ((&self.tables, &self.units), self.memory.raw.view());
        if rules.rule_set == RuleSet::Hf {
            let how = Unrotate {
                positions: input.positions,
                lists: self.position_lists(input),
                round_start,
                trig: !rules.trig_dropped(),
                largest: rules.score_aggregation == Aggregation::Max,
                scaling: parts.scorer.attention_scaling,
            };
            return self.score.unrotate(gpu, tables, keys, &how, raw);
        }
        let floors = match parts.scorer.form() {
            Direct::Native => Floors::Native,
            Direct::Triton => Floors::Triton,
            Direct::Torch => Floors::Torch,
        };
        let turned = Turned { values: self.memory.turned.view(), turns: turns(&self.selector) };
        if turned.turns > 0 {
            let base = table_row(rules, round_start as usize);
            let base = u32::try_from(base).unwrap_or(u32::MAX);
            let phases = (self.memory.cos.view(), self.memory.sin.view());
            let at = Phase { base, residual: round_start - base };
            self.score.phases(gpu, &self.tables, at, phases)?;
            self.score.turn(gpu, &self.tables, phases, turned)?;
        }
        self.score.direct(gpu, tables, keys, (turned, floors), raw)
    }

    fn guard(
        &self,
        gpu: &Gpu,
        input: &DeviceSelect,
        first_row: usize,
        protection: Protection,
    ) -> Result<(), GpuError> {
        let (flags, words) = (self.memory.flags.view(), self.memory.words.view());
        gpu.fill(words, 0)?;
        let call = GuardRows {
            positions: input.positions,
            lists: self.position_lists(input),
            stride: input.capacity,
            rows: input.rows,
            first_row,
            window: protection.window,
            prompt_rule: match protection.prompt {
                PromptRows::Open => 0,
                PromptRows::Leading => 1,
                PromptRows::ByPosition => 2,
            },
            // No row lies beyond: any larger length protects as much.
            prompt_len: input.prompt_len.min(u32::MAX as usize),
        };
        self.reduce.guard(gpu, &call, flags, words)
    }

    fn reduce(
        &self,
        gpu: &Gpu,
        raw_columns: usize,
        outside: usize,
        noise: Option<&DeviceNoise>,
    ) -> Result<(), GpuError> {
        let faults = self.selector.parts().faults;
        let (memory, columns) = (&self.memory, raw_columns - outside);
        let how = Moments { dropped: outside, ..self.moments(outside) };
        let (raw, scores) = (memory.raw.view(), memory.scores.view());
        if self.plan.group_first {
            let groups = self.plan.group.len();
            let z = scores.part(groups * columns..scores.len())?;
            if let Some(lists) = &self.group {
                self.reduce.combine(gpu, (raw, columns), lists, None, scores)?;
            }
            self.reduce.zscore(gpu, (scores, groups, columns), &how, z)?;
        } else {
            let heads = self.tables.heads();
            self.reduce.zscore(gpu, (raw, heads, raw_columns), &how, scores)?;
            if let Some(noise) = noise {
                let skip = self.skipped_rows * columns;
                self.reduce.noise(gpu, noise, (scores, columns), self.order.view(), skip)?;
            }
            if let Some(lists) = &self.group {
                let group = scores.part(heads * columns..scores.len())?;
                self.reduce.combine(gpu, (scores, columns), lists, None, group)?;
            }
        }
        let guards = Guards {
            flags: memory.flags.view(),
            words: memory.words.view(),
            newest_lost: faults.newest_row_lost(),
        };
        let ranked = memory.ranked.view();
        self.reduce.combine(gpu, (scores, columns), &self.rankings, Some(&guards), ranked)
    }

    /// All columns count, or under the planted fault the unguarded ones (and for `hf`, which guards none, the prefix besides).
    fn moments(&self, outside: usize) -> Moments {
        let (rules, faults) = (self.selector.rules(), self.selector.parts().faults);
        let rule = match rules.rule_set {
            _ if !rules.normalize => ZRule::Off,
            RuleSet::Trt => ZRule::Native,
            RuleSet::Vllm | RuleSet::Sglang => ZRule::Triton,
            RuleSet::Hf => ZRule::Clamped,
        };
        let population = (rules.rule_set == RuleSet::Hf) != faults.zscore_population();
        let left_out = (faults.zscore_rows() && outside == 0).then_some(self.memory.flags.view());
        Moments { rule, population, left_out, dropped: 0 }
    }

    /// Raw scores, `[heads][raw columns]`; the shared matrix; rankings, `[lists][columns]`.
    pub(super) fn matrices(&self) -> (View<f32>, View<f32>, View<f32>) {
        (self.memory.raw.view(), self.memory.scores.view(), self.memory.ranked.view())
    }
}

/// Mean queries by head: one where the mean over offsets is taken, one by offset for the maximum.
fn turns(selector: &Selector) -> usize {
    let rules = selector.rules();
    if rules.trig_dropped() || rules.rule_set == RuleSet::Hf {
        0
    } else if rules.score_aggregation == Aggregation::Mean {
        1
    } else {
        selector.parts().scorer.offsets.len()
    }
}

/// `hf`'s per-head modes list rows by falling score.
fn by_score(selector: &Selector) -> bool {
    let rules = selector.rules();
    rules.rule_set == RuleSet::Hf && rules.mode != SelectionMode::Union
}
