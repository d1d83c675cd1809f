//! A run goes out and comes back; a map brings foreign names home; what does not fit is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;
use crate::limits::{TokenIds, Values};
use crate::manifest::Producer;
use crate::store::{RunReader, RunWriter, write_safetensors};
use crate::tensor_files::{ReadOptions, read};
use crate::{
    DType, Dump, DumpId, Manifest, RecordPlan, SampleRow, StepQuery, Tensor, TraceError,
    TraceSink as _,
};

/// Values 0, 1, 2, ... of a row, as logits.
fn logits(row: u32) -> Vec<f32> {
    (0..12).map(|at| ((at * 7 + row * 5) % 12) as f32 * 0.25 - 1.0).collect()
}

/// A run of one sample with two rows of logits and a compaction in bf16.
fn recorded(dir: &Path) -> RunReader {
    let mut manifest = Manifest::new(Producer::default(), "cpu");
    manifest.logits_hash_seeds = Some(crate::hash::DEFAULT_SEEDS);
    let mut writer = RunWriter::create(dir, manifest, RecordPlan::default()).unwrap();
    let sample = "a/b";
    for position in 0..2 {
        let id = DumpId::Step { sample_id: sample.into(), position };
        let tensors = vec![
            Tensor::from_f32("logits", vec![12], &logits(position)),
            Tensor::from_f32("hidden.layer00.out", vec![4], &[position as f32, 1.0, 2.0, 3.0]),
        ];
        writer.dump(Dump { id, metadata: BTreeMap::new(), tensors }).unwrap();
        let known = super::rows::Known {
            position,
            token: Some(position + 40),
            next: None,
            prompt_len: None,
        };
        writer.step(super::rows::row(sample, known, Some(&logits(position)), 8)).unwrap();
    }
    let id = DumpId::Compaction { sample_id: sample.into(), ordinal: 1 };
    let metadata = BTreeMap::from([("absolute_position".to_owned(), "2".to_owned())]);
    let cache = Tensor {
        name: "pre.k.layer00".into(),
        dtype: DType::Bf16,
        shape: vec![1, 2, 2],
        data: vec![0, 0x3f, 0x80, 0x3f, 0, 0x40, 0x40, 0x40],
    };
    writer.dump(Dump { id, metadata, tensors: vec![cache] }).unwrap();
    writer.sample(SampleRow::bare(sample)).unwrap();
    writer.finish().unwrap();
    RunReader::open(dir).unwrap()
}

fn imported(path: &Path, map: RunMap, out: &Path) -> Result<Vec<String>, TraceError> {
    let set = read(path, &ReadOptions::default())?;
    import_tensors(&set, &TensorImport { map, prompt_len: None }, out)
}

#[test]
fn an_export_comes_back_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let run = recorded(&home.path().join("run"));
    let (file, folder) = (home.path().join("x.safetensors"), home.path().join("npy"));
    export_safetensors(&run, None, &file).unwrap();
    export_npy(&run, Some("a/b"), &folder).unwrap();
    for (name, path) in [("one", file), ("two", folder)] {
        let out = home.path().join(name);
        imported(&path, RunMap::default(), &out).unwrap();
        let again = RunReader::open(&out).unwrap();
        assert_eq!(again.dumps().unwrap(), run.dumps().unwrap(), "{name}");
        for id in run.dumps().unwrap() {
            let (a, b) = (run.dump(&id).unwrap().unwrap(), again.dump(&id).unwrap().unwrap());
            assert!(a.names().eq(b.names()), "{name} {id:?}");
            for tensor in a.names() {
                let (a, b) = (a.get(tensor).unwrap(), b.get(tensor).unwrap());
                assert_eq!((a.dtype, &a.shape, a.bytes), (b.dtype, &b.shape, b.bytes), "{tensor}");
            }
        }
        let (a, b) = (
            run.steps(&StepQuery::default()).unwrap(),
            again.steps(&StepQuery::default()).unwrap(),
        );
        assert_eq!((a.token_id, a.logits_hash, a.top_ids), (b.token_id, b.logits_hash, b.top_ids));
        let limits = &again.manifest().limits;
        assert_eq!(
            (limits.values, limits.token_ids, limits.rows),
            (Values::Logits, TokenIds::Given, false)
        );
        assert_eq!(again.events(None).unwrap()[0].absolute_position, 2);
        assert_eq!(again.manifest().cache_dtype, Some(DType::Bf16));
    }
    let error = export_npy(&run, Some("c"), &home.path().join("none")).unwrap_err();
    assert!(error.to_string().contains("no dump of sample `c`"), "{error}");
}

