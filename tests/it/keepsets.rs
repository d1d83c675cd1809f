//! Keep-sets of a trigonometric score and rotary tables by the ordinary commands, on inputs composed from public bug reports and variations
//! of them.

use serde_json::{Value, json};

use crate::kit::{Scratch, lockstep};
use crate::states::{named, title, write};
use crate::tokens::{answers, case, data};

#[track_caller]
fn near(found: &Value, expected: f64, relative: f64) {
    let value = found.as_f64().unwrap_or_else(|| panic!("no number: {found}"));
    assert!((value / expected - 1.0).abs() <= relative, "{value} and not {expected}");
}

#[test]
fn the_time_that_an_engine_took_for_its_score_is_named() {
    let (spec, keeps) = (case("10/spec.json"), case("10/engine_keeps.json"));
    let answer = answers(
        &["check", "keepsets", &spec, &keeps],
        1,
        &[
            ("/compactions/0/matches", json!(8)),
            ("/compactions/0/reference", json!([3, 4, 9, 10, 11, 12, 14, 15])),
            ("/compactions/1/matches", json!(5)),
            ("/compactions/1/reference", json!([4, 11, 12, 17, 18, 19, 22, 23])),
            ("/compactions/1/engine", json!([10, 11, 15, 16, 17, 18, 22, 23])),
            ("/compactions/2/matches", json!(4)),
            ("/compactions/2/reference", json!([15, 25, 26, 27, 28, 29, 30, 31])),
            ("/compactions/2/engine", json!([10, 15, 16, 17, 22, 28, 29, 30])),
            ("/hypotheses/0/name", json!("rows")),
            ("/hypotheses/0/t", json!([16.0, 16.0, 16.0])),
            ("/hypotheses/0/matches", json!([8, 8, 8])),
            ("/hypotheses/0/exact", json!(3)),
            ("/hypotheses/0/same_as_claimed", json!([1])),
            // The rows are as many each time, so that the first absolute position fits as well.
            ("/recognised", json!(["rows", "first_absolute_position"])),
        ],
    );
    assert!(title(&answer, "rows").contains("number of rows"), "{answer:#}");
    assert!(
        title(&answer, "cannot_show").contains("compaction 1 cannot show this fault"),
        "{answer:#}"
    );
    // What the engine did is right where the spec says so.
    answers(
        &["check", "keepsets", &spec, &keeps, "--time", "rows"],
        0,
        &[("/findings", json!([]))],
    );
    lockstep(["check", "keepsets", &spec, &keeps, "--time", "noon"])
        .expect_refusal(2, &["noon", "rows"]);

    let scratch = Scratch::new();
    let mut clean = data("10/engine_keeps.json");
    let first = clean[0].clone();
    clean[1]["kept"] = json!([4, 11, 12, 17, 18, 19, 22, 23]);
    clean.as_array_mut().expect("a list").pop();
    let path = write(&scratch, "clean.json", &clean);
    answers(
        &["check", "keepsets", &spec, &path],
        0,
        &[("/findings", json!([])), ("/not_excluded", json!([]))],
    );
    // One compaction alone: right, and it excludes little.
    let path = write(&scratch, "first.json", &json!([first]));
    let answer = answers(&["check", "keepsets", &spec, &path], 0, &[]);
    assert_eq!(answer.pointer("/not_excluded/0").expect("a value").clone(), json!("rows"));
}

