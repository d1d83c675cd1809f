//! Lifecycles: when a compaction is due, what it keeps, how rows and positions move. Groups `hf_lifecycle` and
//! `vllm_lifecycle`.

use std::path::Path;

use lockstep_reference::select::{Moment, Positions, Progress, Selection};
use lockstep_traces::{PolicyKind, PolicySpec, RuleSet, Trigger};
use serde::Deserialize;
use serde_json::Value;

use super::configs::{hf_mode, vllm_mode};
use super::expected::Expected;
use super::golden::{CaseStats, Tensors};
use super::implementation::{Implementation, SelectorCase};
use super::index::Case;
use super::report::CaseReport;
use super::selections::{finish, heads, require_listed};
use super::tolerance::tolerance;

#[derive(Debug, Deserialize)]
struct HfLife {
    prompt_len: usize,
    steps: usize,
    budget: usize,
    divide_length: usize,
    offset_max_length: usize,
    #[serde(default)]
    normalize_scores: bool,
    #[serde(default)]
    count_prompt_tokens: bool,
    #[serde(default)]
    use_slack_trigger: bool,
    #[serde(default)]
    per_head_pruning: bool,
    #[serde(default)]
    per_layer_perhead_pruning: bool,
    #[serde(default)]
    allow_prefill_compression: bool,
    pruning_seed: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct VllmLife {
    prompt_len: usize,
    steps: usize,
    kv_budget: usize,
    divide_length: usize,
    window_size: usize,
    block_size: usize,
    protect_prefill: bool,
    include_prefill_in_budget: bool,
    pruning_mode: String,
    offset_max_length: usize,
}

/// A lifecycle in the vocabulary of the workbench.
struct Life {
    spec: PolicySpec,
    prompt_len: usize,
    steps: usize,
    /// The compaction comes before the step's row is written (servers) and not after it (hf).
    before_forward: bool,
    block_size: Option<usize>,
}

/// One compaction that the schedule asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Due {
    step: usize,
    absolute_position: usize,
    rows: usize,
}

pub(crate) fn run(dir: &Path, case: &Case, by: &mut dyn Implementation) -> CaseReport {
    finish(CaseReport::new(&case.name, &case.group), |report| {
        let life = if case.group == "hf_lifecycle" { hf(case)? } else { vllm(case)? };
        let file = Tensors::open(
            dir,
            case.expected.as_deref().ok_or("the index names no expected file")?,
        )?;
        require_listed(case, &file)?;
        let stats = CaseStats::open(dir, case.stats.as_deref().ok_or("the index names no stats")?)?;
        walk(case, &life, &file, &stats, by, report)
    })
}

fn hf(case: &Case) -> Result<Life, String> {
    let config: HfLife = case.settings()?;
    let trigger = if config.use_slack_trigger { Trigger::Slack } else { Trigger::Interval };
    let spec = PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(RuleSet::Hf),
        kv_budget: Some(config.budget),
        divide_length: Some(config.divide_length),
        offset_max_length: Some(config.offset_max_length),
        normalize: Some(config.normalize_scores),
        count_prompt_tokens: Some(config.count_prompt_tokens),
        trigger: Some(trigger),
        mode: Some(hf_mode(config.per_head_pruning, config.per_layer_perhead_pruning)),
        allow_prefill_compression: Some(config.allow_prefill_compression),
        noise_seed: Some(config.pruning_seed.unwrap_or(-1)),
        ..PolicySpec::default()
    };
    let (prompt_len, steps) = (config.prompt_len, config.steps);
    Ok(Life { spec, prompt_len, steps, before_forward: false, block_size: None })
}

fn vllm(case: &Case) -> Result<Life, String> {
    let config: VllmLife = case.settings()?;
    let spec = PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(RuleSet::Vllm),
        kv_budget: Some(config.kv_budget),
        divide_length: Some(config.divide_length),
        recent_window: Some(config.window_size),
        protect_prefill: Some(config.protect_prefill),
        include_prefill_in_budget: Some(config.include_prefill_in_budget),
        offset_max_length: Some(config.offset_max_length),
        mode: Some(vllm_mode(&config.pruning_mode, "hf_aligned_global_per_head")?),
        ..PolicySpec::default()
    };
    let (prompt_len, steps) = (config.prompt_len, config.steps);
    Ok(Life { spec, prompt_len, steps, before_forward: true, block_size: Some(config.block_size) })
}

