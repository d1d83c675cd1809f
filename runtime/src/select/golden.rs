//! Phases, keep-sets and scores against recorded ones: upstream's phase tables, and snapshots of a real model's
//! cache, taken inside upstream's own patch.

use lockstep_traces::store::DumpFile;
use lockstep_traces::{PolicySpec, RuleSet, stats};

use super::phase::{Phases, offsets};
use super::{CacheView, Dims, Keys, Rules, SelectInput, Selector};
use crate::RotaryTable;

const DIMS: Dims = Dims { layers: 4, kv_heads: 2, q_heads: 8, head_dim: 64 };
const PROMPT: usize = 52;
const ROWS: usize = 128;

/// Position lists of the rows before: those kept last time and the newest.
fn positions(file: &DumpFile, compaction: usize, n: u32) -> Vec<Vec<u32>> {
    if compaction == 0 {
        return vec![(0..n).collect(); 2];
    }
    let kept = file.get(&format!("c{:03}.positions_after", compaction - 1)).unwrap();
    let kept = kept.to_i32().unwrap();
    kept.chunks(kept.len() / 2)
        .map(|head| {
            let mut list: Vec<u32> = head.iter().map(|&at| at.cast_unsigned()).collect();
            list.extend(n - (ROWS - list.len()) as u32..n);
            list
        })
        .collect()
}

#[test]
fn snapshots_of_the_ledger_model_give_the_recorded_keep_sets() {
    let folder = lockstep_testkit::golden().join("traces");
    let keeps = DumpFile::open(&folder.join("compressed/ledger_01.k.keep.safetensors")).unwrap();
    let query = stats::read(&folder.join("stats/ledger_stats.safetensors")).unwrap();
    let rotary = RotaryTable { inv_freq: query.inv_freq.clone().unwrap(), attention_scaling: 1.0 };
    let spec = PolicySpec {
        rule_set: Some(RuleSet::Hf),
        kv_budget: Some(112),
        divide_length: Some(16),
        ..PolicySpec::default()
    };
    let rules = Rules::resolve(&spec).unwrap();
    let selector = Selector::new(rules, &query, &rotary, DIMS, None).unwrap();
    let mut compared = 0;
    for (compaction, n) in [(0, 128_u32), (2, 160)] {
        // The repository carries the later one, whose rows are permuted and have holes; the full set has both.
        let name = format!("compressed/ledger_01.k.kv_c{compaction:03}.safetensors");
        let path = folder.join(name);
        if compaction == 0 && !path.exists() {
            continue;
        }
        let snapshot = DumpFile::open(&path).unwrap();
        let keys = snapshot.get("k_before").unwrap();
        assert_eq!(keys.shape, [4, 2, ROWS, 64]);
        let keys = keys.to_f32().unwrap();
        let positions = positions(&keeps, compaction, n);
        let cache = CacheView {
            rows: ROWS,
            keys: keys.chunks(ROWS * 64).map(Keys::F32).collect(),
            positions: positions.iter().map(Vec::as_slice).collect(),
        };
        let input = SelectInput { cache: &cache, round_start: n, prompt_len: PROMPT, keep: 112 };
        let mut noise = selector.noise().unwrap();
        noise.skip(compaction * 4 * 8 * (ROWS - PROMPT));
        let ours = selector.select(&input, Some(&mut noise), true).unwrap().unwrap();

        let expected = snapshot.get("aggregated_scores_decode_rows").unwrap().to_f32().unwrap();
        let scores = &ours.stages.as_ref().unwrap().last.values;
        assert_eq!(scores.len(), expected.len());
        let worst = scores.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Phases near 7e4 rad on the f32 grid; measured 8.6e-6.
        assert!(worst < 5e-5, "compaction {compaction}: {worst}");
        let keep = snapshot.get("keep").unwrap().to_i32().unwrap();
        for (head, expected) in keep.chunks(112).enumerate() {
            let sorted = |rows: Vec<u32>| {
                let mut rows = rows;
                rows.sort_unstable();
                rows
            };
            let expected = sorted(expected.iter().map(|&row| row.cast_unsigned()).collect());
            assert_eq!(sorted(ours.keep.rows(0, head).to_vec()), expected, "head {head}");
            compared += 1;
        }
    }
    assert!(compared >= 2);
}

#[test]
fn phases_are_those_that_upstreams_tables_hand_to_its_kernel() {
    let path = "triattention/expected/k02_trig_tables.safetensors";
    let file = DumpFile::open(&lockstep_testkit::golden().join(path)).unwrap();
    let values = |name: &str| file.get(name).unwrap().to_f32().unwrap();
    let (omega, steps) = (values("omega"), offsets(65536));
    assert_eq!(values("offsets"), steps);
    let spec = PolicySpec {
        rule_set: Some(RuleSet::Vllm),
        divide_length: Some(128),
        ..PolicySpec::default()
    };
    let rules = Rules::resolve(&spec).unwrap();
    let starts: Vec<usize> = file
        .names()
        .filter_map(|name| name.strip_prefix("rs")?.strip_suffix(".cos")?.parse().ok())
        .collect();
    assert!(starts.iter().any(|start| start % 128 != 0), "residual starts are recorded");
    for start in starts {
        let ours = Phases::of(&rules, start, &steps, &omega);
        for (name, ours) in [("cos", ours.cos), ("sin", ours.sin)] {
            let expected = values(&format!("rs{start}.{name}"));
            assert_eq!(ours.len(), expected.len());
            // Cosines differ between mathematical libraries in the last place.
            assert!(ours.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 2e-7), "{start}");
        }
    }
}
