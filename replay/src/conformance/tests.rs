//! The golden selector vectors, and faults planted in copies of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lockstep_reference::select::{Grid, Progress, Selection};
use lockstep_testkit::golden;
use lockstep_traces::store::{DumpFile, write_safetensors};
use lockstep_traces::{PolicySpec, Tensor};
use serde_json::{Value, json};

use super::{CaseStatus, Implementation, Reference, SelectorCase, run, run_with};

fn index() -> Value {
    serde_json::from_slice(&std::fs::read(vectors().join("cases.json")).unwrap()).unwrap()
}

/// A directory that lists only these cases, with copies of the files of the golden one.
fn part<'a>(cases: impl Iterator<Item = &'a Value>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cases: Vec<&Value> = cases.collect();
    std::fs::write(dir.path().join("cases.json"), json!({"cases": cases}).to_string()).unwrap();
    for folder in ["inputs", "stats", "expected"] {
        let target = dir.path().join(folder);
        std::fs::create_dir(&target).unwrap();
        for file in std::fs::read_dir(vectors().join(folder)).unwrap() {
            let file = file.unwrap();
            let wanted = file.file_name().to_string_lossy().into_owned();
            let used = |case: &&Value| case.to_string().contains(&wanted);
            if cases.iter().any(used) {
                std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
            }
        }
    }
    dir
}

fn vectors() -> PathBuf {
    golden().join("triattention")
}

#[test]
fn every_listed_case_agrees_and_only_ties_at_infinity_are_chosen_otherwise() {
    let report = run(&vectors()).unwrap();
    let failed: Vec<_> =
        report.cases.iter().filter(|case| matches!(case.status, CaseStatus::Fail { .. })).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(report.passed() && report.exit_code() == 0);
    let listed: u64 =
        report.groups.iter().filter(|(name, _)| *name != "trt").map(|(_, group)| group.cases).sum();
    assert_eq!(listed, report.listed, "every case of the index is run");
    assert!(report.groups.contains_key("trt"), "{:?}", report.groups.keys());
    for case in report.cases.iter().filter(|case| case.status != CaseStatus::Pass) {
        assert_eq!(case.keep_equal, 0, "a case of ties is ties in every keep-set: {case:?}");
    }
}

/// The reference with one thing changed before it selects.
struct Changed<F> {
    inner: Reference,
    change: F,
    finals: Vec<(String, Vec<f64>, Vec<f64>)>,
}

impl<F: FnMut(&mut SelectorCase<'_>)> Implementation for Changed<F> {
    fn name(&self) -> &'static str {
        "changed"
    }

    fn select(&mut self, case: &SelectorCase<'_>) -> Result<Selection, String> {
        let mut other = SelectorCase {
            spec: case.spec.clone(),
            layers: case.layers.clone(),
            keys: case.keys.clone(),
            positions: case.positions.clone(),
            ..*case
        };
        (self.change)(&mut other);
        let changed = Reference::default().select(&other)?;
        let plain = self.inner.select(case)?;
        let ranked = |selection: &Selection| {
            selection
                .stages
                .as_ref()
                .map_or_else(Vec::new, |stages| stages.final_scores.values.clone())
        };
        self.finals.push((case.name.to_owned(), ranked(&plain), ranked(&changed)));
        Ok(changed)
    }

    fn rank(&mut self, case: &SelectorCase<'_>, raw: &Grid) -> Option<Result<Selection, String>> {
        self.inner.rank(case, raw)
    }

    fn due(&mut self, spec: &PolicySpec, progress: &Progress) -> Result<bool, String> {
        self.inner.due(spec, progress)
    }
}

fn changed<F: FnMut(&mut SelectorCase<'_>)>(change: F) -> Changed<F> {
    Changed { inner: Reference::default(), change, finals: Vec::new() }
}