#[test]
fn ties_rows_and_kept_rows_are_worked_out_by_hand() {
    let scratch = Scratch::new();
    // cos(0.1 (t - p)) falls with the distance: the nearest to t stay. At 12 these are 8..11; around t = 8 they are 8, 7, 9 and, of the
    // equal 6 and 10, the smaller. An engine with t = 11 keeps 8..11 too.
    let near = json!({"amp": [1.0], "omega": [0.1], "phase": [0.0], "budget": 4});
    let near = write(&scratch, "near.json", &near);
    let keeps = |kept: [u64; 4]| {
        json!([
            {"absolute_position": 8, "rows": [0, 1, 2, 3, 4, 5, 6, 7], "kept": [4, 5, 6, 7]},
            {"absolute_position": 12, "rows": [4, 5, 6, 7, 8, 9, 10, 11], "kept": kept},
        ])
    };
    let path = write(&scratch, "near_right.json", &keeps([8, 9, 10, 11]));
    let answer = answers(&["check", "keepsets", &near, &path], 0, &[]);
    assert!(
        answer
            .pointer("/not_excluded")
            .expect("a value")
            .clone()
            .to_string()
            .contains("absolute_position_minus_1"),
        "{answer:#}"
    );
    let path = write(&scratch, "near_rows.json", &keeps([6, 7, 8, 9]));
    answers(
        &["check", "keepsets", &near, &path],
        1,
        &[
            ("/compactions/1/reference", json!([8, 9, 10, 11])),
            ("/compactions/1/matches", json!(2)),
            (
                "/recognised",
                json!(["rows", "first_absolute_position", "absolute_position_minus_first_row"]),
            ),
        ],
    );
    // A kept row that was not there, and rows that nobody kept.
    let mut broken = keeps([8, 9, 10, 12]);
    broken[1]["rows"] = json!([3, 5, 6, 7, 8, 9, 10, 11]);
    let answer =
        answers(&["check", "keepsets", &near, &write(&scratch, "broken.json", &broken)], 1, &[]);
    let found = named(&answer, "");
    assert_eq!(found[..2], ["kept_not_in_rows", "rows_not_from_kept"], "{found:?}");
}

#[test]
fn a_rotary_table_tells_which_parameter_was_dropped() {
    let config = |name: &str| case(&format!("24/config_{name}.json"));
    let (flat, nested, llama3) = (config("flat"), config("nested"), config("llama3"));
    let engine = case("24/engine_inv_freq.json");
    let answer = answers(
        &["check", "rope", &flat, &nested, &llama3, "--engine", &engine, "--positions", "100,8000"],
        1,
        &[
            ("/same_table/0", json!(["config_flat.json", "config_nested.json"])),
            ("/same_table/1", json!(["config_llama3.json"])),
            ("/configs/0/base_from", json!("rope_theta")),
            ("/configs/0/engine", Value::Null),
            ("/configs/1/base_from", json!("rope_parameters")),
            ("/configs/1/engine/recognised", json!(["base_10000"])),
            ("/configs/2/engine/recognised", json!(["scaling_ignored"])),
            ("/configs/2/engine/differing", json!([4, 5, 6, 7])),
        ],
    );
    let table = |pointer: &str, expected: &[f64], relative: f64| {
        let values = answer.pointer(pointer).expect("a table").clone();
        let values = values.as_array().expect("a list");
        assert_eq!(values.len(), expected.len());
        values.iter().zip(expected).for_each(|(value, expected)| near(value, *expected, relative));
    };
    // 10^(-3i/2), exactly.
    table(
        "/configs/0/inv_freq",
        &[1.0, 0.031_622_776_601_683_79, 0.001, 3.162_277_660_168_379_5e-5],
        1e-14,
    );
    let scaled = [
        1.0,
        0.193_923,
        0.037_606,
        0.007_292_66,
        0.000_524_846,
        3.4281e-05,
        6.64787e-06,
        1.28917e-06,
    ];
    table("/configs/2/inv_freq", &scaled, 5e-6);
    table("/configs/2/engine/ratios", &[1.0, 1.0, 1.0, 1.0, 2.695, 8.0, 8.0, 8.0], 2e-4);
    near(&answer["configs"][2]["engine"]["phase_errors"][0]["slowest_band"], 0.000_902_421, 1e-6);
    near(&answer["configs"][2]["engine"]["phase_errors"][1]["slowest_band"], 0.072_193_7, 1e-6);
    assert!(
        title(&answer, "grows_with_position").contains("short prompts pass, long ones drift"),
        "{answer:#}"
    );
    assert!(title(&answer, "base_10000").contains("fell back to 10000"), "{answer:#}");
}

