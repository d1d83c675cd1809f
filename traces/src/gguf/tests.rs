//! What a sound file holds, and each contradiction by its own error.

use std::collections::BTreeMap;

use lockstep_testkit::gguf::{Gguf, Value};

use super::*;

/// Two tensors and a few values.
fn sound() -> Gguf {
    let mut file = Gguf::default();
    file.value("general.architecture", Value::Text("llama".into()))
        .value("llama.block_count", Value::U32(2))
        .value("llama.eps", Value::F32(1e-5))
        .value("flag", Value::Bool(true))
        .value("names", Value::Texts(vec!["a".into(), "é".into()]))
        .value("kinds", Value::I32s(vec![3, -1]))
        .f32s("one", &[3, 2], &[1.0; 6])
        .tensor("two", &[32], 3, vec![7; 20]);
    file
}

fn fault(file: &Gguf) -> GgufError {
    GgufHeader::parse(&file.bytes()).unwrap_err()
}

/// The tensor that an error names.
fn blamed(file: &Gguf) -> (String, String) {
    match fault(file) {
        GgufError::Tensor { tensor, what } => (tensor, what),
        other => panic!("{other}"),
    }
}

#[test]
fn a_sound_file_is_read_in_each_version() {
    for version in [1, 2, 3] {
        let file = Gguf { version, ..sound() };
        let bytes = file.bytes();
        let header = GgufHeader::parse(&bytes).unwrap();
        assert_eq!((header.version, header.alignment), (version, 32));
        assert_eq!(header.get("llama.block_count").unwrap().as_u64(), Some(2));
        assert_eq!(header.get("general.architecture").unwrap().as_text(), Some("llama"));
        assert_eq!(header.get("flag").unwrap().as_bool(), Some(true));
        assert!((header.get("llama.eps").unwrap().as_f64().unwrap() - 1e-5).abs() < 1e-11);
        let kinds = header.get("kinds").unwrap().as_array().unwrap();
        assert_eq!(kinds, [GgufValue::Signed(3), GgufValue::Signed(-1)]);
        let one = &header.tensors["one"];
        assert_eq!((one.shape(), one.element.name(), one.range.len()), (vec![2, 3], "F32", 24));
        let two = &header.tensors["two"];
        assert_eq!((two.element.name(), &bytes[two.range.clone()]), ("Q4_1", [7; 20].as_slice()));
        assert_eq!(two.range.start - header.data, 32);
    }
}

#[test]
fn the_alignment_is_taken_from_the_file() {
    let mut file = sound();
    file.alignment = 64;
    file.value("general.alignment", Value::U32(64));
    let header = GgufHeader::parse(&file.bytes()).unwrap();
    assert_eq!(header.tensors["two"].range.start - header.data, 64);
    for bad in [0, 7, 48] {
        let mut file = sound();
        file.value("general.alignment", Value::U32(bad));
        assert!(matches!(fault(&file), GgufError::Key { key, .. } if key == "general.alignment"));
    }
    // The second offset is one for 32.
    let mut file = Gguf { alignment: 64, ..sound() };
    file.value("general.alignment", Value::U32(64));
    file.tensors[1].offset = Some(32);
    assert!(blamed(&file).1.contains("no multiple of the alignment 64"));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = sound().bytes();
    for length in 0..bytes.len() {
        let error = GgufHeader::parse(&bytes[..length]).unwrap_err();
        let named = match &error {
            GgufError::Magic(_) => length < 4,
            GgufError::Cut { at, .. } | GgufError::Count { at, .. } => *at <= length,
            GgufError::Tensor { tensor, what } => {
                (tensor == "one" || tensor == "two") && what.contains("download it again")
            }
            _ => false,
        };
        assert!(named, "{length}: {error}");
    }
}

#[test]
fn no_damaged_byte_makes_the_reader_panic() {
    let bytes = sound().bytes();
    let header = GgufHeader::parse(&bytes).unwrap().data;
    for at in 0..header {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            // Whatever it says, it says it: the ranges of what is still accepted lie inside the file.
            if let Ok(header) = GgufHeader::parse(&damaged) {
                assert!(header.tensors.values().all(|tensor| tensor.range.end <= damaged.len()));
            }
        }
    }
}

#[test]
fn lying_counts_are_refused_before_anything_is_allocated() {
    for count in [3, u64::MAX, 1 << 40] {
        let error = fault(&Gguf { count: Some(count), ..sound() });
        let text = error.to_string();
        assert!(
            text.contains("number 2 of 3") || matches!(error, GgufError::Count { .. }),
            "{text}"
        );
    }
    // Too low: the second description is taken for data, and stays over.
    let error = fault(&Gguf { count: Some(1), ..sound() });
    assert!(matches!(&error, GgufError::Trailing { last, .. } if last == "one"), "{error}");
    // An array of 2^62 texts, a text of 2^63 bytes.
    for (kind, rest) in [
        (9, [8_u32.to_le_bytes().to_vec(), (1_u64 << 62).to_le_bytes().to_vec()].concat()),
        (8, (1_u64 << 63).to_le_bytes().to_vec()),
    ] {
        let mut file = sound();
        file.value("huge", Value::Raw(kind, rest));
        let error = fault(&file);
        assert!(
            matches!(&error, GgufError::Count { what, .. } if what.contains("huge")),
            "{error}"
        );
    }
}