/// An engine's own names: caches as `[rows, heads, dim]`, hidden states of two rows at once.
fn engine(home: &Path) -> PathBuf {
    let path = home.join("engine.safetensors");
    let rows: Vec<f32> = (0..2).flat_map(logits).collect();
    let cache: Vec<f32> = (0..12).map(|at| at as f32).collect();
    let tensors = [
        Tensor::from_f32("iteration_3/lm_head", vec![2, 1, 12], &rows),
        Tensor::from_f32("iteration_3/blk.1.k_before", vec![3, 2, 2], &cache),
        Tensor::from_i32("iteration_3/input_ids", vec![2], &[5, 6]),
        Tensor::from_i32("iteration_4/sizes", vec![1], &[2]),
    ];
    write_safetensors(&path, &BTreeMap::new(), &tensors).unwrap();
    path
}

const MAP: &str = r"
sample: q
rules:
  - {names: 'iteration_(?<i>\d+)/lm_head', to: logits, position: '{i}-1', rows: true}
  - {names: '.*/blk\.(?<layer>\d+)\.k_before', to: 'pre.k.layer{layer}', compaction: 1, absolute_position: 4, permute: [1, 0, 2]}
  - {names: '.*/input_ids', to: token_id, position: 2}
";

#[test]
fn a_map_takes_foreign_names_home() {
    let home = tempfile::tempdir().unwrap();
    let map = RunMap::parse(MAP, Path::new("map.yaml")).unwrap();
    let out = home.path().join("run");
    let remarks = imported(&engine(home.path()), map, &out).unwrap();
    assert!(
        remarks.iter().any(|remark| remark.contains("1 of 4 tensors keep their own names")),
        "{remarks:?}"
    );
    let run = RunReader::open(&out).unwrap();
    let steps = run.steps(&StepQuery::default()).unwrap();
    assert_eq!((steps.position, steps.token_id), (vec![2, 3], vec![5, 6]));
    assert_eq!(
        steps.logits_hash[1],
        Some(crate::hash::logits_hash(&logits(1), crate::hash::DEFAULT_SEEDS))
    );
    let step = run.dump(&DumpId::Step { sample_id: "q".into(), position: 3 }).unwrap().unwrap();
    assert_eq!(step.get("logits").unwrap().shape, [12]);
    let id = DumpId::Compaction { sample_id: "q".into(), ordinal: 1 };
    let cache = run.dump(&id).unwrap().unwrap();
    let cache = cache.get("pre.k.layer01").unwrap();
    // Head 0 of rows 0, 1, 2, then head 1.
    assert_eq!(cache.shape, [2, 3, 2]);
    assert_eq!(
        cache.to_f32().unwrap(),
        [0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 2.0, 3.0, 6.0, 7.0, 10.0, 11.0]
    );
    // What no rule names keeps its name at the step that its name tells.
    let kept = run.dump(&DumpId::Step { sample_id: "q".into(), position: 4 }).unwrap().unwrap();
    assert!(kept.has("iteration_4/sizes"));
}

#[test]
fn without_a_map_nothing_is_claimed() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    imported(&engine(home.path()), RunMap::default(), &out).unwrap();
    let run = RunReader::open(&out).unwrap();
    let limits = &run.manifest().limits;
    assert_eq!((limits.values, limits.token_ids), (Values::Nothing, TokenIds::Nothing));
    assert!(
        limits.cannot.iter().any(|line| line.contains("step or iteration in their name")),
        "{limits:?}"
    );
    assert_eq!(run.steps(&StepQuery::default()).unwrap().len, 0);
    assert_eq!(run.dumps().unwrap().len(), 2);
}

#[test]
fn maps_that_cannot_be_meant_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = engine(home.path());
    for (map, part) in [
        ("rules: [{names: '(', to: logits, position: 0}]", "rule 0: `(` is no regular expression"),
        ("rules: [{names: 'x', to: logits}]", "neither `position` nor `compaction`"),
        ("rules: [{names: 'x', to: logits, position: 0, compaction: 1}]", "both"),
        ("rules: [{names: 'x', to: logits, position: 0, element: f99}]", "f99"),
        ("ruls: []", "ruls"),
    ] {
        let error = RunMap::parse(map, Path::new("map.yaml")).unwrap_err().to_string();
        assert!(error.contains(part) && error.starts_with("map.yaml"), "{error}");
    }
    for (map, part) in [
        ("rules: [{names: '.*_ids', to: logits, position: 0}]", "logits are f32"),
        ("rules: [{names: '.*lm_head', to: token_id, position: 0}]", "ids are integers"),
        ("rules: [{names: '.*', to: 'x', position: 0}]", "the second `x`"),
        ("rules: [{names: '.*lm_head', to: 'x', position: '{no}'}]", "no group `no`"),
        ("rules: [{names: '.*lm_head', to: 'x', position: '0-1'}]", "no number from 0 on"),
        (
            "rules: [{names: '.*lm_head', to: 'x', position: 0, permute: [0, 0, 1]}]",
            "each of them once",
        ),
        (
            "rules: [{names: '.*lm_head', to: 'x', position: 0, element: bf16}]",
            "correct the declaration",
        ),
    ] {
        let out = home.path().join("refused");
        let map = RunMap::parse(map, Path::new("map.yaml")).unwrap();
        let error = imported(&path, map, &out).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}