#[test]
fn right_tables_pass_and_configurations_are_held_against_each_other() {
    let config = |name: &str| case(&format!("24/config_{name}.json"));
    let (flat, nested, llama3) = (config("flat"), config("nested"), config("llama3"));
    let scaled = [
        1.0,
        0.193_923,
        0.037_606,
        0.007_292_66,
        0.000_524_846,
        3.4281e-05,
        6.64787e-06,
        1.28917e-06,
    ];
    // What the configurations ask for, to the digits of the report; the flat one is covered by the nested one.
    let scratch = Scratch::new();
    let right =
        json!({"config_nested": [1.0, 0.0316228, 0.001, 3.16228e-05], "config_llama3": scaled});
    let right = write(&scratch, "right.json", &right);
    let all = ["check", "rope", &flat, &nested, &llama3, "--engine", &right];
    answers(&[&all[..], &["--tolerance", "5e-6"]].concat(), 0, &[("/findings", json!([]))]);
    // Six digits are not what f32 gives.
    answers(&all, 1, &[]);
    // Configurations alone: these two mean the same, those two do not.
    answers(&["check", "rope", &flat, &nested], 0, &[]);
    answers(&["check", "rope", &flat, &llama3], 1, &[]);
    answers(&["check", "rope", &flat], 4, &[]);
}

#[test]
fn every_scaling_is_computed_and_each_way_of_dropping_it_named() {
    let nested = case("24/config_nested.json");
    let scratch = Scratch::new();
    // Linear over four dimensions: 1/4 and 0.01/4.
    let linear = json!({"head_dim": 4, "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}});
    let linear = write(&scratch, "linear.json", &linear);
    let plain = write(&scratch, "plain.json", &json!([1.0, 0.01]));
    answers(
        &["check", "rope", &linear, "--engine", &plain],
        1,
        &[
            ("/configs/0/inv_freq", json!([0.25, 0.0025])),
            ("/configs/0/engine/ratios/1", json!(4.0)),
            ("/configs/0/engine/recognised", json!(["scaling_ignored"])),
        ],
    );
    // YaRN: correction dimensions 2.2 and 3.7 make a ramp from 2 to 4, so that the last of four bands is half interpolated.
    let yarn = json!({"head_dim": 8, "max_position_embeddings": 131_072, "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0,
        "factor": 4.0, "original_max_position_embeddings": 32_768}});
    let yarn = write(&scratch, "yarn.json", &yarn);
    let doubled = json!([1.0, 0.1, 0.01, 0.000_625, 1.0, 0.1, 0.01, 0.000_625]);
    let answer = answers(
        &["check", "rope", &yarn, "--engine", &write(&scratch, "doubled.json", &doubled)],
        0,
        &[("/configs/0/engine/inv_freq", json!([1.0, 0.1, 0.01, 0.000_625]))],
    );
    assert!(answer["limits"][0].as_str().expect("a limit").contains("1.138"), "{answer:#}");
    let read_as_linear = write(&scratch, "l.json", &json!([0.25, 0.025, 0.0025, 0.000_25]));
    answers(
        &["check", "rope", &yarn, "--engine", &read_as_linear],
        1,
        &[("/configs/0/engine/recognised", json!(["read_as_linear"]))],
    );
    // Some other base: 5e5 over eight dimensions.
    let other: Vec<f64> = (0..4).map(|band| 500_000_f64.powf(-f64::from(band) / 4.0)).collect();
    answers(
        &["check", "rope", &nested, "--engine", &write(&scratch, "other.json", &json!(other))],
        1,
        &[("/configs/0/engine/recognised", json!(["other_base"]))],
    );
    let layers = json!({"head_dim": 8, "rope_parameters": {"full_attention": {"rope_theta": 1e6}}});
    lockstep(["check", "rope", &write(&scratch, "layers.json", &layers)])
        .expect_refusal(3, &["layers.json", "full_attention"]);
    lockstep(["check", "rope", &write(&scratch, "no_width.json", &json!({"rope_theta": 1e4}))])
        .expect_refusal(3, &["--head-dim"]);
}
