//! Cases without a rule set: PyTorch scorer, the native runtime's Python selector, paged moves, phase tables, calibration.

use std::path::Path;

use lockstep_reference::select::{
    Input, Moment, Pairing, Phases, Pool, Positions, SharedRules, TorchScore, calibrate, move_rows,
    offsets, select_shared, torch_scores, trig,
};
use lockstep_traces::Aggregation;
use serde::Deserialize;

use super::compare::{self, KeepMatch};
use super::golden::{CaseStats, Tensors};
use super::index::Case;
use super::report::CaseReport;
use super::selections::{finish, heads, require_listed};
use super::tolerance::{CALIBRATION, NEAR_SINGLE, RAW_DIRECT, TRIG};

/// Runs one case of a group that has no rule set; `None` for an unknown group.
pub(crate) fn run(dir: &Path, case: &Case) -> Option<CaseReport> {
    let body = match case.group.as_str() {
        "core_pytorch" => scorer,
        "trt_python_shared" => shared,
        "compaction" => paged,
        "trig" => tables,
        "calibrate" => means,
        _ => return None,
    };
    Some(finish(CaseReport::new(&case.name, &case.group), |report| {
        let file = case.expected.as_deref().ok_or("the index names no expected file")?;
        let expected = Tensors::open(dir, file)?;
        require_listed(case, &expected)?;
        body(dir, case, &expected, report)
    }))
}

fn stats_of(dir: &Path, case: &Case) -> Result<CaseStats, String> {
    CaseStats::open(dir, case.stats.as_deref().ok_or("the index names no stats")?)
}

fn input_of(dir: &Path, case: &Case) -> Result<Tensors, String> {
    Tensors::open(dir, case.input.as_deref().ok_or("the index names no input")?)
}

#[derive(Debug, Deserialize)]
struct ScorerConfig {
    layer: usize,
    round_start: usize,
    gqa_expand: usize,
    score_aggregation: Aggregation,
    disable_mlr: bool,
    disable_trig: bool,
    pruning_mode: String,
    rope_style: Pairing,
    offset_max_length: Option<usize>,
}

fn scorer(
    dir: &Path,
    case: &Case,
    expected: &Tensors,
    report: &mut CaseReport,
) -> Result<(), String> {
    let config: ScorerConfig = case.settings()?;
    let file = input_of(dir, case)?;
    let keys = file.keys("k_rot")?;
    let key = *keys.get(config.layer).ok_or("the input lacks the layer")?;
    let heads = heads(case.dims)?;
    if heads.group().map_err(|error| error.to_string())? != config.gqa_expand {
        return Err("config: gqa_expand is not the group of dims".to_owned());
    }
    let stats = stats_of(dir, case)?.head_stats().map_err(|error| error.to_string())?;
    let input = Input {
        layers: vec![u32::try_from(config.layer).unwrap_or(u32::MAX)],
        keys: vec![key],
        positions: file.positions("positions")?,
        heads,
        moment: Moment::at(config.round_start, 0),
    };
    let settings = TorchScore {
        offsets: config.score_aggregation,
        offset_max_length: config.offset_max_length.unwrap_or(65536),
        disable_mlr: config.disable_mlr,
        disable_trig: config.disable_trig,
        mean_over_heads: config.pruning_mode == "per_layer",
        pairing: config.rope_style,
    };
    let ours = torch_scores::<f64>(settings, &stats, &input).map_err(|error| error.to_string())?;
    compare::raw(report, &ours.concat(), &expected.array("raw_scores")?.values, RAW_DIRECT);
    Ok(())
}

#[derive(Debug, Deserialize)]
struct SharedConfig {
    kv_budget: usize,
    recent_window: usize,
    protect_prefill: bool,
    prefix_length: usize,
    next_position: usize,
    #[serde(default)]
    disable_mlr: bool,
    #[serde(default)]
    disable_trig: bool,
    offset_max_length: Option<usize>,
}

fn shared(
    dir: &Path,
    case: &Case,
    expected: &Tensors,
    report: &mut CaseReport,
) -> Result<(), String> {
    let config: SharedConfig = case.settings()?;
    let file = input_of(dir, case)?;
    let keys = file.keys("k_rot")?;
    let Positions::PerHead(positions) = file.positions("positions")? else {
        return Err("positions of the input are not by KV head".to_owned());
    };
    let stats = stats_of(dir, case)?.head_stats().map_err(|error| error.to_string())?;
    let input = Input {
        layers: (0u32..).take(keys.len()).collect(),
        keys,
        positions: Positions::Shared(positions.into_iter().next().unwrap_or_default()),
        heads: heads(case.dims)?,
        moment: Moment::at(config.next_position, config.prefix_length),
    };
    let rules = SharedRules {
        kv_budget: config.kv_budget,
        recent_window: config.recent_window,
        protect_prefill: config.protect_prefill,
        prefix_length: config.prefix_length,
        disable_mlr: config.disable_mlr,
        disable_trig: config.disable_trig,
        offset_max_length: config.offset_max_length.unwrap_or(65536),
    };
    let ours = select_shared::<f64>(rules, &stats, &input).map_err(|error| error.to_string())?;
    let (_, keep) = expected.indices("keep")?;
    report.keep_rows += 1;
    report.compared += 1;
    // No scores are stored, so that the tie rule uses the recomputed ones.
    match compare::keep_set(&ours.keep, &keep, &ours.scores, 0, NEAR_SINGLE) {
        KeepMatch::Equal => report.keep_equal += 1,
        KeepMatch::Tie { rows } => report.tie(rows),
        KeepMatch::Differs { row } => return Err(format!("row {row} is in one keep-set only")),
    }
    if ours.keep.is_sorted() { Ok(()) } else { Err("the keep-set is not ascending".to_owned()) }
}