#[test]
fn a_round_start_off_by_one_fails_every_group_that_scores() {
    let mut by = changed(|case| case.moment.round_start += 1);
    // The smallest case of each group that has scores.
    let index = index();
    let mut smallest: BTreeMap<&str, &Value> = BTreeMap::new();
    let size = |case: &Value| {
        let sizes = case["tensors"].as_object().into_iter().flatten();
        sizes
            .flat_map(|(_, tensor)| tensor[1].as_array().cloned())
            .flatten()
            .filter_map(|n| n.as_u64())
            .sum::<u64>()
    };
    for case in index["cases"].as_array().unwrap() {
        let Some(group) = case["impl"].as_str() else { continue };
        let scored = case["tensors"].get("agg_scores").or(case["tensors"].get("c1.keep"));
        if scored.is_some() && smallest.get(group).is_none_or(|held| size(case) < size(held)) {
            smallest.insert(group, case);
        }
    }
    let trig = index["cases"].as_array().unwrap().iter().find(|case| case["impl"] == "trig");
    let part = part(smallest.into_values().chain(trig));
    let report = run_with(part.path(), &mut by).unwrap();
    for (name, group) in &report.groups {
        assert!(group.failed > 0, "{name}: {group:?}");
    }
    assert_eq!(report.exit_code(), 1);
    assert!(!report.not_covered.is_empty(), "cases without a rule set are not claimed");
}

/// Noise of 1e-6 is below every tolerance; that it is upstream's stream shows in the correlation of what is left of the
/// expected scores when those without noise are taken away.
#[test]
fn the_noise_is_upstreams_stream() {
    let index = index();
    let noisy_case = |case: &&Value| {
        let scored = case["tensors"].get("agg_scores").is_some();
        case["impl"] == "hf" && !case["config"]["seed"].is_null() && scored
    };
    let cases: Vec<&Value> = index["cases"].as_array().unwrap().iter().filter(noisy_case).collect();
    assert!(!cases.is_empty(), "no case with noise and scores in the index");
    let part = part(cases.iter().copied());
    let noisy = |seed: i64| {
        let mut by = changed(|case| {
            if case.spec.noise_seed.is_some_and(|seed| seed >= 0) {
                case.spec.noise_seed = Some(seed);
            }
        });
        run_with(part.path(), &mut by).unwrap();
        by.finals
    };
    let (quiet, other) = (noisy(-1), noisy(1));
    for case in &cases {
        let file = DumpFile::open(&vectors().join(case["expected"].as_str().unwrap())).unwrap();
        let view = file.get("agg_scores").unwrap();
        let expected = lockstep_reference::select::widen(view.dtype, view.bytes);
        let of = |list: &[(String, Vec<f64>, Vec<f64>)]| {
            let (_, right, changed) =
                list.iter().find(|(name, _, _)| case["name"] == name.as_str()).unwrap();
            (right.clone(), changed.clone())
        };
        let (right, without) = of(&quiet);
        let (_, wrong) = of(&other);
        let minus =
            |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
        let left = minus(&expected, &without);
        let ours = correlation(&left, &minus(&right, &without));
        let others = correlation(&left, &minus(&wrong, &without));
        assert!(ours > 0.3 && others < 0.2, "{}: {ours} against {others}", case["name"]);
    }
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        ab += (a - mean_a) * (b - mean_b);
        aa += (a - mean_a) * (a - mean_a);
        bb += (b - mean_b) * (b - mean_b);
    }
    ab / (aa * bb).sqrt()
}

/// A directory with one case, linked to the files of the golden one except for its own copy of the expected tensors.
struct Copy {
    dir: tempfile::TempDir,
    case: Value,
}

impl Copy {
    /// The case with the smallest input that is of this group and has these tensors.
    fn of(group: &str, tensors: &[&str]) -> Self {
        let index = index();
        let fits = |case: &&Value| {
            case["impl"] == group && tensors.iter().all(|name| case["tensors"].get(name).is_some())
        };
        let size = |case: &&Value| {
            let file = case["input"].as_str().or(case["expected"].as_str()).unwrap();
            std::fs::metadata(vectors().join(file)).unwrap().len()
        };
        let case = index["cases"]
            .as_array()
            .unwrap()
            .iter()
            .filter(fits)
            .min_by_key(size)
            .unwrap()
            .clone();
        let copy = Self { dir: tempfile::tempdir().unwrap(), case };
        for field in ["input", "stats", "expected"] {
            if let Some(file) = copy.case[field].as_str() {
                let target = copy.dir.path().join(file);
                std::fs::create_dir_all(target.parent().unwrap()).unwrap();
                std::fs::copy(vectors().join(file), target).unwrap();
            }
        }
        copy
    }

    fn expected(&self) -> PathBuf {
        self.dir.path().join(self.case["expected"].as_str().unwrap())
    }

    fn edit(&self, name: &str, change: impl Fn(&mut Tensor)) {
        let path = self.expected();
        let mut tensors = all(&path);
        change(tensors.iter_mut().find(|tensor| tensor.name == name).unwrap());
        write_safetensors(&path, &BTreeMap::new(), &tensors).unwrap();
    }