#[test]
fn arrays_are_bounded_in_depth_and_number() {
    let nested = |depth: usize| {
        let mut bytes = Vec::new();
        for _ in 0..depth {
            bytes.extend(9_u32.to_le_bytes());
            bytes.extend(1_u64.to_le_bytes());
        }
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        let mut file = sound();
        file.value("deep", Value::Raw(9, bytes));
        GgufHeader::parse(&file.bytes())
    };
    assert!(nested(3).is_ok());
    assert!(matches!(nested(4).unwrap_err(), GgufError::Key { key, .. } if key == "deep"));
    let mut file = sound();
    let count = (1_u64 << 22) + 1;
    let body = [0_u32.to_le_bytes().to_vec(), count.to_le_bytes().to_vec()].concat();
    file.value("many", Value::Raw(9, body));
    file.value("filler", Value::Texts(vec!["x".repeat(1 << 22)]));
    assert!(matches!(fault(&file), GgufError::Count { what, .. } if what.contains("many")));
}

#[test]
fn keys_and_types_that_cannot_be_are_named() {
    let with = |value: Value| {
        let mut file = sound();
        file.value("bad", value);
        fault(&file)
    };
    for error in [
        with(Value::Raw(13, vec![0; 8])),
        with(Value::Raw(7, vec![2])),
        with(Value::Raw(9, [[13, 0, 0, 0].as_slice(), &[0; 8]].concat())),
    ] {
        assert!(matches!(&error, GgufError::Key { key, .. } if key == "bad"), "{error}");
    }
    let mut file = sound();
    file.value("flag", Value::Bool(false));
    assert!(matches!(fault(&file), GgufError::Key { key, .. } if key == "flag"));
    let text = [2_u64.to_le_bytes().to_vec(), vec![0xC3, 0x28]].concat();
    assert!(matches!(with(Value::Raw(8, text)), GgufError::Text { .. }));
}

#[test]
fn tensors_that_contradict_the_file_are_named() {
    let edit = |change: &dyn Fn(&mut Gguf)| {
        let mut file = sound();
        change(&mut file);
        blamed(&file)
    };
    for (change, tensor, word) in [
        (
            &(|f: &mut Gguf| f.tensors[1].element = 99) as &dyn Fn(&mut Gguf),
            "two",
            "element type 99",
        ),
        (&|f: &mut Gguf| f.tensors[1].element = 5, "two", "element type 5"),
        (&|f: &mut Gguf| f.tensors[1].ne = vec![33], "two", "no whole blocks"),
        (&|f: &mut Gguf| f.tensors[1].ne = vec![0], "two", "no tensor can have"),
        (&|f: &mut Gguf| f.tensors[1].ne = vec![u64::MAX, 2], "two", "no tensor can have"),
        (&|f: &mut Gguf| f.tensors[1].ne = vec![1 << 60], "two", "takes"),
        (&|f: &mut Gguf| f.tensors[1].ne = vec![32; 5], "two", "5 dimensions"),
        (&|f: &mut Gguf| f.tensors[1].offset = Some(0), "two", "shares data bytes"),
        (&|f: &mut Gguf| f.tensors[1].offset = Some(8), "two", "alignment"),
        (&|f: &mut Gguf| f.tensors[1].offset = Some(64), "two", "takes"),
        (&|f: &mut Gguf| f.tensors[1].offset = Some(u64::MAX - 31), "two", "takes"),
        (
            &|f: &mut Gguf| f.tensors[0].ne = vec![3, 3],
            "two",
            "shares data bytes 32..36 with `one`",
        ),
        (&|f: &mut Gguf| f.tensors[1].name = "one".into(), "one", "twice"),
    ] {
        let (found, what) = edit(change);
        assert!(found == tensor && what.contains(word), "{found}: {what}");
    }
    let mut file = sound();
    file.tensors[1].offset = Some(64);
    file.tensors[1].data = vec![7; 96];
    assert!(blamed(&file).1.contains("32..64 before it belong to no tensor"));
}

#[test]
fn what_is_no_gguf_of_ours_says_so() {
    assert!(matches!(GgufHeader::parse(b"PK\x03\x04rest"), Err(GgufError::Magic(_))));
    assert!(matches!(GgufHeader::parse(b""), Err(GgufError::Magic(_))));
    assert_eq!(fault(&Gguf { version: 4, ..sound() }), GgufError::Version(4));
    assert_eq!(fault(&Gguf { version: 3 << 24, ..sound() }), GgufError::BigEndian);
}

/// Elements and bytes of a block, from the type table of the `gguf` Python package 0.19.0.
#[test]
fn block_sizes_are_those_of_the_format() {
    let table: BTreeMap<u32, (usize, usize)> = [
        (0, (1, 4)),
        (1, (1, 2)),
        (2, (32, 18)),
        (3, (32, 20)),
        (8, (32, 34)),
        (12, (256, 144)),
        (13, (256, 176)),
        (14, (256, 210)),
        (30, (1, 2)),
    ]
    .into();
    for (id, wanted) in table {
        let found = GgmlType::from_id(id).unwrap();
        assert_eq!((found.block(), found.block_bytes(), found.id()), (wanted.0, wanted.1, id));
    }
}