#[derive(Debug, Deserialize)]
struct PagedConfig {
    block_ids: Vec<usize>,
    block_size: usize,
    total_tokens: usize,
    preserve_dropped_tokens: bool,
}

fn paged(_: &Path, case: &Case, expected: &Tensors, report: &mut CaseReport) -> Result<(), String> {
    let config: PagedConfig = case.settings()?;
    let before = expected.array("cache_before")?;
    let after = expected.array("cache_after")?;
    let [2, blocks, block_size, heads, width] = before.shape[..] else {
        return Err(format!(
            "cache_before has shape {:?}, expected [2, blocks, slots, heads, width]",
            before.shape
        ));
    };
    if block_size != config.block_size {
        return Err("config: block_size is not that of cache_before".to_owned());
    }
    let (shape, rows) = expected.indices("keep")?;
    let kept = shape.last().copied().unwrap_or(0);
    let sets: Vec<Vec<usize>> = match shape.len() {
        1 => vec![rows; heads],
        _ => rows.chunks_exact(kept.max(1)).map(<[usize]>::to_vec).collect(),
    };
    let mut ours = before.values;
    let pool = Pool { blocks, block_size, heads, width };
    let (ids, total) = (&config.block_ids, config.total_tokens);
    move_rows(&mut ours, pool, ids, total, &sets, config.preserve_dropped_tokens)
        .map_err(|error| error.to_string())?;
    let same = |(ours, theirs): (&f64, &f64)| ours.to_bits() == theirs.to_bits();
    let differing = ours.iter().zip(&after.values).filter(|pair| !same(*pair)).count();
    report.compared += u64::try_from(ours.len()).unwrap_or(u64::MAX);
    if differing > 0 || ours.len() != after.values.len() {
        return Err(format!("{differing} of {} elements of the pool differ", ours.len()));
    }
    blocks_of(case, &config, kept)
}

/// Blocks that stay are those that hold the kept rows.
fn blocks_of(case: &Case, config: &PagedConfig, kept: usize) -> Result<(), String> {
    if case.cache_len_after != Some(kept) {
        return Err(format!("cache_len_after is {:?}, {kept} rows are kept", case.cache_len_after));
    }
    let used = kept.div_ceil(config.block_size.max(1)).min(config.block_ids.len());
    let (stay, go) = config.block_ids.split_at(used);
    let lists = [(&case.kept_block_ids, stay), (&case.removed_block_ids, go)];
    for (listed, ours) in lists {
        if listed.as_deref() != Some(ours) {
            return Err(format!(
                "blocks {listed:?} are listed, {ours:?} follow from the rows kept"
            ));
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct TableConfig {
    divide_length: usize,
    table_max: usize,
}

fn tables(
    dir: &Path,
    case: &Case,
    expected: &Tensors,
    report: &mut CaseReport,
) -> Result<(), String> {
    let config: TableConfig = case.settings()?;
    let omega = stats_of(dir, case)?.omega;
    let as_wide: Vec<f64> = omega.iter().map(|w| f64::from(*w)).collect();
    compare::absolute(report, "omega", &as_wide, &expected.array("omega")?.values, 0.0);
    let list = expected.array("offsets")?.values;
    let steps = offsets(config.table_max);
    let wide: Vec<f64> = steps.iter().map(|step| *step as f64).collect();
    compare::absolute(report, "offsets", &wide, &list, 0.0);
    let phases = Phases::Tables { step: config.divide_length, max: config.table_max };
    let starts = case.tensors.keys().filter_map(|name| name.strip_suffix(".cos"));
    let mut tables = 0;
    for name in starts {
        let start = name.strip_prefix("rs").and_then(|digits| digits.parse::<usize>().ok());
        let start = start.ok_or_else(|| format!("tensor `{name}.cos` names no round start"))?;
        let ours = trig::<f64>(phases, start, &steps, &omega);
        for (part, values) in [("cos", ours.cos), ("sin", ours.sin)] {
            let name = format!("{name}.{part}");
            compare::absolute(
                report,
                &name,
                &values.concat(),
                &expected.array(&name)?.values,
                TRIG,
            );
        }
        tables += 1;
    }
    if tables == 0 { Err("the index lists no table".to_owned()) } else { Ok(()) }
}

#[derive(Debug, Deserialize)]
struct CalibrateConfig {
    tokens: usize,
}

fn means(
    dir: &Path,
    case: &Case,
    expected: &Tensors,
    report: &mut CaseReport,
) -> Result<(), String> {
    let config: CalibrateConfig = case.settings()?;
    let omega = stats_of(dir, case)?.omega;
    let queries = expected.array("q_proj_out")?;
    let [layers, tokens, heads, _] = queries.shape[..] else {
        return Err(format!("q_proj_out has shape {:?}, expected four axes", queries.shape));
    };
    if tokens != config.tokens {
        return Err(format!("q_proj_out holds {tokens} tokens, config says {}", config.tokens));
    }
    let (mut real, mut imag, mut modulus) = (Vec::new(), Vec::new(), Vec::new());
    let size = queries.values.len().checked_div(layers).unwrap_or(0);
    for layer in queries.values.chunks_exact(size.max(1)) {
        for head in calibrate(layer, heads, &omega).map_err(|error| error.to_string())? {
            real.extend(head.mean_real);
            imag.extend(head.mean_imag);
            modulus.extend(head.modulus);
        }
    }
    for (name, ours) in [("q_mean_real", real), ("q_mean_imag", imag), ("q_abs_mean", modulus)] {
        compare::absolute(report, name, &ours, &expected.array(name)?.values, CALIBRATION);
    }
    Ok(())
}