/// Walks through all steps; at each compaction the recorded cache is selected from and the recorded rows are followed.
fn walk(
    case: &Case,
    life: &Life,
    file: &Tensors,
    stats: &CaseStats,
    by: &mut dyn Implementation,
    report: &mut CaseReport,
) -> Result<(), String> {
    let events = case.events.as_deref().ok_or("the index lists no events")?;
    let mut rows = life.prompt_len;
    let mut rows_seen = if life.before_forward { Vec::new() } else { vec![rows] };
    let mut compactions = 0;
    let mut last = None;
    for step in 1..=life.steps {
        let mut n = life.prompt_len + step - 1;
        if !life.before_forward {
            (rows, n) = (rows + 1, n + 1);
        }
        let progress = Progress {
            rows,
            absolute_position: n,
            prompt_len: life.prompt_len,
            prefix_rows: life.prompt_len.min(rows),
            last,
        };
        if by.due(&life.spec, &progress)? {
            let due = Due { step, absolute_position: n, rows };
            let event = events.get(compactions).ok_or_else(|| {
                format!("a compaction is due at N = {n}, where upstream has none")
            })?;
            rows = compact(case, life, (file, stats), (&due, event, compactions), by, report)?;
            compactions += 1;
            last = Some(n);
        }
        rows += usize::from(life.before_forward);
        rows_seen.push(rows);
    }
    if compactions != events.len() {
        return Err(format!("{compactions} compactions are due, upstream has {}", events.len()));
    }
    let expected = case.cache_len_per_step.as_ref().or(case.rows_per_step.as_ref());
    let expected = expected.ok_or("the index lists no rows per step")?;
    report.compared += 1;
    match rows_seen.iter().zip(expected).position(|(ours, theirs)| ours != theirs) {
        Some(at) => Err(format!("entry {at} of the rows per step differs")),
        None if rows_seen.len() != expected.len() => {
            Err(format!("{} steps, upstream has {}", rows_seen.len(), expected.len()))
        }
        None => Ok(()),
    }
}

/// One compaction; returns the rows that stay.
fn compact(
    case: &Case,
    life: &Life,
    (file, stats): (&Tensors, &CaseStats),
    (due, event, index): (&Due, &Value, usize),
    by: &mut dyn Implementation,
    report: &mut CaseReport,
) -> Result<usize, String> {
    let name = |what: &str| format!("c{index}.{what}");
    let keys = file.keys(&name("k_before"))?;
    let rows = keys.first().map_or(0, lockstep_reference::select::KeyView::rows);
    let positions = if life.before_forward {
        // Not stored, and no score reads them: vllm's keys enter as stored.
        Positions::Shared((0i32..).take(rows).collect())
    } else {
        file.positions(&name("positions_before"))?
    };
    let selector = SelectorCase {
        name: &case.name,
        spec: life.spec.clone(),
        stats,
        layers: (0u32..).take(keys.len()).collect(),
        keys,
        positions,
        heads: heads(case.dims)?,
        moment: Moment::at(due.absolute_position, life.prompt_len),
        begins: index == 0,
    };
    let ours = by.select(&selector)?;
    let keep = file.indices(&name("keep"))?;
    let kept = keep.0.last().copied().unwrap_or(0);
    check_event(life, due, event, kept)?;
    if rows != due.rows {
        return Err(format!(
            "compaction {index}: {rows} rows are stored, the schedule has {}",
            due.rows
        ));
    }
    let ranked = file.optional(&name("agg_scores"))?;
    let mut expected = Expected::new(None, ranked, keep, &selector);
    if ours.stages.is_none() {
        // Rows were fixed without ranking: no prefix in front of scores.
        expected.first = 0;
    }
    expected.judge(&ours, report, tolerance(&life.spec));
    follow(file, index, &ours, due, report)?;
    Ok(kept)
}

/// Figures of the event, predicted from the settings alone.
fn check_event(life: &Life, due: &Due, event: &Value, kept: usize) -> Result<(), String> {
    let mut expected = vec![("rows_before", due.rows)];
    if life.before_forward {
        let budget = life.spec.kv_budget.unwrap_or(0);
        let block = life.block_size.unwrap_or(1).max(1);
        expected.extend([
            ("step", due.step),
            ("round_start", due.absolute_position),
            ("effective_tokens_scored", due.rows),
            ("cache_len_after", budget),
            ("budget_total", budget),
            ("reclaimed_blocks", due.rows.div_ceil(block) - kept.div_ceil(block)),
        ]);
    } else {
        expected.extend([
            ("absolute_position", due.absolute_position),
            ("prefix", life.prompt_len),
            ("rows_after", kept),
        ]);
    }
    for (field, value) in expected {
        let found = event.get(field).and_then(Value::as_u64);
        if found != u64::try_from(value).ok() {
            return Err(format!(
                "event at step {}: {field} is {found:?}, predicted {value}",
                due.step
            ));
        }
    }
    Ok(())
}

