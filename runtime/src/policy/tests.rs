//! Schedules of every policy, worked out by hand, on keys that all score alike.

use lockstep_traces::stats::QueryStats;
use lockstep_traces::{Cause, DType, PolicyKind, PolicySpec, RuleSet, SelectionMode, Trigger};

use super::{Compaction, Policy, PolicyState, Setup};
use crate::RotaryTable;
use crate::select::{CacheView, Dims, Keys, SelectError};

const DIMS: Dims = Dims { layers: 1, kv_heads: 2, q_heads: 2, head_dim: 2 };

fn stats() -> QueryStats {
    QueryStats {
        layers: vec![0],
        heads: vec![0, 1],
        freqs: 1,
        q_mean_real: vec![1.0, 0.5],
        q_mean_imag: vec![0.5, -1.0],
        q_abs_mean: vec![2.0, 2.0],
        sampled: vec![(0, 0), (0, 1)],
        ..QueryStats::default()
    }
}

fn resolve(spec: &PolicySpec) -> Result<Policy, SelectError> {
    let rotary = RotaryTable { inv_freq: vec![1.0], attention_scaling: 1.0 };
    let stats = stats();
    let setup = Setup {
        dims: DIMS,
        rotary: &rotary,
        stats: Some(&stats),
        cache_dtype: DType::F32,
        plant: None,
    };
    Policy::resolve(spec, &setup)
}

fn spec(rule_set: RuleSet, kv_budget: usize, divide_length: usize) -> PolicySpec {
    PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(rule_set),
        kv_budget: Some(kv_budget),
        divide_length: Some(divide_length),
        recent_window: matches!(rule_set, RuleSet::Trt | RuleSet::Vllm).then_some(2),
        ..PolicySpec::default()
    }
}

/// One compaction as the driver saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    n: u32,
    r: u32,
    before: usize,
    after: usize,
}

/// What an engine does, on keys that all score alike.
struct Driver<'a> {
    policy: &'a Policy,
    state: PolicyState,
    positions: Vec<Vec<u32>>,
    seen: Vec<Seen>,
}

impl<'a> Driver<'a> {
    fn new(policy: &'a Policy, prompt_len: usize) -> Self {
        let state = policy.start(prompt_len, "sample");
        Self { policy, state, positions: vec![Vec::new(); 2], seen: Vec::new() }
    }

    fn compact(&mut self, due: Option<Compaction>) {
        let Some(due) = due else { return };
        assert_eq!(due.rows, self.positions[0].len());
        let keys = vec![0.0; due.rows * 2];
        let view = CacheView {
            rows: due.rows,
            keys: vec![Keys::F32(&keys); 2],
            positions: self.positions.iter().map(Vec::as_slice).collect(),
        };
        let selection = self.policy.choose(&mut self.state, &due, &view, false).unwrap();
        assert_eq!(due.ordinal as usize, self.seen.len() + 1);
        for (head, positions) in self.positions.iter_mut().enumerate() {
            let kept = selection.keep.rows(0, head);
            *positions = kept.iter().map(|&row| positions[row as usize]).collect();
        }
        let (n, r) = (due.absolute_position, due.round_start);
        self.seen.push(Seen { n, r, before: due.rows, after: selection.keep.len() });
    }

    /// Feeds up to `count` tokens; false where the cache is full.
    fn feed(&mut self, count: usize) -> bool {
        let due = self.policy.due_before_forward(&self.state).unwrap();
        self.compact(due);
        if !self.policy.has_room(&self.state) {
            return false;
        }
        let first = self.state.absolute_position() as u32;
        let fed = first..first + count as u32;
        self.positions.iter_mut().for_each(|list| list.extend(fed.clone()));
        self.policy.appended(&mut self.state, count);
        let due = self.policy.due_after_append(&self.state).unwrap();
        self.compact(due);
        assert_eq!(self.state.rows(), self.positions[0].len());
        true
    }

    fn prompt(&mut self) {
        while self.state.prompt_left() > 0 {
            let due = self.policy.due_before_forward(&self.state).unwrap();
            self.compact(due);
            let chunk = self.policy.prompt_chunk(&self.state);
            if chunk == 0 || !self.feed(chunk) {
                return;
            }
        }
    }

    fn decode(&mut self, steps: usize) {
        for _ in 0..steps {
            if !self.feed(1) {
                return;
            }
        }
    }
}

fn run(spec: &PolicySpec, prompt_len: usize, steps: usize) -> Vec<(u32, u32, usize, usize)> {
    let policy = resolve(spec).unwrap();
    let mut driver = Driver::new(&policy, prompt_len);
    driver.prompt();
    driver.decode(steps);
    driver.seen.iter().map(|seen| (seen.n, seen.r, seen.before, seen.after)).collect()
}

#[test]
fn trt_compacts_after_row_3200_and_every_128_tokens_from_then_on() {
    let seen = run(&spec(RuleSet::Trt, 3072, 128), 100, 3400);
    let wanted = [(3200, 3200, 3200, 3072), (3328, 3328, 3200, 3072), (3456, 3456, 3200, 3072)];
    assert_eq!(seen, wanted);
    assert_eq!(run(&spec(RuleSet::Hf, 3072, 128), 100, 3400), wanted, "hf: the same instants");
}