    fn run(&self) -> (CaseStatus, u64) {
        let index = json!({"cases": [self.case]});
        std::fs::write(self.dir.path().join("cases.json"), index.to_string()).unwrap();
        let report = run(self.dir.path()).unwrap();
        (report.cases[0].status.clone(), report.cases[0].keep_equal)
    }

    fn why(&self) -> String {
        match self.run().0 {
            CaseStatus::Fail { why } => why,
            other => panic!("{other:?}"),
        }
    }
}

fn all(path: &Path) -> Vec<Tensor> {
    let file = DumpFile::open(path).unwrap();
    let one = |name: &str| {
        let view = file.get(name).unwrap();
        Tensor {
            name: name.to_owned(),
            dtype: view.dtype,
            shape: view.shape.clone(),
            data: view.bytes.to_vec(),
        }
    };
    file.names().map(one).collect()
}

fn add(tensor: &mut Tensor, index: usize, change: f32) {
    let at = index * 4;
    let bytes = tensor.data[at..at + 4].try_into().unwrap();
    let value = f32::from_le_bytes(bytes) + change;
    tensor.data[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn one_wrong_score_fails_its_case() {
    let copy = Copy::of("vllm_selector", &["raw_scores", "agg_scores"]);
    assert_eq!(copy.run().0, CaseStatus::Pass);
    copy.edit("raw_scores", |tensor| add(tensor, 3, 1.0));
    assert!(copy.why().contains("raw_scores"));
    let copy = Copy::of("hf", &["agg_scores"]);
    copy.edit("agg_scores", |tensor| add(tensor, 0, 1e-3));
    assert!(copy.why().contains("agg_scores"));
}

#[test]
fn one_wrong_row_fails_its_case_and_no_tie_excuses_it() {
    let copy = Copy::of("vllm_selector", &["raw_scores", "agg_scores"]);
    copy.edit("keep", |tensor| {
        // The first kept row is exchanged for the first dropped one.
        let rows: Vec<i32> =
            tensor.data.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        let k = *tensor.shape.last().unwrap();
        let dropped = (0i32..).find(|row| !rows[..k].contains(row)).unwrap();
        let mut set = rows[..k].to_vec();
        set[0] = dropped;
        set.sort_unstable();
        tensor.data = set.iter().chain(&rows[k..]).flat_map(|row| row.to_le_bytes()).collect();
    });
    assert!(copy.why().contains("keep-set 0"), "{}", copy.why());
}

#[test]
fn a_missing_cut_or_reshaped_file_fails_its_case() {
    let copy = Copy::of("vllm_selector", &["raw_scores", "agg_scores"]);
    let mut index = copy.case.clone();
    index["tensors"]["agg_scores"][1] = json!([1, 2, 3]);
    let reshaped = Copy { case: index, ..Copy::of("vllm_selector", &["raw_scores", "agg_scores"]) };
    assert!(reshaped.why().contains("listed as [1, 2, 3]"), "{}", reshaped.why());
    let bytes = std::fs::read(copy.expected()).unwrap();
    std::fs::write(copy.expected(), &bytes[..bytes.len() / 2]).unwrap();
    assert!(!copy.why().is_empty());
    std::fs::remove_file(copy.expected()).unwrap();
    assert!(copy.why().contains("expected/"), "{}", copy.why());
}

#[test]
fn a_lifecycle_with_a_wrong_event_or_a_wrong_row_fails() {
    let mut copy = Copy::of("hf_lifecycle", &["c0.k_after", "c1.k_before"]);
    assert_eq!(copy.run().0, CaseStatus::Pass);
    let held = copy.case.clone();
    copy.case["events"][0]["absolute_position"] = json!(7);
    assert!(copy.why().contains("absolute_position"), "{}", copy.why());
    copy.case = held.clone();
    copy.case["cache_len_per_step"][3] = json!(1);
    assert!(copy.why().contains("entry 3"), "{}", copy.why());
    copy.case = held;
    copy.edit("c0.k_after", |tensor| add(tensor, 5, 1.0));
    assert!(copy.why().contains("is not row"), "{}", copy.why());
}

#[test]
fn a_moved_element_of_a_pool_fails() {
    let copy = Copy::of("compaction", &["cache_after"]);
    assert_eq!(copy.run().0, CaseStatus::Pass);
    copy.edit("cache_after", |tensor| add(tensor, 40, 1.0));
    assert!(copy.why().contains("1 of "), "{}", copy.why());
}