/// Recorded rows and positions after the compaction are those before it, gathered by the recorded keep; the next
/// compaction begins with them.
fn follow(
    file: &Tensors,
    index: usize,
    ours: &Selection,
    due: &Due,
    report: &mut CaseReport,
) -> Result<(), String> {
    let (shape, keep) = file.indices(&format!("c{index}.keep"))?;
    let kept = shape.last().copied().unwrap_or(0);
    let sets: Vec<&[usize]> = keep.chunks_exact(kept.max(1)).collect();
    let before = Rows::read(file, &format!("c{index}.k_before"))?;
    let after = format!("c{index}.k_after");
    let next = format!("c{}.k_before", index + 1);
    for name in [after, next] {
        if !file.has(&name) {
            continue;
        }
        report.compared += before.gathered(&Rows::read(file, &name)?, &shape, &sets)?;
    }
    if !file.has(&format!("c{index}.positions_after")) {
        return Ok(());
    }
    let old = file.positions(&format!("c{index}.positions_before"))?;
    let new = file.positions(&format!("c{index}.positions_after"))?;
    let next = format!("c{}.positions_before", index + 1);
    let next = if file.has(&next) { Some(file.positions(&next)?) } else { None };
    for layer in 0..before.layers {
        for head in 0..before.heads {
            let set = ours.keep.as_ref().and_then(|_| sets.get(before.set(&shape, layer, head)));
            let set = set.copied().unwrap_or_default();
            let (old, new) = (old.of(layer, head), new.of(layer, head));
            let gathered = set.iter().map(|row| old.get(*row));
            if !gathered.eq(new.iter().map(Some)) {
                return Err(format!(
                    "compaction {index}: positions are not gathered by the keep-set"
                ));
            }
            let Some(next) = &next else { continue };
            let grown = next.of(layer, head).iter().copied();
            let first = i32::try_from(due.absolute_position).unwrap_or(i32::MAX);
            let expected = new.iter().copied().chain(first..);
            let rows = next.of(layer, head).len();
            if !grown.eq(expected.take(rows)) {
                return Err(format!(
                    "compaction {index}: positions do not go on from N afterwards"
                ));
            }
            report.compared += 1;
        }
    }
    Ok(())
}

/// Bytes of `[layers, heads, rows, width]`.
struct Rows<'a> {
    bytes: &'a [u8],
    layers: usize,
    heads: usize,
    rows: usize,
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    fn read(file: &'a Tensors, name: &str) -> Result<Self, String> {
        let (dtype, shape, bytes) = file.bytes(name)?;
        let [layers, heads, rows, width] = shape[..] else {
            return Err(format!("`{name}` has shape {shape:?}, expected four axes"));
        };
        Ok(Self { bytes, layers, heads, rows, row_bytes: width * dtype.size() })
    }

    fn row(&self, layer: usize, head: usize, row: usize) -> Option<&[u8]> {
        let start = ((layer * self.heads + head) * self.rows + row) * self.row_bytes;
        self.bytes.get(start..start + self.row_bytes)
    }

    fn set(&self, shape: &[usize], layer: usize, head: usize) -> usize {
        match shape.len() {
            1 => 0,
            2 => head,
            _ => layer * self.heads + head,
        }
    }

    /// Counts rows of `after` that equal the gathered ones bit for bit; an error names the first that does not.
    fn gathered(&self, after: &Self, shape: &[usize], sets: &[&[usize]]) -> Result<u64, String> {
        let mut compared = 0;
        for layer in 0..self.layers {
            for head in 0..self.heads {
                let set = sets.get(self.set(shape, layer, head)).copied().unwrap_or_default();
                for (to, from) in set.iter().enumerate() {
                    let (new, old) = (after.row(layer, head, to), self.row(layer, head, *from));
                    if new.is_none() || new != old {
                        return Err(format!(
                            "layer {layer} head {head}: row {to} is not row {from} of before"
                        ));
                    }
                    compared += 1;
                }
            }
        }
        Ok(compared)
    }
}
