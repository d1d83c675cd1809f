//! Dump files, whole and forged.

use std::collections::BTreeMap;

use super::*;
use crate::{DType, Dump, DumpId, Tensor, TraceError};

fn dump(id: DumpId) -> Dump {
    Dump {
        id,
        metadata: BTreeMap::from([
            ("rule_set".to_owned(), "trt".to_owned()),
            ("ordinal".to_owned(), "1".to_owned()),
        ]),
        tensors: vec![
            Tensor {
                name: "b".to_owned(),
                dtype: DType::U8,
                shape: vec![3],
                data: vec![1, 2, 255],
            },
            Tensor {
                name: "h".to_owned(),
                dtype: DType::F16,
                shape: vec![1, 2],
                data: vec![0x00, 0x3C, 0x01, 0x80],
            },
            Tensor::from_f32("k", vec![2, 2], &[1.5, -0.0, f32::MIN_POSITIVE, 3e38]),
            Tensor::from_i32("keep", vec![2], &[i32::MIN, 7]),
            Tensor {
                name: "w".to_owned(),
                dtype: DType::F64,
                shape: vec![],
                data: 0.1_f64.to_le_bytes().to_vec(),
            },
            Tensor { name: "e".to_owned(), dtype: DType::I64, shape: vec![0, 4], data: vec![] },
        ],
    }
}

fn step_id(sample_id: &str) -> DumpId {
    DumpId::Step { sample_id: sample_id.to_owned(), position: 12 }
}

#[test]
fn a_dump_is_read_back_through_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    let ids = [
        DumpId::Compaction { sample_id: "a".to_owned(), ordinal: 1 },
        DumpId::Compaction { sample_id: "../x y".to_owned(), ordinal: 12_345 },
        step_id(""),
        step_id("a"),
    ];
    for id in &ids {
        writer.dump(dump(id.clone())).unwrap();
    }
    // A file that is being written is no dump yet.
    std::fs::write(dir.path().join("tensors/a/.writing-1"), b"x").unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    let mut sorted = ids.to_vec();
    sorted.sort();
    assert_eq!(run.dumps().unwrap(), sorted);
    assert!(run.dump(&step_id("b")).unwrap().is_none());
    let file = run.dump(&ids[1]).unwrap().unwrap();
    assert!(file.path().starts_with(dir.path().join("tensors")));
    assert_eq!(file.metadata(), &dump(ids[1].clone()).metadata);
    assert_eq!(file.names().collect::<Vec<_>>(), ["b", "e", "h", "k", "keep", "w"]);
    for tensor in dump(ids[1].clone()).tensors {
        let view = file.get(&tensor.name).unwrap();
        assert_eq!(
            (view.dtype, &view.shape, view.bytes),
            (tensor.dtype, &tensor.shape, &tensor.data[..])
        );
    }
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(
        bits(file.get("k").unwrap().to_f32().unwrap()),
        bits(vec![1.5, -0.0, f32::MIN_POSITIVE, 3e38])
    );
    // 0x3C00 is 1, 0x8001 the smallest negative subnormal, -2^-24.
    assert_eq!(file.get("h").unwrap().to_f32().unwrap(), [1.0, -(2.0_f32.powi(-24))]);
    assert_eq!(file.get("h").unwrap().to_f64().unwrap(), [1.0, -(2.0_f64.powi(-24))]);
    assert_eq!(file.get("keep").unwrap().to_i32().unwrap(), [i32::MIN, 7]);
    assert_eq!(file.get("keep").unwrap().to_f64().unwrap(), [-2_147_483_648.0, 7.0]);
    assert_eq!(file.get("b").unwrap().to_i32().unwrap(), [1, 2, 255]);
    assert_eq!(file.get("w").unwrap().to_f64().unwrap(), [0.1]);
    assert!(file.get("e").unwrap().is_empty());
}

#[test]
fn a_lossy_reading_a_missing_tensor_and_a_wrong_shape_name_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = write_dump(dir.path(), &dump(step_id("a"))).unwrap();
    let file = DumpFile::open(&path).unwrap();
    let view = |name| file.get(name).unwrap();
    for error in [
        view("w").to_f32().unwrap_err(),
        view("keep").to_f32().unwrap_err(),
        view("k").to_i32().unwrap_err(),
        view("e").to_f64().unwrap_err(),
        view("k").expect(DType::F32, &[4]).unwrap_err(),
        view("k").expect(DType::F16, &[2, 2]).unwrap_err(),
        file.get("pre.k.layer00").unwrap_err(),
    ] {
        assert!(matches!(&error, TraceError::Tensor { path: p, .. } if *p == path), "{error:?}");
    }
    view("k").expect(DType::F32, &[2, 2]).unwrap();
}

#[test]
fn i64_is_read_as_i32_only_where_it_fits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let wide = |values: &[i64]| Tensor {
        name: "p".to_owned(),
        dtype: DType::I64,
        shape: vec![values.len()],
        data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    write_safetensors(&path, &BTreeMap::new(), &[wide(&[-1, 7])]).unwrap();
    assert_eq!(DumpFile::open(&path).unwrap().get("p").unwrap().to_i32().unwrap(), [-1, 7]);
    write_safetensors(&path, &BTreeMap::new(), &[wide(&[1 << 31])]).unwrap();
    assert!(DumpFile::open(&path).unwrap().get("p").unwrap().to_i32().is_err());
}

