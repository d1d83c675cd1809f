//! Golden folders pass, changed ones fail by name.

use super::*;

fn all_agree(folder: &str) -> Vec<CaseResult> {
    let results = run_sampling(&lockstep_testkit::golden().join(folder)).unwrap().unwrap();
    for result in &results {
        assert!(!matches!(result.status, Status::Fail { .. }), "{result:?}");
    }
    results
}

#[test]
fn every_draw_of_torch_is_reproduced() {
    let results = all_agree("sampler");
    for kind in
        ["cuda_multinomial", "cuda_multinomial_batch", "cuda_multinomial_sparse", "cpu_multinomial"]
    {
        assert!(results.iter().any(|result| result.group == kind), "{kind}");
    }
    assert!(results.iter().all(|result| result.keep_equal == result.keep_rows));
    assert!(results.iter().map(|result| result.keep_rows).sum::<usize>() >= 500);
}

#[test]
fn every_filter_case_of_transformers_agrees() {
    let results = all_agree("filters");
    let filters = results.iter().filter(|result| result.group == "filters");
    assert_eq!(filters.clone().count(), 932);
    assert!(filters.filter(|result| result.keep_equal == 1).count() >= 873);
    assert!(results.iter().filter(|result| result.group == "cpu_draws").count() >= 16);
}

#[test]
fn a_changed_draw_and_a_changed_setting_fail_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let source = lockstep_testkit::golden().join("sampler");
    let index = std::fs::read_to_string(source.join("index.json")).unwrap();
    let name = "torch_multinomial.safetensors";
    std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
    let index = index.replacen("\"seed\": 77", "\"seed\": 78", 1);
    std::fs::write(folder.path().join("index.json"), index).unwrap();
    let results = run_sampling(folder.path()).unwrap().unwrap();
    let failed: Vec<_> = results
        .iter()
        .filter(|result| matches!(result.status, Status::Fail { .. }))
        .map(|result| result.name.as_str())
        .collect();
    assert_eq!(failed, ["batch4"]);

    let source = lockstep_testkit::golden().join("filters");
    for name in ["logits.safetensors", "expected.safetensors"] {
        std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::remove_file(folder.path().join("index.json")).unwrap();
    let mut cases = json(&source.join("cases.json")).unwrap();
    cases["cases"][1]["top_p"] = Value::from(0.5);
    std::fs::write(folder.path().join("cases.json"), cases.to_string()).unwrap();
    let results = run_sampling(folder.path()).unwrap().unwrap();
    assert!(matches!(&results[1].status, Status::Fail { why } if why.contains("ids kept")));
}

#[test]
fn folders_of_another_kind_are_left_alone() {
    let folder = lockstep_testkit::golden().join("triattention");
    assert!(run_sampling(&folder).unwrap().is_none());
    assert!(run_sampling(tempfile::tempdir().unwrap().path()).unwrap().is_none());
}
