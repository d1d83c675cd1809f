//! States of caches, visible keys and shifts by the ordinary commands. The inputs are small ones composed from public bug reports, and
//! variations of them; every expected number was worked out by hand or stands in the report.

use std::fs;

use serde_json::{Value, json};

use crate::kit::{Scratch, lockstep};
use crate::tokens::{answers, case, data};

pub(crate) fn write(scratch: &Scratch, name: &str, value: &Value) -> String {
    fs::write(scratch.file(name), value.to_string()).expect("a file");
    scratch.path(name)
}

/// Names of the findings about one side.
pub(crate) fn named(answer: &Value, of: &str) -> Vec<String> {
    let all = answer["findings"].as_array().expect("findings").iter();
    let own = all.filter(|one| of.is_empty() || one["of"] == of);
    own.map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

pub(crate) fn title(answer: &Value, name: &str) -> String {
    let all = answer["findings"].as_array().expect("findings");
    let found = all
        .iter()
        .find(|one| one["name"] == name)
        .unwrap_or_else(|| panic!("no {name}: {answer:#}"));
    found["title"].as_str().expect("a title").to_owned()
}

#[test]
fn a_window_that_rolls_one_step_too_soon_is_found_at_the_step_that_fills_it() {
    let file = case("14/cache_states.json");
    let answer = answers(
        &["check", "states", &file],
        1,
        &[
            ("/rule/rows", json!(8)),
            ("/implementations/0/steps/0/right", json!(true)),
            ("/implementations/0/steps/1/expected", json!([0, 1, 2, 3, 4, 5, 6, 7])),
            ("/implementations/0/steps/1/missing", json!([0])),
            ("/implementations/0/steps/1/unwritten", json!([6])),
            ("/implementations/0/steps/2/expected", json!([1, 2, 3, 4, 5, 6, 7, 8])),
            ("/implementations/0/steps/2/missing", json!([1])),
            ("/implementations/0/steps/2/unwritten", json!([5])),
            ("/implementations/0/first_fault/tokens", json!(8)),
            ("/implementations/0/first_fault/length_equals_rows", json!(true)),
            ("/implementations/0/recognised", json!(["rolled_too_soon"])),
        ],
    );
    let found = named(&answer, "observed");
    assert!(found.contains(&"unwritten_attended".to_owned()), "{found:?}");
    let text = lockstep(["check", "states", &file]).expect(1).stdout;
    assert!(text.contains("lacks 0 and attends slot 6 that was never written"), "{text}");

    let scratch = Scratch::new();
    let mut clean = data("14/cache_states.json");
    clean["steps"][1]["observed"] = json!([0, 1, 2, 3, 4, 5, 6, 7]);
    clean["steps"][2]["observed"] = json!([1, 2, 3, 4, 5, 6, 7, 8]);
    let path = write(&scratch, "clean.json", &clean);
    answers(
        &["check", "states", &path],
        0,
        &[("/right", json!(["observed"])), ("/findings", json!([]))],
    );
    // Slots in the order of a ring are the same rows.
    clean["steps"][2]["observed"] = json!([8, 1, 2, 3, 4, 5, 6, 7]);
    answers(&["check", "states", &write(&scratch, "ring.json", &clean)], 0, &[]);
    // Nothing had to go yet: a right cache and a wrong one look alike.
    clean["steps"] = json!([clean["steps"][0], clean["steps"][1]]);
    answers(
        &["check", "states", &write(&scratch, "short.json", &clean)],
        4,
        &[("/dropping_steps", json!(0))],
    );

    let small = json!({"window": 3, "steps": [
        {"after_tokens": 2, "a": [0, 1], "b": [0, 1, null], "c": [0, 1]},
        {"after_tokens": 3, "a": [0, 1, 2], "b": [1, null, 2], "c": [0, 1, 2]},
        {"after_tokens": 5, "a": [1, 2, 3, 4], "b": [2, 3, 4], "c": [2, 3, 3]},
    ]});
    answers(
        &["check", "states", &write(&scratch, "small.json", &small)],
        1,
        &[
            ("/wrong", json!(["a", "b", "c"])),
            ("/implementations/0/recognised", json!(["one_row_more"])),
            ("/implementations/0/first_fault/step", json!(2)),
            ("/implementations/0/steps/2/surplus", json!([1])),
            ("/implementations/1/recognised", json!(["rolled_too_soon"])),
            // By step 5 the unwritten slot has been rolled out.
            ("/implementations/1/steps/2/right", json!(true)),
            ("/implementations/2/recognised", json!([])),
            ("/implementations/2/steps/2/repeated", json!([3])),
            ("/implementations/2/steps/2/missing", json!([4])),
        ],
    );
}

#[test]
fn sinks_and_recent_rows_are_told_from_what_equal_counts_hide() {
    let file = case("20/rows.json");
    let answer = answers(
        &["check", "states", &file],
        1,
        &[
            ("/right", json!(["y"])),
            ("/wrong", json!(["x", "z"])),
            ("/counts_reveal", json!(false)),
            ("/implementations/0/row_counts", json!([6, 6])),
            ("/implementations/1/row_counts", json!([6, 6])),
            ("/implementations/2/row_counts", json!([6, 6])),
            ("/implementations/0/first_fault/step", json!(0)),
            ("/implementations/0/steps/0/expected", json!([0, 1, 7, 8, 9, 10])),
            ("/implementations/0/steps/0/dropped", json!([9])),
            ("/implementations/0/steps/1/dropped", json!([10])),
            ("/implementations/0/steps/1/surplus", json!([6, 7])),
            ("/implementations/0/recognised", json!(["drops_newest_old"])),
            ("/implementations/2/steps/0/dropped", json!([0])),
            ("/implementations/2/steps/1/dropped", json!([1])),
            ("/implementations/2/steps/1/sinks_missing", json!([0, 1])),
            ("/implementations/2/recognised", json!(["ring_buffer"])),
        ],
    );
    assert!(named(&answer, "x").contains(&"recent_lost".to_owned()), "{answer:#}");
    assert!(!named(&answer, "x").contains(&"sink_lost".to_owned()), "{answer:#}");
    assert!(named(&answer, "z").contains(&"sink_lost".to_owned()), "{answer:#}");
    assert!(title(&answer, "counts_equal").contains("x, z"), "{answer:#}");

    let scratch = Scratch::new();
    let mut clean = data("20/rows.json");
    for step in clean["steps"].as_array_mut().expect("steps") {
        let step = step.as_object_mut().expect("a step");
        step.remove("x");
        step.remove("z");
    }
    let path = write(&scratch, "clean.json", &clean);
    answers(
        &["check", "states", &path],
        0,
        &[("/counts_reveal", Value::Null), ("/right", json!(["y"]))],
    );

    let other = json!({"sink": 1, "recent": 3, "start": [0, 4, 5, 6], "steps": [
        {"new": 7, "w": [0, 4, 5, 7], "sorted": [4, 5, 6, 7], "fewer": [0, 6, 7]},
        {"new": [8, 9], "w": [0, 4, 5, 9], "sorted": [6, 7, 8, 9], "fewer": [0, 8, 9]},
    ]});
    answers(
        &["check", "states", &write(&scratch, "other.json", &other)],
        1,
        &[
            ("/implementations/2/recognised", json!(["drops_newest_old"])),
            // A sorted list cannot tell a plain window from a ring; its slots speak for the window.
            ("/implementations/1/recognised", json!(["oldest_goes"])),
            ("/implementations/0/recognised", json!(["sinks_within_recent", "one_row_less"])),
            ("/counts_reveal", json!(false)),
        ],
    );
}

#[test]
fn a_window_of_one_key_more_is_told_by_query_and_by_where_it_saturates() {
    let file = case("15/visible_keys.json");
    let answer = answers(
        &["check", "visible", &file],
        1,
        &[
            ("/pairs/0/equal_before", json!(4)),
            ("/pairs/0/first_difference/query", json!(4)),
            ("/pairs/0/first_difference/only_left", json!([])),
            ("/pairs/0/first_difference/only_right", json!([0])),
            ("/pairs/0/count_difference", json!(1)),
            ("/pairs/0/constant", json!(true)),
            ("/engines/0/saturates_at", json!(4)),
            ("/engines/1/saturates_at", json!(5)),
            ("/agrees", json!(["engine_a"])),
            ("/convention", json!("sliding_window = 4 is the current key and 3 before it")),
            ("/keys_to_the_left", json!(3)),
        ],
    );
    assert_eq!(named(&answer, ""), ["one_key_more"]);
    assert!(
        title(&answer, "one_key_more").contains("counts the keys to the left needs 3"),
        "{answer:#}"
    );

    let scratch = Scratch::new();
    let mut one = data("15/visible_keys.json");
    one["engine_b"] = one["engine_a"].clone();
    answers(
        &["check", "visible", &write(&scratch, "clean.json", &one)],
        0,
        &[("/agrees", json!(["engine_a", "engine_b"])), ("/pairs/0/first_difference", Value::Null)],
    );
    // The other convention: then it is the other engine that agrees.
    let mut other = data("15/visible_keys.json");
    other["window_counts_current"] = json!(false);
    answers(
        &["check", "visible", &write(&scratch, "other.json", &other)],
        1,
        &[
            ("/agrees", json!(["engine_b"])),
            ("/keys_to_the_left", json!(4)),
            ("/findings/0/name", json!("one_key_less")),
        ],
    );
    // Masks, chunks, and an engine that looks ahead; queries 4.. only.
    let mixed = json!({"sliding_window": 2, "first_query": 3,
        "mask": [[false, false, true, true], [false, false, false, true, true]],
        "chunks": [[2, 3], [4]],
        "ahead": [[2, 3, 4], [3, 4, 5]]});
    let answer = answers(
        &["check", "visible", &write(&scratch, "mixed.json", &mixed)],
        1,
        &[
            ("/agrees", json!(["mask"])),
            ("/engines/1/shape", json!("chunk")),
            ("/engines/1/size", json!(2)),
            ("/engines/1/first_fault/query", json!(4)),
            ("/engines/1/first_fault/missing", json!([3])),
            ("/engines/0/sees_future", json!([3, 4])),
            ("/engines/0/shape", Value::Null),
        ],
    );
    assert_eq!(named(&answer, "chunks"), ["chunked"]);
    // Too short for the window to cut.
    let short = json!({"sliding_window": 4, "a": [[0], [0, 1]], "b": [[0], [0, 1]]});
    answers(&["check", "visible", &write(&scratch, "short.json", &short)], 4, &[]);
}

#[test]
fn shifts_that_never_reached_the_keys_are_named() {
    let file = case("18/ops.json");
    let answer = answers(
        &["check", "shifts", &file],
        1,
        &[
            ("/positions", json!([0, 1, 2, 3, 6, 7, 8, 9])),
            ("/observed_positions/0/right", json!(true)),
            ("/cells/4/angle", json!(6.0)),
            ("/cells/7/angle", json!(9.0)),
            ("/cells/3/total_delta", json!(0)),
            ("/cells/4/total_delta", json!(2)),
            ("/cells/7/total_delta", json!(2)),
            ("/shifted_cells", json!([4, 5, 6, 7])),
            ("/observed_angles/0/wrong_cells", json!([4, 5, 6, 7])),
            ("/observed_angles/1/wrong_cells", json!([4, 5, 6, 7])),
            ("/observed_angles/1/recognised", json!(["only_last_shift"])),
            ("/nothing_removed", json!(true)),
        ],
    );
    let errors = |list: usize| {
        answer.pointer(&format!("/observed_angles/{list}/errors")).expect("a list").clone()
    };
    assert_eq!(errors(0), json!([0.0, 0.0, 0.0, 0.0, -2.0, -2.0, -2.0, -2.0]));
    assert_eq!(errors(1), json!([0.0, 0.0, 0.0, 0.0, -3.0, -3.0, -3.0, -3.0]));
    // Without a removal, a rotation that waits for one is no rotation: both are named.
    let x = answer.pointer("/observed_angles/0/recognised").expect("a value").clone();
    assert_eq!(x, json!(["no_rotation", "only_when_rows_leave"]));
    assert!(title(&answer, "no_rotation").contains("no rotation at all"), "{answer:#}");
    assert!(
        title(&answer, "nothing_removed").contains("only when rows leave would do nothing"),
        "{answer:#}"
    );

    let scratch = Scratch::new();
    let mut clean = data("18/ops.json");
    clean["observed_angle_x"] = json!([0, 1, 2, 3, 6, 7, 8, 9]);
    clean["observed_angle_y"] = clean["observed_angle_x"].clone();
    answers(
        &["check", "shifts", &write(&scratch, "clean.json", &clean)],
        0,
        &[("/findings", json!([]))],
    );
    // Another angle a position, known up to whole turns: 0.5 * 9 = 4.5 is 4.5 - 2 pi.
    let turn = std::f64::consts::TAU;
    clean["theta"] = json!(0.5);
    clean["angles_wrapped"] = json!(true);
    clean["observed_angle_x"] =
        json!([0.0, 0.5, 1.0, 1.5, 3.0, 3.5 - turn, 4.0 - turn, 4.5 - turn]);
    clean["observed_angle_y"] =
        json!([0.0, 0.5, 1.0, 1.5, 3.5, 4.0 - turn, 4.5 - turn, 5.0 - turn]);
    answers(
        &["check", "shifts", &write(&scratch, "turns.json", &clean)],
        1,
        &[
            ("/observed_angles/0/right", json!(true)),
            ("/observed_angles/1/recognised", json!(["only_first_shift"])),
        ],
    );
    // Two rows leave and the others close up, as a full context does it; then one list of positions missed the second operation.
    let removal = json!({"cells": [0, 1, 2, 3, 4, 5], "theta": 1.0,
        "ops": [{"op": "rm", "from_pos": 2, "to_pos": 4}, {"op": "add", "from_pos": 4, "delta": -2}],
        "observed_pos": [0, 1, null, null, 2, 3], "observed_pos_late": [0, 1, null, null, 4, 5],
        "observed_angle": [0, 1, null, null, 2, 3], "observed_angle_back": [0, 1, null, null, 6, 7]});
    answers(
        &["check", "shifts", &write(&scratch, "removal.json", &removal)],
        1,
        &[
            ("/positions", json!([0, 1, null, null, 2, 3])),
            ("/nothing_removed", json!(false)),
            ("/observed_positions/1/recognised", json!(["only_first_shift"])),
            ("/observed_angles/0/right", json!(true)),
            ("/observed_angles/0/not_excluded", json!(["only_when_rows_leave"])),
            ("/observed_angles/1/recognised", json!(["turned_backwards"])),
        ],
    );
}

#[test]
fn forms_that_are_wrong_are_refused_with_the_place() {
    let scratch = Scratch::new();
    let refused = |verb: &str, form: &str, parts: &[&str]| {
        fs::write(scratch.file("form.json"), form).expect("a file");
        let parts = [&["form.json"], parts].concat();
        lockstep(["check", verb, &scratch.path("form.json")]).expect_refusal(3, &parts);
    };
    refused(
        "states",
        r#"{"window": 8, "steps": [{"after_tokens": 3, "a": [0, 1.5]}]}"#,
        &["/steps/0/a/1"],
    );
    refused("states", r#"{"window": 0, "steps": []}"#, &["no recent row"]);
    refused("states", r#"{"steps": []}"#, &["`window`"]);
    refused("states", r#"{"window": 8, "windw": 1, "steps": []}"#, &["windw", "not known"]);
    refused(
        "states",
        r#"{"sink": 1, "recent": 2, "start": [0, 5], "steps": [{"new": 5, "a": []}]}"#,
        &["position 5"],
    );
    refused("states", r#"{"window": 99999999999, "steps": []}"#, &["/window"]);
    refused(
        "states",
        r#"{"window": 8, "steps": [{"after_tokens": 99999999999, "a": []}]}"#,
        &["/steps/0/after_tokens"],
    );
    refused("visible", r#"{"sliding_window": 2}"#, &["no engine"]);
    refused("visible", r#"{"a": [[1, 1]]}"#, &["key 1 stands twice"]);
    refused("visible", r#"{"a": [[0]], "a": [[1]]}"#, &["`a` stands twice"]);
    refused(
        "shifts",
        r#"{"cells": [0], "theta": 1, "ops": [{"op": "turn"}]}"#,
        &["/ops/0/op", "turn"],
    );
    refused(
        "shifts",
        r#"{"cells": [0], "theta": 1, "ops": [], "observed_pos": [0, 1]}"#,
        &["2 values for 1 cells"],
    );
    refused("shifts", r#"{"cells": [0], "theta": 0, "ops": []}"#, &["/theta"]);
    refused("states", "", &["empty"]);
    lockstep(["check", "states", &scratch.path("absent.json")]).expect_refusal(3, &["absent.json"]);
    // A cache with nothing in it is no parity.
    fs::write(scratch.file("none.json"), r#"{"window": 8, "steps": []}"#).expect("a file");
    lockstep(["check", "states", &scratch.path("none.json")]).expect(4);
}