#[test]
fn a_prompt_past_the_trigger_compacts_at_its_first_decode_row() {
    for prompt in [12, 13, 40] {
        let n = prompt as u32 + 1;
        let seen = run(&spec(RuleSet::Trt, 8, 4), prompt, 5);
        assert_eq!(seen, [(n, n, prompt + 1, 8), (n + 4, n + 4, 12, 8)]);
    }
    let seen = run(&spec(RuleSet::Trt, 8, 4), 11, 5);
    assert_eq!(seen[0], (12, 12, 12, 8), "one row short of it: the usual instant");
}

#[test]
fn a_prompt_that_fits_is_fed_in_one_piece_and_one_that_does_not_compacts_on_its_way() {
    let capped = |rows| PolicySpec { max_rows: Some(rows), ..spec(RuleSet::Trt, 50, 10) };
    let policy = resolve(&capped(100)).unwrap();
    assert_eq!(policy.prompt_chunk(&policy.start(100, "a")), 100);
    assert_eq!(policy.prompt_chunk(&policy.start(101, "a")), 60);
    // By hand, 120 prompt tokens in 100 rows: at 60 rows 60 are left, so keep max(50, 100 - 60); at 60 rows again 50 are left,
    // keep 50; then 60 + 40 fit. The full cache makes room for the first decode row, which then is kept with 49 others.
    let seen = run(&capped(100), 120, 1);
    assert_eq!(seen, [(60, 60, 60, 50), (70, 70, 60, 50), (120, 120, 100, 50)]);
    // As much as is needed to let the rest fit, where that is more than the budget: 105 tokens, at 60 rows 45 are left.
    assert_eq!(run(&capped(100), 105, 0), [(60, 60, 60, 55)]);
}

#[test]
fn a_full_cache_makes_room_before_the_append() {
    let spec = PolicySpec { max_rows: Some(10), ..spec(RuleSet::Trt, 20, 4) };
    let seen = run(&spec, 4, 8);
    assert_eq!(seen, [(10, 10, 10, 9), (11, 11, 10, 9)]);
}

#[test]
fn prompt_rows_that_are_not_counted_raise_trigger_and_budget_of_trt() {
    let spec = PolicySpec { count_prompt_tokens: Some(false), ..spec(RuleSet::Trt, 8, 4) };
    assert_eq!(run(&spec, 6, 17), [(18, 18, 18, 14), (22, 22, 18, 14)]);
    assert_eq!(run(&spec, 30, 13), [(42, 42, 42, 38)]);
}

#[test]
fn hf_without_counting_the_prompt_moves_the_trigger_and_still_keeps_the_budget() {
    let slack = PolicySpec { count_prompt_tokens: Some(false), ..spec(RuleSet::Hf, 24, 8) };
    assert_eq!(run(&slack, 12, 54), [(44, 44, 44, 24), (64, 64, 44, 24)]);
    let interval = PolicySpec { trigger: Some(Trigger::Interval), ..slack };
    assert_eq!(run(&interval, 12, 45), [(40, 40, 40, 24), (56, 56, 40, 24)]);
}

#[test]
fn hf_never_compacts_in_the_first_forward_and_drops_decode_rows_on_overflow() {
    let spec = spec(RuleSet::Hf, 24, 8);
    assert_eq!(run(&spec, 40, 0), []);
    assert_eq!(run(&spec, 40, 9), [(41, 41, 41, 24), (49, 49, 32, 24)]);
    let policy = resolve(&spec).unwrap();
    let mut driver = Driver::new(&policy, 40);
    driver.prompt();
    driver.decode(9);
    assert_eq!(driver.positions[0], (0..24).collect::<Vec<u32>>());
}

#[test]
fn vllm_compacts_a_row_earlier_and_every_divide_minus_one_tokens() {
    let seen = run(&spec(RuleSet::Vllm, 3072, 128), 100, 3400);
    let wanted = [(3199, 3199, 3199, 3072), (3326, 3326, 3199, 3072), (3453, 3453, 3199, 3072)];
    assert_eq!(seen, wanted);
    assert_eq!(run(&spec(RuleSet::Vllm, 24, 8), 40, 8), [(40, 40, 40, 24), (47, 47, 31, 24)]);
    let refused = PolicySpec { protect_prefill: Some(true), ..spec(RuleSet::Vllm, 24, 8) };
    assert_eq!(run(&refused, 40, 30), []);
    let outside = PolicySpec { include_prefill_in_budget: Some(false), ..refused };
    assert_eq!(run(&outside, 40, 32), [(71, 71, 71, 64)]);
}

#[test]
fn sglang_counts_decode_tokens_and_the_pending_one_and_skips_the_first_decode_step() {
    // effective - P + 1 = rows - P + 2 >= 32: rows 42, N 42, length 43.
    assert_eq!(run(&spec(RuleSet::Sglang, 24, 8), 12, 31), [(42, 43, 42, 24)]);
    // The prompt competes: after a compaction 24 rows are held and 42 needed again.
    assert_eq!(run(&spec(RuleSet::Sglang, 24, 8), 12, 49), [(42, 43, 42, 24), (60, 61, 42, 24)]);
    assert_eq!(run(&spec(RuleSet::Sglang, 1, 1), 4, 1), [], "first decode step");
}

