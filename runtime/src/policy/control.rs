//! The naive controls: prompt and newest rows, prompt and random rows.
//!
//! Both follow `trt`'s lifecycle and protection (prompt by positions of KV head 0, window, first `keep` protected rows where those
//! fill the budget), so that only the ranking of the other rows differs from it.
//!
//! `random` ranks row r of KV head h at compaction c by a 64-bit number from a counter: `mix(mix(mix(mix(seed ^ stream) ^ c) ^ h) ^ r)` with the
//! finaliser of splitmix64 after adding its golden-ratio step; the smallest numbers are kept. `stream` is the FNV-1a hash of the sample id, so that
//! samples draw apart and a resumed run draws the same.

use std::time::Instant;

use lockstep_traces::PolicySpec;
use serde_json::Value;

use super::lifecycle::Native;
use super::{Compaction, PolicyState};
use crate::select::{CacheView, Dims, Effective, KeepSet, SelectError, Selection, StageSeconds};

/// How unprotected rows are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranking {
    /// Newest first.
    Recent,
    /// By a draw per KV head.
    Random {
        /// Seed of the draws.
        seed: u64,
    },
}

/// A naive control in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) ranking: Ranking,
    pub(super) native: Native,
    recent_window: usize,
    protect_prefill: bool,
}

impl Control {
    /// Resolves the settings that a control has; others are ignored and not listed, so that one specification serves every policy.
    pub(super) fn resolve(
        spec: &PolicySpec,
        random: bool,
        max_rows: Option<usize>,
        effective: &mut Vec<Effective>,
    ) -> Result<Self, SelectError> {
        let mut set = |key, value: Value, given: bool| {
            let source = if given { "flag" } else { "default" };
            effective.push(Effective { key, value, source });
        };
        let kv_budget = spec.kv_budget.unwrap_or(4096);
        let divide_length = spec.divide_length.unwrap_or(128);
        let protect_prefill = spec.protect_prefill.unwrap_or(true);
        let count_prompt_tokens = spec.count_prompt_tokens.unwrap_or(true);
        if kv_budget == 0 {
            return Err(SelectError::Setting {
                field: "kv_budget",
                why: "must be at least 1".to_owned(),
            });
        }
        set("policy.kv_budget", kv_budget.into(), spec.kv_budget.is_some());
        set("policy.divide_length", divide_length.into(), spec.divide_length.is_some());
        set("policy.protect_prefill", protect_prefill.into(), spec.protect_prefill.is_some());
        set(
            "policy.count_prompt_tokens",
            count_prompt_tokens.into(),
            spec.count_prompt_tokens.is_some(),
        );
        let mut recent_window = 0;
        let mut ranking = Ranking::Recent;
        if random {
            recent_window = spec.recent_window.unwrap_or(0);
            let seed = spec.policy_seed.unwrap_or(0);
            set("policy.recent_window", recent_window.into(), spec.recent_window.is_some());
            set("policy.policy_seed", seed.into(), spec.policy_seed.is_some());
            ranking = Ranking::Random { seed };
        }
        let native = Native { kv_budget, divide_length, count_prompt_tokens, max_rows };
        Ok(Self { ranking, native, recent_window, protect_prefill })
    }

    pub(super) fn choose(
        &self,
        dims: Dims,
        state: &PolicyState,
        due: &Compaction,
        cache: &CacheView<'_>,
    ) -> Result<Selection, SelectError> {
        cache.check(dims, false)?;
        let started = Instant::now();
        let rows = cache.rows;
        let window = self.recent_window.min(rows).min(due.keep);
        let prompt = self.protect_prefill || !self.native.count_prompt_tokens;
        let positions = cache.positions.first().copied().unwrap_or_default();
        let (mut reserved, mut open) = (Vec::new(), Vec::new());
        for (row, &position) in (0_u32..).zip(positions) {
            let newest = row as usize >= rows - window;
            if newest || (prompt && (position as usize) < state.prompt_len) {
                reserved.push(row);
            } else {
                open.push(row);
            }
        }
        let protected = reserved.len();
        reserved.truncate(due.keep);
        let room = due.keep - reserved.len();
        let heads = (0..dims.kv_heads)
            .map(|kv_head| {
                let mut keep = reserved.clone();
                keep.extend(self.pick(state, due.ordinal, kv_head, &open, room));
                keep.sort_unstable();
                keep
            })
            .collect();
        Ok(Selection {
            keep: KeepSet::PerHead(heads),
            protected: narrow(protected),
            candidates: narrow(open.len()),
            round_start: None,
            stages: None,
            seconds: StageSeconds {
                select: started.elapsed().as_secs_f64(),
                ..StageSeconds::default()
            },
        })
    }

    fn pick(
        &self,
        state: &PolicyState,
        ordinal: u32,
        kv_head: usize,
        open: &[u32],
        room: usize,
    ) -> Vec<u32> {
        match self.ranking {
            Ranking::Recent => open[open.len().saturating_sub(room)..].to_vec(),
            Ranking::Random { seed } => {
                let head = mix(mix(mix(seed ^ state.stream) ^ u64::from(ordinal)) ^ kv_head as u64);
                let mut drawn: Vec<(u64, u32)> =
                    open.iter().map(|&row| (mix(head ^ u64::from(row)), row)).collect();
                drawn.sort_unstable();
                drawn.into_iter().take(room).map(|(_, row)| row).collect()
            }
        }
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// One step of splitmix64 from this state.
fn mix(state: u64) -> u64 {
    let mut word = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// FNV-1a of a sample id.
pub(super) fn stream(sample_id: &str) -> u64 {
    sample_id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
