//! `diff tensors`, `check compaction`, `check logits` and `inspect` of tensor files through the binary.

use crate::kit::{Ran, Scratch, lockstep, text};

fn data(name: &str) -> String {
    text(&lockstep_testkit::data().join("tensors").join(name))
}

fn case(name: &str) -> String {
    text(&lockstep_testkit::data().join("cases").join(name))
}

fn tensors(left: &str, right: &str, more: &[&str]) -> Ran {
    lockstep([["diff", "tensors", left, right].as_slice(), more].concat())
}

#[test]
fn files_of_other_writers_are_compared_as_values() {
    for (left, right, more, code, part) in [
        ("npy/f32.npy", "npy/f32_fortran.npy", [].as_slice(), 0, "identical: 1 pairs: 1 identical"),
        ("npy/f32.npy", "npy/f32_big.npy", &[], 0, "1 identical"),
        ("npy/f32.npy", "npy/f16.npy", &[], 0, "1 of equal values"),
        ("npy/f32.npy", "pt/lone.pt", &[], 0, "1 identical"),
        ("stored.npz", "deflated.npz", &[], 0, "2 identical"),
        ("pt/state.pt", "pt/state_bare.pt", &[], 0, "14 identical"),
        ("pt/state.pt", "pt/state_protocol4.pt", &["--format", "jsonl"], 0, "\"order\":\"file\""),
        ("sglang", "sglang", &["--layers", "2-10"], 0, "2 pairs: 2 identical"),
        ("msprobe", "msprobe", &[], 0, "6 identical"),
        ("trtllm", "trtllm", &["--only", "iteration_10"], 0, "2 pairs: 2 identical"),
        ("plain.safetensors", "sharded", &[], 4, "5 tensors without a partner"),
        ("npy/f32.npy", "npy/i64.npy", &[], 1, "DIVERGED"),
    ] {
        let ran = tensors(&data(left), &data(right), more).expect(code);
        assert!(ran.stdout.contains(part), "{left} {right}: {}", ran.stdout);
    }
}

#[test]
fn a_map_declares_types_and_layouts_and_wrong_maps_are_refused() {
    let home = Scratch::new();
    let map = home.path("map.yaml");
    std::fs::write(&map, "elements: [{names: tensor, side: right, element: bf16}]\n").unwrap();
    let (f32, bf16) = (data("npy/f32.npy"), data("npy/bf16_as_void.npy"));
    tensors(&f32, &bf16, &[]).expect(1);
    tensors(&f32, &bf16, &["--map", &map]).expect(0);
    std::fs::write(
        &map,
        "pairs: [{left: tensor, right: transposed, right_layout: [{permute: [1, 0]}]}]\n",
    )
    .unwrap();
    let ran = tensors(&f32, &data("pt/state.pt"), &["--map", &map, "--allow-skip", ".*"]).expect(0);
    assert!(ran.stdout.contains("13 skipped as allowed"), "{}", ran.stdout);
    std::fs::write(&map, "pears: []\n").unwrap();
    tensors(&f32, &bf16, &["--map", &map]).expect_refusal(3, &["map.yaml", "pears"]);
    tensors(&f32, &bf16, &["--allow-skip", "("]).expect_refusal(2, &["no regular expression"]);
    tensors(&f32, &data("npy/objects.npy"), &[])
        .expect_refusal(3, &["objects.npy", "byte", "never executed"]);
    tensors(&f32, &home.path("nothing.npy"), &[]).expect_refusal(3, &["nothing.npy"]);
    assert_eq!(tensors(&f32, &f32, &["--tolerance", "loose"]).code, 2);
    assert_eq!(tensors(&f32, &f32, &["--raw", "f99:1"]).code, 2);
}

#[test]
fn bf16_called_f32_is_refused_with_the_type_that_fits() {
    let (reference, raw) = (case("03/reference.json"), case("03/logits_raw.bin"));
    let ran = tensors(&reference, &raw, &["--raw", "f32:8", "--format", "json"]);
    assert_eq!(ran.code, 3, "{}", ran.stdout);
    let report = ran.json();
    let why = report["unfit"][0]["why"].as_str().unwrap();
    for part in [
        "needs 32 bytes and the file has 16",
        "bf16 (8 of 8 values equal)",
        "nothing of it was compared",
    ] {
        assert!(why.contains(part), "{why}");
    }
    let fits = report["unfit"][0]["fits"].as_array().unwrap();
    let f16 = fits.iter().find(|fit| fit[0] == "f16").unwrap();
    assert!(f16[1].as_u64().unwrap() < 8, "{f16}");
    assert!(report["pairs"].as_array().unwrap().is_empty());
    let ran = tensors(&reference, &raw, &["--raw", "bf16:8"]).expect(0);
    assert!(ran.stdout.contains("1 of equal values"), "{}", ran.stdout);
    tensors(&reference, &raw, &[]).expect(4);
}