#[test]
fn the_controls_keep_the_prompt_and_follow_the_schedule_of_trt() {
    for kind in [PolicyKind::Recent, PolicyKind::Random] {
        let spec = PolicySpec { kind: Some(kind), ..spec(RuleSet::Hf, 16, 4) };
        let policy = resolve(&spec).unwrap();
        let mut driver = Driver::new(&policy, 6);
        driver.prompt();
        driver.decode(18);
        let schedule: Vec<(u32, usize)> =
            driver.seen.iter().map(|seen| (seen.n, seen.after)).collect();
        assert_eq!(schedule, [(20, 16), (24, 16)]);
        for positions in &driver.positions {
            assert_eq!(positions[..6], [0, 1, 2, 3, 4, 5]);
            assert!(positions.windows(2).all(|pair| pair[0] < pair[1]));
        }
        if kind == PolicyKind::Recent {
            assert_eq!(driver.positions[1][6..], (14..24).collect::<Vec<u32>>());
        } else {
            assert_ne!(driver.positions[0], driver.positions[1], "heads draw apart");
        }
    }
}

#[test]
fn random_rows_depend_on_seed_and_sample_and_on_nothing_else() {
    let kept = |seed, sample: &str| {
        let kind = Some(PolicyKind::Random);
        let spec = PolicySpec { kind, policy_seed: Some(seed), ..spec(RuleSet::Trt, 16, 4) };
        let policy = resolve(&spec).unwrap();
        let mut driver = Driver::new(&policy, 2);
        driver.state = policy.start(2, sample);
        driver.prompt();
        driver.decode(20);
        driver.positions
    };
    assert_eq!(kept(1, "a"), kept(1, "a"));
    assert_ne!(kept(1, "a"), kept(2, "a"));
    assert_ne!(kept(1, "a"), kept(1, "b"));
}

#[test]
fn dense_keeps_everything_until_the_cache_is_full() {
    let policy = resolve(&PolicySpec { max_rows: Some(9), ..PolicySpec::default() }).unwrap();
    let mut driver = Driver::new(&policy, 4);
    driver.prompt();
    driver.decode(20);
    assert_eq!((driver.state.rows(), driver.seen.len()), (9, 0));
    let mut state = policy.start(20, "long");
    assert_eq!(policy.prompt_chunk(&state), 9);
    policy.appended(&mut state, 9);
    assert_eq!(policy.prompt_chunk(&state), 0);
}

#[test]
fn capacities_in_bytes_become_rows_of_all_layers() {
    // 2 (K and V) * 1 layer * 2 KV heads * width 2 * 4 bytes = 32 bytes a row.
    let bytes = PolicySpec { kv_cache_bytes: Some(100), ..PolicySpec::default() };
    assert_eq!(resolve(&bytes).unwrap().max_rows(), Some(3));
    let field = |spec: PolicySpec| match resolve(&spec) {
        Err(SelectError::Setting { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let both = PolicySpec { max_rows: Some(3), ..bytes.clone() };
    assert_eq!(field(both), "kv_cache_bytes");
    assert_eq!(field(PolicySpec { kv_cache_bytes: Some(31), ..bytes }), "kv_cache_bytes");
    let tight = PolicySpec { max_rows: Some(31), ..spec(RuleSet::Hf, 24, 8) };
    assert_eq!(field(tight), "max_rows");
}

#[test]
fn the_effective_settings_are_those_that_the_kind_has() {
    let keys = |spec: &PolicySpec| -> Vec<&'static str> {
        resolve(spec).unwrap().effective().iter().map(|setting| setting.key).collect()
    };
    assert_eq!(keys(&PolicySpec::default()), ["policy.kind"]);
    let full = spec(RuleSet::Hf, 24, 8);
    let recent = keys(&PolicySpec { kind: Some(PolicyKind::Recent), ..full.clone() });
    assert_eq!(recent.len(), 5);
    let all = keys(&PolicySpec { mode: Some(SelectionMode::Union), ..full });
    assert!(all.contains(&"policy.noise_seed") && all.contains(&"policy.inv_freq"));
}

#[test]
fn a_selector_without_statistics_or_a_fault_without_a_selector_is_refused() {
    let rotary = RotaryTable { inv_freq: vec![1.0], attention_scaling: 1.0 };
    let setup = Setup {
        dims: DIMS,
        rotary: &rotary,
        stats: None,
        cache_dtype: DType::F32,
        plant: Some(Cause::TieOrder),
    };
    let error = Policy::resolve(&spec(RuleSet::Trt, 8, 4), &setup).unwrap_err();
    assert!(matches!(error, SelectError::Stats(_)), "{error}");
    let error = Policy::resolve(&PolicySpec::default(), &setup).unwrap_err();
    assert!(matches!(error, SelectError::Plant { slug: "tie-order", .. }), "{error}");
}
