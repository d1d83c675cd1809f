use std::path::PathBuf;

use serde_json::{Value, json};

use super::{ArmTable, CacheStates, KeepSpec, KeptRows, ShiftOp, Shifts, VisibleKeys};

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("form.json");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

#[test]
fn steps_say_which_rows_they_appended() {
    let (_dir, path) = file(
        r#"{"window":4,"note":"x","steps":[{"after_tokens":2,"a":[0,1,null]},{"after_tokens":3,"b":[2]},{"new":[3,9],"a":[]}]}"#,
    );
    let form = CacheStates::read(&path).unwrap();
    assert_eq!((form.sink, form.recent, form.window), (0, 4, true));
    assert_eq!(form.names, ["a", "b"]);
    let fed: Vec<_> = form.steps.iter().map(|step| (step.tokens, step.fed.clone())).collect();
    assert_eq!(fed, [(2, vec![0, 1]), (3, vec![2]), (5, vec![3, 9])]);
    assert_eq!(form.steps[0].states[0].slots, [Some(0), Some(1), None]);
    // After a gap nobody knows what a count of tokens stands for.
    let (_dir, path) = file(r#"{"window":4,"start":[0,7],"steps":[{"after_tokens":9,"a":[]}]}"#);
    assert!(CacheStates::read(&path).unwrap_err().to_string().contains("`new`"));
}

#[test]
fn a_mask_and_a_list_of_keys_are_the_same() {
    let (_dir, path) = file(r#"{"sliding_window":2,"a":[[false,true,true],[]],"b":[[2,1],[0]]}"#);
    let form = VisibleKeys::read(&path).unwrap();
    assert_eq!(form.engines[0].keys, [vec![1, 2], vec![]]);
    assert_eq!(form.engines[1].keys, [vec![1, 2], vec![0]]);
}

#[test]
fn ranges_of_operations_are_open_where_no_end_is_given() {
    let (_dir, path) = file(
        r#"{"cells":[0,1],"theta":[1.0,0.5],"ops":[{"op":"seq_add","p0":1,"p1":-1,"delta":-2},{"op":"rm","to_pos":3}],
            "observed_angle":[null,0.5],"angles_wrapped":true}"#,
    );
    let form = Shifts::read(&path).unwrap();
    assert_eq!(form.ops[0], ShiftOp::Add { from: 1, to: i64::MAX, delta: -2 });
    assert_eq!(form.ops[1], ShiftOp::Remove { from: 0, to: 3 });
    assert_eq!(form.angles, [("observed_angle".to_owned(), vec![None, Some(0.5)])]);
    assert!(form.wrapped && form.positions.is_empty());
}

#[test]
fn a_score_has_as_many_of_each_and_rows_stand_once() {
    let (_dir, path) = file(r#"{"amp":[1],"omega":[1,2],"phase":[0],"budget":4}"#);
    assert!(KeepSpec::read(&path).unwrap_err().to_string().contains("[1, 2, 1]"));
    let (_dir, path) = file(
        "{\"absolute_position\":4,\"rows\":[3,0,1],\"kept\":[3,0]}\n{\"compaction\":4,\"absolute_position\":9,\"rows\":[8],\"kept\":[8]}\n",
    );
    let records = KeptRows::read(&path).unwrap();
    assert_eq!((records[0].compaction, records[1].compaction), (1, 4));
    assert_eq!((&records[0].rows, &records[0].kept), (&vec![3, 0, 1], &vec![0, 3]));
    for wrong in ["\"rows\":[1,1],\"kept\":[]", "\"rows\":[4],\"kept\":[]"] {
        let (_dir, path) = file(&format!("[{{\"absolute_position\":4,{wrong}}}]"));
        assert!(KeptRows::read(&path).is_err(), "{wrong}");
    }
}

#[test]
fn everything_but_the_name_and_the_effect_is_a_factor() {
    let (_dir, path) = file(
        r#"[{"arm":"a","x":{"y":1,"z":[2]},"seed":1,"score":0.5},{"name":"b","w":"u","x":{"y":1.5},"score":1},{"arm":"c","score":null}]"#,
    );
    let table = ArmTable::read(&path, "score", &["seed".to_owned()]).unwrap();
    assert_eq!(table.factors, ["x.y", "x.z", "w"]);
    assert_eq!(table.arms[0].levels, [json!(1), json!([2]), Value::Null]);
    assert_eq!(table.arms[1].levels, [json!(1.5), Value::Null, json!("u")]);
    assert_eq!(table.without_effect, ["c"]);
    let (_dir, path) = file(r#"[{"arm":"a","score":1},{"arm":"a","score":2}]"#);
    assert!(
        ArmTable::read(&path, "score", &[]).unwrap_err().to_string().contains("second arm `a`")
    );
    let (_dir, path) = file(r#"[{"arm":"a","score":"high"}]"#);
    assert!(ArmTable::read(&path, "score", &[]).unwrap_err().to_string().contains("/0/score"));
}