#[test]
fn a_wrong_type_and_turned_bytes_are_told_apart() {
    let (plain, tagged, swapped) = (
        case("52/bf16.safetensors"),
        case("52/tagged_f16.safetensors"),
        case("52/swapped.safetensors"),
    );
    let ran = tensors(&plain, &tagged, &[]).expect(1);
    assert!(
        ran.stdout.contains("element_type: the bytes are the same and only the type differs"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("bf16 against f16"), "{}", ran.stdout);
    let ran = tensors(&plain, &swapped, &[]).expect(1);
    assert!(ran.stdout.contains("byte_order: the target's bytes are stored most significant first; its writer turned them round"), "{}", ran.stdout);
}

#[test]
fn gathered_and_turned_keys_are_judged_with_the_next_position() {
    let before = case("21/before.safetensors");
    for (file, next, code, parts) in [
        (
            "a",
            "6",
            0,
            ["V: exact gather\nK: exact gather", "the next position is 6: consistent"].as_slice(),
        ),
        (
            "b",
            "4",
            0,
            &[
                "K: not a gather (max |delta| 3.394163, rows [2, 3])",
                "next position is 4: consistent",
            ],
        ),
        ("c", "4", 1, &["K: exact gather", "the row of position 5 would lie in its future"]),
        ("b", "6", 1, &["expected 4"]),
    ] {
        let after = case(&format!("21/after_{file}.safetensors"));
        let args = [
            "check",
            "compaction",
            &before,
            &after,
            "--keep",
            "0,1,4,5",
            "--rope-base",
            "100",
            "--next-position",
            next,
        ];
        let ran = lockstep(args).expect(code);
        for part in parts {
            assert!(ran.stdout.contains(part), "{file}: {}", ran.stdout);
        }
    }
    let after = case("21/after_b.safetensors");
    // Without the rotation turned keys are a difference; without the next position nothing is shown; another keep-set is no gather.
    lockstep(["check", "compaction", &before, &after, "--keep", "0,1,4,5", "--next-position", "4"])
        .expect(1);
    let gathered = case("21/after_a.safetensors");
    lockstep(["check", "compaction", &before, &gathered, "--keep", "0,1,4,5"]).expect(4);
    lockstep([
        "check",
        "compaction",
        &before,
        &gathered,
        "--keep",
        "0,1,3,5",
        "--next-position",
        "6",
    ])
    .expect(1);
    lockstep(["check", "compaction", &before, &gathered, "--keep", "0,1,4,9"])
        .expect_refusal(3, &["row 9 cannot be kept"]);
}

#[test]
fn context_logits_without_their_first_block_score_the_right_tokens() {
    let (file, request) = (case("08/context_logits.npy"), case("08/request.json"));
    let report = lockstep(["check", "logits", &file, "--request", &request, "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(
        (report["missing"].as_u64(), report["first_position"].as_u64()),
        (Some(16), Some(16))
    );
    let rows: Vec<u64> = report["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|token| token["row"].as_u64())
        .collect();
    assert_eq!(rows, [1, 2, 3]);
    let near = |key: &str, expected: f64| {
        assert!((report[key].as_f64().unwrap() - expected).abs() < 1e-5, "{key}: {report}");
    };
    near("log_likelihood", -13.937_474);
    near("from_the_front", -15.746_972);
    assert!(report["summary"].as_str().unwrap().contains("1 blocks of 16, prefix reuse"));
    let home = Scratch::new();
    let ids = home.path("ids.txt");
    std::fs::write(&ids, "5 2 1 7 1 2 5 6 5 6 0 3 4 3 3 2 0 0 4 3 7").unwrap();
    let ran = lockstep(["check", "logits", &file, "--request", &ids, "--last", "3"]).expect(4);
    assert!(ran.stdout.contains("nothing says which"), "{}", ran.stdout);
    lockstep(["check", "logits", &file, "--request", &ids, "--last", "8", "--block", "16"])
        .expect_refusal(3, &["among the missing"]);
}

#[test]
fn inspect_lists_what_a_tensor_file_holds() {
    let ran = lockstep(["inspect", &data("pt/state.pt"), "--format", "json"]).expect(0).json();
    assert_eq!(
        (ran["kind"].as_str(), ran["tensors"].as_array().map(Vec::len)),
        (Some("torch"), Some(14))
    );
    let ran = lockstep(["inspect", &data("sglang")]).expect(0);
    assert!(
        ran.stdout.contains("SGLang dump, 5 tensors")
            && ran.stdout.contains("name=attn___layer_id=10: bf16 [3, 4]"),
        "{}",
        ran.stdout
    );
    let ran = lockstep(["inspect", &data("npy/f32_fortran.npy")]).expect(0);
    assert!(ran.stdout.contains("f32 [3, 4], strides [1, 3]"), "{}", ran.stdout);
}