#[test]
fn the_writer_refuses_what_it_could_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let short = Tensor { data: vec![0; 7], ..Tensor::from_f32("a", vec![2], &[0.0; 2]) };
    let huge = Tensor { shape: vec![usize::MAX, 2], ..Tensor::from_f32("a", vec![0], &[]) };
    let twice = Tensor::from_f32("a", vec![1], &[0.0]);
    let reserved = Tensor::from_f32("__metadata__", vec![1], &[0.0]);
    for tensors in [vec![short], vec![huge], vec![twice.clone(), twice], vec![reserved]] {
        let error = write_safetensors(&path, &BTreeMap::new(), &tensors).unwrap_err();
        assert!(matches!(error, TraceError::Tensor { .. }), "{error:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn files_that_no_dump_is_called_are_named() {
    for (name, folder) in [
        ("note.txt", "tensors/a"),
        ("step_12.safetensors", "tensors/a"),
        ("step_0000012.safetensors", "tensors/a b"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 1, true);
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        std::fs::write(dir.path().join(folder).join(name), b"x").unwrap();
        let error = RunReader::open(dir.path()).unwrap().dumps().unwrap_err().to_string();
        assert!(error.contains("move it out of tensors/"), "{error}");
    }
}

fn forged(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; data]);
    bytes
}

fn refusal(bytes: &[u8]) -> TraceError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    std::fs::write(&path, bytes).unwrap();
    DumpFile::open(&path).unwrap_err()
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}}"#;

#[test]
fn a_cut_file_names_the_tensor_that_is_cut() {
    assert!(DumpFile::open(Path::new("/nonexistent")).is_err());
    for (data, name) in [(25, "b"), (16, "b"), (15, "a"), (0, "a")] {
        match refusal(&forged(TWO, data)) {
            TraceError::Tensor { tensor, what, .. } => {
                assert_eq!(tensor, name, "{data} bytes");
                assert!(what.contains(&format!("only {data} are present")), "{what}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn headers_that_lie_are_refused_with_a_reason() {
    let pair = |a: &str, b: &str| format!(r#"{{{a},{b}}}"#);
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let mut beyond = 132_095_296_u64.to_le_bytes().to_vec();
    beyond.extend(b"{}");
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "shorter than the 8 bytes"),
        (vec![1; 7], "shorter than the 8 bytes"),
        (beyond, "132095296"),
        (u64::MAX.to_le_bytes().to_vec(), "claims a header"),
        (forged(TWO, 37), "5 bytes follow the last tensor"),
        (forged(r#"{"a":{},"m":1"#, 0), "not valid JSON"),
        (forged(&format!("{TWO} x"), 32), "not valid JSON"),
        (forged(&pair(&entry("a", "[4]", 0, 16), &entry("b", "[4]", 0, 16)), 16), "overlap"),
        (forged(&pair(&entry("a", "[4]", 0, 16), &entry("b", "[2]", 24, 32)), 32), "gap"),
        (forged(&pair(&entry("a", "[4]", 0, 16), &entry("a", "[4]", 16, 32)), 32), "occurs twice"),
        (forged(&format!("{{{}}}", entry("a", "[5]", 0, 16)), 16), "disagree"),
        (
            forged(&format!("{{{}}}", entry("a", "[4294967296,4294967296,4]", 0, 16)), 16),
            "not a safetensors file",
        ),
        (forged(&format!("{{{}}}", entry("a", "[4]", 16, 0)), 16), ""),
        (forged(&format!("{{{}}}", entry("a", "[-4]", 0, 16)), 16), "not valid JSON"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 64\n".to_vec(),
            "git lfs pull",
        ),
    ];
    for (bytes, word) in cases {
        let error = refusal(&bytes);
        assert!(
            matches!(error, TraceError::Malformed { .. } | TraceError::Tensor { .. }),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains(word) && !text.contains('\n'), "`{text}` does not say `{word}`");
    }
}

#[test]
fn a_dtype_that_is_not_read_is_refused_when_it_is_asked_for() {
    let header = r#"{"flag":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}}"#;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    std::fs::write(&path, forged(header, 4)).unwrap();
    let file = DumpFile::open(&path).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["flag"]);
    let error = file.get("flag").unwrap_err().to_string();
    assert!(error.contains("BOOL"), "{error}");
}

#[test]
fn headers_at_odd_lengths_give_unaligned_data_that_is_read_all_the_same() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    for pad in 0..8 {
        let mut bytes = forged(&format!("{header}{}", " ".repeat(pad)), 0);
        bytes.extend(1.5_f32.to_le_bytes());
        bytes.extend((-3.0_f32).to_le_bytes());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(DumpFile::open(&path).unwrap().get("a").unwrap().to_f32().unwrap(), [1.5, -3.0]);
    }
}
