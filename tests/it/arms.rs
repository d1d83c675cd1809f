//! Arms of an experiment by the ordinary command, on an input composed from a public bug report and variations of it.

use serde_json::{Value, json};

use crate::kit::{Scratch, lockstep};
use crate::states::{named, title, write};
use crate::tokens::{answers, case, data};

/// `audit arms` about the eviction.
#[track_caller]
fn judged(path: &str, code: i32, pointers: &[(&str, Value)]) -> Value {
    answers(&["audit", "arms", path, "--of", "evict", "--effect", "score"], code, pointers)
}

#[test]
fn confounded_factors_and_the_missing_controls_are_named() {
    let arms = case("06/arms.json");
    let answer = judged(
        &arms,
        4,
        &[
            ("/attributable", json!(false)),
            ("/confounders/0/factor", json!("prefill")),
            ("/confounders/0/always", json!(true)),
            ("/confounders/0/levels_of_baseline", json!(["chunked"])),
            ("/confounders/0/levels_of_others", json!(["one_shot"])),
            ("/confounders/1/factor", json!("chunk")),
            ("/confounders/1/part_of", json!("prefill")),
            (
                "/missing_controls/0/levels",
                json!({"evict": null, "prefill": "one_shot", "prompt_len": 4001}),
            ),
            ("/missing_controls/0/controls", json!(["snap-20", "sink-20", "h2o-20"])),
            ("/missing_controls/1/levels/evict", json!("snapkv")),
            ("/missing_controls/1/levels/prefill", json!("chunked")),
            ("/missing_controls/3/levels/evict", json!("h2o")),
            ("/missing_controls/4", Value::Null),
            ("/affected", json!(["snap-20", "sink-20", "h2o-20"])),
            ("/same_score", json!(0.0)),
            ("/shared_by_affected/0/factor", json!("prefill")),
            ("/shared_by_affected/0/also_unaffected", json!([])),
            ("/odd_lengths/0/length", json!(4001)),
            ("/odd_lengths/0/block", json!(32)),
            ("/odd_lengths/0/remainder", json!(1)),
        ],
    );
    let found = named(&answer, "");
    for name in
        ["fully_confounded", "missing_control", "same_at_every_level", "goes_with", "odd_length"]
    {
        assert!(found.contains(&name.to_owned()), "{name}: {found:?}");
    }
    assert!(
        title(&answer, "fully_confounded")
            .contains("evict and prefill change together in every arm")
    );
    assert!(
        title(&answer, "missing_control").contains("evict = none, prefill = one_shot"),
        "{answer:#}"
    );
}

#[test]
fn a_control_contradicts_or_supports() {
    let scratch = Scratch::new();
    let with = |name: &str, arm: Value| {
        let mut all = data("06/arms.json");
        all.as_array_mut().expect("a list").push(arm);
        write(&scratch, name, &all)
    };
    let dense = |score: f64| json!({"arm": "dense-one", "evict": null, "prefill": "one_shot", "prompt_len": 4001, "score": score});
    // The control fails too: it is not the eviction.
    let answer = judged(
        &with("fails.json", dense(0.0)),
        1,
        &[
            ("/attributable", json!(false)),
            ("/levels/0/outcome", json!("contradicted")),
            ("/missing_controls", json!([])),
        ],
    );
    assert!(named(&answer, "").contains(&"control_contradicts".to_owned()), "{answer:#}");
    assert!(title(&answer, "goes_with").contains("prefill = one_shot"), "{answer:#}");
    // The control is well: it is.
    judged(
        &with("well.json", dense(0.95)),
        0,
        &[
            ("/attributable", json!(true)),
            ("/levels/0/outcome", json!("supported")),
            ("/levels/2/controlled/0/difference", json!(-0.95)),
            ("/findings", json!([])),
        ],
    );
}

#[test]
fn levels_lengths_and_repeats_are_judged_for_themselves() {
    let scratch = Scratch::new();
    let with = |name: &str, arm: Value| {
        let mut all = data("06/arms.json");
        all.as_array_mut().expect("a list").push(arm);
        write(&scratch, name, &all)
    };
    // A method that is well in chunks: the level it tells of is contradicted, the others stay open.
    let chunked = json!({"arm": "h2o-c", "evict": "h2o", "prefill": "chunked", "chunk": 512, "prompt_len": 4001, "score": 0.95});
    judged(
        &with("chunked.json", chunked),
        1,
        &[("/levels/2/outcome", json!("contradicted")), ("/levels/1/outcome", json!("confounded"))],
    );
    // Another length and other scores; nothing is odd about 4000, and the methods do not fail alike.
    let mut even = data("06/arms.json");
    for (arm, score) in even.as_array_mut().expect("a list").iter_mut().zip([0.9, 0.1, 0.2, 0.3]) {
        arm["prompt_len"] = json!(4000);
        arm["score"] = json!(score);
    }
    let answer = judged(
        &write(&scratch, "even.json", &even),
        4,
        &[("/odd_lengths", json!([])), ("/same_score", Value::Null)],
    );
    assert!(!named(&answer, "").contains(&"same_at_every_level".to_owned()), "{answer:#}");
    // A repeat of the dense arm that is as far off as the effect: the control is larger than what it should show.
    let repeats = json!([
        {"arm": "a", "evict": null, "score": 0.9}, {"arm": "b", "evict": null, "score": 0.5}, {"arm": "c", "evict": "h2o", "score": 0.6},
    ]);
    let answer = judged(
        &write(&scratch, "repeats.json", &repeats),
        4,
        &[("/levels/0/outcome", json!("no_effect"))],
    );
    assert!(named(&answer, "").contains(&"noise_above_effect".to_owned()), "{answer:#}");
    let path = scratch.path("even.json");
    lockstep(["audit", "arms", &path, "--of", "dog"]).expect_refusal(2, &["dog", "prefill"]);
    lockstep(["audit", "arms", &path, "--of", "evict", "--effect", "f1"])
        .expect_refusal(2, &["f1", "--effect"]);
}
