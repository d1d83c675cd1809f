//! Every plantable mistake is found and named; the clean run finds none.

use crate::kit::{Scratch, lockstep};
use lockstep_traces::Cause;

fn demo(plant: Option<&str>, code: i32) -> serde_json::Value {
    let scratch = Scratch::new();
    let out = scratch.path("demo");
    let mut args = vec!["demo", "--device", "cpu", "--format", "json", "--out", &out];
    if let Some(slug) = plant {
        args.extend(["--plant", slug]);
    }
    lockstep(args).expect(code).json()
}

fn planted(cause: Cause) {
    let answer = demo(Some(cause.slug()), 1);
    assert_eq!(answer["fault"], cause.slug(), "{answer:#}");
}

macro_rules! planted {
    ($($name:ident => $cause:ident),* $(,)?) => {
        $(#[test] fn $name() { planted(Cause::$cause); })*
        #[test]
        fn every_cause_has_its_test() {
            assert_eq!([$(Cause::$cause),*], Cause::ALL);
        }
    };
}

planted! {
    rotary_base => RotaryBase,
    qk_norm_skipped => QkNormSkipped,
    norm_epsilon => NormEpsilon,
    causal_mask => CausalMask,
    gqa_tile => GqaTile,
    round_start_rows => RoundStartRows,
    physical_positions => PhysicalPositions,
    zscore_rows => ZscoreRows,
    zscore_population => ZscorePopulation,
    layer_max => LayerMax,
    tie_order => TieOrder,
    value_not_gathered => ValueNotGathered,
    stale_row => StaleRow,
    window_row_lost => WindowRowLost,
    prompt_fed_twice => PromptFedTwice,
    trace_shifted => TraceShifted,
    last_prompt_row_fed_again => LastPromptRowFedAgain,
    reference_dtype => ReferenceDtype,
    seed_index_twice => SeedIndexTwice,
    one_seed_for_all => OneSeedForAll,
    race_over_slice => RaceOverSlice,
    rng_frozen => RngFrozen,
    rng_reseeded => RngReseeded,
    draw_discarded => DrawDiscarded,
    draw_discarded_each_step => DrawDiscardedEachStep,
    temperature_after_filters => TemperatureAfterFilters,
    top_p_before_top_k => TopPBeforeTopK,
    min_p_on_logits => MinPOnLogits,
    top_k_ties => TopKTies,
}

#[test]
fn the_clean_demo_finds_no_fault_and_tells_its_story() {
    let answer = demo(None, 0);
    assert_eq!(answer["fault"], serde_json::Value::Null, "{answer:#}");
    for split in ["structural", "logit", "argmax", "token"] {
        assert!(answer["splits"][split]["position"].is_u64(), "{split}: {answer:#}");
    }
    assert_eq!(answer["gather"]["different"], 0);
    assert!(answer["gather"]["compared"].as_u64().unwrap() > 0);
    assert_eq!(answer["selector"]["rule_set"], "trt");
    assert_eq!(answer["selector"]["exact"], answer["selector"]["heads"]);
    assert!(answer["selector"]["heads"].as_u64().unwrap() > 0);
}

#[test]
fn the_list_of_faults_is_printed() {
    let run = lockstep(["demo", "--plant", "list"]).expect(0);
    for cause in Cause::ALL {
        assert!(run.stdout.lines().any(|line| line.starts_with(cause.slug())), "{}", cause.slug());
    }
    lockstep(["demo", "--plant", "no-such-fault"]).expect_refusal(2, &["no-such-fault"]);
}
