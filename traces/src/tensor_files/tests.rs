//! Tests of the readers on files that NumPy, torch, safetensors and Polygraphy wrote (`tests/data/tensors/make.py`), and on damaged and
//! hostile ones.

use std::path::{Path, PathBuf};

use half::{bf16, f16};

use super::*;
use crate::TraceError;

mod damage;

fn data(name: &str) -> PathBuf {
    lockstep_testkit::data().join("tensors").join(name)
}

fn open(name: &str) -> TensorSet {
    read(&data(name), &ReadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Values in row-major order, by strides and byte order.
fn values(tensor: &PlainTensor) -> Vec<f64> {
    tensor.verify().unwrap();
    let width = tensor.element.size();
    let count = usize::try_from(tensor.elements()).unwrap();
    (0..count)
        .map(|flat| {
            let (mut rest, mut at) = (flat, tensor.offset);
            for (size, stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
                at += rest % size * stride;
                rest /= size;
            }
            let mut bytes = tensor.bytes()[at * width..(at + 1) * width].to_vec();
            if tensor.big_endian {
                bytes.reverse();
            }
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(&bytes);
            let (two, four) = ([wide[0], wide[1]], [wide[0], wide[1], wide[2], wide[3]]);
            match tensor.element {
                Element::F64 => f64::from_le_bytes(wide),
                Element::F32 => f32::from_le_bytes(four).into(),
                Element::F16 => f16::from_le_bytes(two).to_f64(),
                Element::Bf16 => bf16::from_le_bytes(two).to_f64(),
                Element::I64 => i64::from_le_bytes(wide) as f64,
                Element::I32 => i32::from_le_bytes(four).into(),
                Element::I16 => i16::from_le_bytes(two).into(),
                Element::I8 => i8::from_le_bytes([wide[0]]).into(),
                Element::U8 | Element::Bool => wide[0].into(),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

/// What every file holds: see `make.py`.
fn expected(element: Element) -> Vec<f64> {
    let number = |i: u32| f64::from(i);
    (0..12)
        .map(|i| match element {
            Element::Bool => number(i % 2),
            Element::U8 => number(i),
            _ if element.is_float() => (number(i) - 5.0) / 4.0,
            _ => number(i) - 5.0,
        })
        .collect()
}

#[track_caller]
fn holds(tensor: &PlainTensor, element: Element) {
    assert_eq!(
        (tensor.element, tensor.shape.as_slice()),
        (element, [3, 4].as_slice()),
        "{}",
        tensor.name
    );
    assert_eq!(values(tensor), expected(element), "{}", tensor.name);
}

#[test]
fn arrays_of_numpy_are_read_in_every_order_type_and_version() {
    for (name, element) in [
        ("f32", Element::F32),
        ("f32_fortran", Element::F32),
        ("f32_big", Element::F32),
        ("f32_v2", Element::F32),
        ("f32_v3", Element::F32),
        ("f64", Element::F64),
        ("f16", Element::F16),
        ("i16_big", Element::I16),
        ("i64", Element::I64),
        ("bool", Element::Bool),
    ] {
        let set = open(&format!("npy/{name}.npy"));
        let tensor = &set.tensors[0];
        assert_eq!((set.tensors.len(), tensor.name.as_str()), (1, "tensor"));
        holds(tensor, element);
    }
    assert!(!open("npy/f32_fortran.npy").tensors[0].is_packed());
    // What NumPy has no name for is declared.
    for name in ["bf16_as_void", "bf16_as_u16"] {
        let tensor = open(&format!("npy/{name}.npy")).tensors.remove(0);
        assert_eq!(tensor.element, Element::U16);
        let wrong = tensor.clone().declared(Element::F32).unwrap_err().to_string();
        assert!(wrong.contains("of 2 bytes and cannot be f32"), "{wrong}");
        holds(&tensor.declared(Element::Bf16).unwrap(), Element::Bf16);
    }
    // OCP FP8 with 4 exponent bits: -1.25 is 0xba, 1.5 is 0x3c.
    let eight = open("npy/f8_as_u8.npy").tensors.remove(0);
    assert_eq!((eight.bytes()[0], eight.bytes()[11]), (0xba, 0x3c));
    for (name, part) in [("objects", "never executed"), ("records", "several fields")] {
        let error = read(&data(&format!("npy/{name}.npy")), &ReadOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(part) && error.contains("byte "), "{error}");
    }
}

#[test]
fn archives_keep_their_order_and_safetensors_are_sorted_by_number() {
    for name in ["stored.npz", "deflated.npz"] {
        let set = open(name);
        let names: Vec<&str> = set.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!((names, set.order), (vec!["second", "first"], "file"));
        holds(&set.tensors[0], Element::F32);
        holds(&set.tensors[1], Element::I64);
    }
    let set = open("plain.safetensors");
    let names: Vec<&str> = set.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!((names, set.order), (vec!["ids", "layer.2.w", "layer.10.w"], "names"));
    holds(&set.tensors[1], Element::F16);
}

#[test]
fn shards_are_found_by_their_index_and_must_agree_with_it() {
    for name in ["sharded", "sharded/model.safetensors.index.json"] {
        let set = open(name);
        assert_eq!((set.format, set.tensors.len()), ("safetensors shards", 2));
        holds(&set.tensors[0], Element::F32);
        holds(&set.tensors[1], Element::I64);
    }
    let home = tempfile::tempdir().unwrap();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        std::fs::copy(data("sharded").join(shard), home.path().join(shard)).unwrap();
    }
    let index = home.path().join("model.safetensors.index.json");
    for (map, part) in [
        (r#"{"a": "model-00002-of-00002.safetensors"}"#, "is not in model-00002"),
        (
            r#"{"b": "model-00002-of-00002.safetensors", "a": "../x.safetensors"}"#,
            "outside the folder",
        ),
        (r#"{"a": "model-00003-of-00002.safetensors"}"#, "No such file"),
    ] {
        std::fs::write(&index, format!("{{\"weight_map\": {map}}}")).unwrap();
        let error = read(home.path(), &ReadOptions::default()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let extra = r#"{"weight_map": {"a": "joined.safetensors"}}"#;
    std::fs::copy(data("plain.safetensors"), home.path().join("joined.safetensors")).unwrap();
    std::fs::write(&index, extra.replace("\"a\"", "\"ids\"")).unwrap();
    let error = read(home.path(), &ReadOptions::default()).unwrap_err().to_string();
    assert!(
        error.contains("`layer.10.w`") && error.contains("not where the index says"),
        "{error}"
    );
}

#[test]
fn every_storage_type_of_torch_is_read_from_both_forms() {
    for name in ["pt/state.pt", "pt/state_bare.pt", "pt/state_protocol4.pt"] {
        let set = open(name);
        let get = |wanted: &str| set.tensors.iter().find(|tensor| tensor.name == wanted).unwrap();
        for (key, element) in [
            ("f64", Element::F64),
            ("f32", Element::F32),
            ("f16", Element::F16),
            ("bf16", Element::Bf16),
            ("i64", Element::I64),
            ("i32", Element::I32),
            ("i16", Element::I16),
            ("i8", Element::I8),
            ("u8", Element::U8),
            ("bool", Element::Bool),
            ("parameter", Element::F32),
        ] {
            holds(get(key), element);
        }
        let turned = get("transposed");
        assert_eq!(
            (turned.shape.as_slice(), turned.strides.as_slice()),
            ([4, 3].as_slice(), [1, 4].as_slice())
        );
        assert_eq!(values(turned)[..3], [-1.25, -0.25, 0.75]);
        assert_eq!(values(get("tail")), expected(Element::F32)[4..]);
        assert_eq!(values(get("expanded")), [2.5; 12]);
        assert_eq!(set.tensors.len(), 14);
    }
    holds(&open("pt/lone.pt").tensors[0], Element::F32);
    let nested = open("pt/nested.pt");
    let names: Vec<&str> = nested.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["past.0.0", "past.0.1", "past.1.0"]);
    assert!(
        nested.remarks[0].contains("torch device") && nested.remarks[0].contains("not executed"),
        "{:?}",
        nested.remarks
    );
}

#[test]
fn dump_folders_are_named_and_ordered_as_their_tools_do() {
    let names =
        |set: &TensorSet| set.tensors.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    let sglang = open("sglang");
    assert_eq!((sglang.format, sglang.order), ("SGLang dump", "dump_index"));
    assert_eq!(
        names(&sglang),
        [
            "step=0___rank=0___name=embed",
            "step=0___rank=0___name=attn___layer_id=0",
            "step=0___rank=0___name=attn___layer_id=10",
            "step=0___rank=0___name=attn___layer_id=2",
            "step=0___rank=0___name=logits",
        ]
    );
    holds(&sglang.tensors[2], Element::Bf16);
    let msprobe = open("msprobe");
    assert_eq!((msprobe.format, msprobe.order), ("msProbe dump", "dump.json"));
    assert_eq!(
        names(&msprobe)[..4],
        [
            "step0/rank0/Module.norm.RMSNorm.forward.0.input.0",
            "step0/rank0/Module.norm.RMSNorm.forward.0.output.0",
            "step0/rank0/Functional.linear.0.forward.input.0",
            "step0/rank0/Functional.linear.0.forward.output.0",
        ]
    );
    let trtllm = open("trtllm");
    assert_eq!(trtllm.format, "TensorRT-LLM debug tensors");
    assert_eq!(names(&trtllm)[2], "PP_0/TP_0/iteration_2/layers.0.attention");
    assert_eq!(names(&trtllm)[5], "PP_0/TP_0/iteration_10/logits");
    let polygraphy = open("polygraphy.json");
    assert_eq!(names(&polygraphy), ["iteration_0/logits", "iteration_0/hidden"]);
    holds(&polygraphy.tensors[0], Element::F32);
    holds(&polygraphy.tensors[1], Element::F16);
    for path in [
        "sglang",
        "msprobe",
        "trtllm",
        "polygraphy.json",
        "pt/state.pt",
        "stored.npz",
        "npy/f32.npy",
    ] {
        assert!(recognised(&data(path)), "{path}");
    }
    assert!(!recognised(&data("make.py")) && !recognised(Path::new("/nowhere")));
}

#[test]
fn a_safetensors_header_whose_length_begins_as_a_pickle_is_one() {
    let home = tempfile::tempdir().unwrap();
    for length in [0x0280_usize, 0x0480] {
        let path = home.path().join(format!("{length}.safetensors"));
        let mut header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.to_vec();
        header.resize(length, b' ');
        let bytes = [&(length as u64).to_le_bytes()[..], &header, &1.5_f32.to_le_bytes()].concat();
        std::fs::write(&path, bytes).unwrap();
        let set = read(&path, &ReadOptions::default()).unwrap();
        assert_eq!((set.format, set.tensors[0].name.as_str()), ("safetensors", "a"));
    }
}

#[test]
fn raw_bytes_are_read_as_declared_and_a_wrong_length_is_said() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("k.bin");
    let bytes: Vec<u8> =
        expected(Element::F32).iter().flat_map(|v| (*v as f32).to_be_bytes()).collect();
    std::fs::write(&path, [b"head".as_slice(), &bytes].concat()).unwrap();
    let with = |spec: &str| ReadOptions { raw: vec![spec.parse().unwrap()] };
    holds(&read(&path, &with("*.bin=f32:3x4:big:+4")).unwrap().tensors[0], Element::F32);
    let undeclared = read(home.path(), &ReadOptions::default()).unwrap();
    assert_eq!((undeclared.tensors.len(), undeclared.undeclared), (0, vec!["k.bin".to_owned()]));
    let set = read(&path, &with("f32:12")).unwrap();
    let misfit = &set.misfits[0];
    assert_eq!((set.tensors.len(), misfit.bytes, misfit.fits.len()), (0, 52, 0));
    let set = read(&path, &with("f64:6:+4")).unwrap();
    assert_eq!(set.tensors[0].shape, [6]);
    let halves = read(&path, &with("f64:12:+4")).unwrap();
    assert_eq!(halves.misfits[0].fits, [Element::F32, Element::I32, Element::U32]);
    assert_eq!(halves.misfits[0].read_as(Element::U32).unwrap().elements(), 12);
    // Found by fuzzing: no elements fit into a file that ends before they begin.
    let beyond = read(&path, &with("f32:0:+64")).unwrap();
    assert_eq!((beyond.tensors.len(), beyond.misfits[0].fits.len()), (0, 0));
    for bad in ["f33:3", "f32", "f32:3xx", "f32:3:middle", "f32:9999999999x9999999999"] {
        assert!(bad.parse::<RawSpec>().is_err(), "{bad}");
    }
    let spec: RawSpec = "a*c/*.bin=u8:1".parse().unwrap();
    assert!(spec.covers("abc/x.bin") && !spec.covers("abd/x.bin") && !spec.covers("abc/x.bin2"));
}

#[test]
fn lists_of_numbers_in_json_are_tensors_by_their_keys() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("x.json");
    let text = r#"{"meta": {"n": 3, "name": "x"}, "logits": [[1, 2.5], [3, -4]], "ragged": [[1], [2, 3]], "mixed": [1, "a"], "none": []}"#;
    std::fs::write(&path, text).unwrap();
    let set = read(&path, &ReadOptions::default()).unwrap();
    let found: Vec<(&str, &[usize])> =
        set.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
    assert_eq!(found, [("logits", [2, 2].as_slice()), ("ragged.0", &[1]), ("ragged.1", &[2])]);
    assert_eq!(values(&set.tensors[0]), [1.0, 2.5, 3.0, -4.0]);
    // n, name, both members of `mixed`, and the empty list.
    assert_eq!(set.remarks.len(), 1);
    assert!(
        set.remarks[0].starts_with("5 values") && set.remarks[0].contains("`meta.n`"),
        "{:?}",
        set.remarks
    );
    std::fs::write(&path, "{\"a\": [1,\n 2,, 3]}").unwrap();
    let error = read(&path, &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, TraceError::Json { line: 2, .. }), "{error}");
}

#[test]
fn whole_numbers_in_json_are_exact_or_refused_and_keys_come_once() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("x.json");
    let opened = |text: &str| {
        std::fs::write(&path, text).unwrap();
        read(&path, &ReadOptions::default())
    };
    // 2^53 and a number that f64 holds stay f64; 2^53 + 1 does not.
    for (text, element, bytes) in [
        (
            "[9007199254740992, 18014398509481984]",
            Element::F64,
            9_007_199_254_740_992_f64.to_le_bytes(),
        ),
        ("[9007199254740993, -1]", Element::I64, 9_007_199_254_740_993_i64.to_le_bytes()),
        ("[18446744073709551615, 1]", Element::U64, [255; 8]),
    ] {
        let set = opened(text).unwrap();
        assert_eq!(
            (set.tensors[0].element, &set.tensors[0].bytes()[..8]),
            (element, &bytes[..]),
            "{text}"
        );
    }
    for (text, part) in [
        ("[9007199254740993, 0.5]", "save the two apart"),
        ("[18446744073709551615, -1]", "negative"),
        (
            "{\"a\": [1],\n \"b\": \"99999999999999999999\", \"c\": [18446744073709551616]}",
            "line 2: the whole number 18446744073709551616",
        ),
        ("{\"a\": [1],\n \"a\": [2]}", "`a` comes twice"),
    ] {
        let error = opened(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    assert!(opened("[1e30, 2]").is_ok());
}

#[test]
fn a_view_that_repeats_a_few_bytes_billions_of_times_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("x");
    std::fs::write(&path, [0; 8]).unwrap();
    let file = super::source::Mapped::open(&path).unwrap();
    let view = |size: usize| {
        let storage = super::tensor::range(&path, &file, 0..8).unwrap();
        PlainTensor::strided("x", &path, Element::F32, (vec![size, 2], vec![0, 1], 0), storage)
    };
    assert_eq!(view(1 << 30).unwrap().elements(), 1 << 31);
    let error = view(1_500_000_000).unwrap_err().to_string();
    assert!(error.contains("repeats 2 stored elements") && error.contains("2147483648"), "{error}");
}

#[test]
fn numbers_in_names_are_compared_as_numbers() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    for (a, b, order) in [
        ("layer2", "layer10", Less),
        ("layer.10.a", "layer.9.b", Greater),
        ("a", "a", Equal),
        ("a1b2", "a1b02", Greater),
        ("a", "a1", Less),
        ("99999999999999999999999", "100000000000000000000000", Less),
    ] {
        assert_eq!(natural(a, b), order, "{a} {b}");
    }
}
