//! Bad input: exit 3 and one line that names file and place; what can be read is read, and said.

use std::fs;
use std::path::Path;

use crate::kit::{Scratch, ledger, lockstep, text};

fn case(number: &str, name: &str) -> String {
    text(&lockstep_testkit::data().join("cases").join(number).join(name))
}

#[test]
fn broken_safetensors_headers_are_refused_by_what_is_wrong() {
    lockstep(["inspect", &case("54", "ok.safetensors")]).expect(0);
    for (name, part) in [
        ("truncated", "`b`"),
        ("trailing", "5 bytes"),
        ("overlap", "share data bytes"),
        ("hole", "16"),
        ("shape_mismatch", "20"),
        ("header_huge", "132095296"),
        ("header_not_json", "header"),
        ("dup_key", "`a`"),
        ("seven_bytes", "7 bytes"),
        ("empty", "0 bytes"),
        ("lfs_pointer", "LFS pointer"),
    ] {
        let file = case("54", &format!("{name}.safetensors"));
        lockstep(["inspect", &file]).expect_refusal(3, &[&file, part]);
    }
}

#[test]
fn a_file_that_is_still_being_written_is_read_and_said() {
    for (name, steps, said) in [
        ("partial_tail", 3, Some("line 4")),
        ("partial_then_blank", 3, Some("line 4")),
        ("no_final_newline", 4, None),
        ("nul_tail", 3, Some("NUL")),
    ] {
        let answer =
            lockstep(["inspect", &case("57", &format!("{name}.jsonl")), "--format", "json"])
                .expect(0)
                .json();
        assert_eq!(answer["steps"], steps, "{name}: {answer:#}");
        let remarks = answer["remarks"].to_string();
        match said {
            Some(part) => assert!(remarks.contains(part), "{name}: {remarks}"),
            None => assert_eq!(answer["status"], "complete", "{name}: {answer:#}"),
        }
    }
    lockstep(["inspect", &case("57", "middle_damaged.jsonl")])
        .expect_refusal(3, &["middle_damaged.jsonl:2"]);
}

fn row(position: u32) -> String {
    format!(
        "{{\"position_before\":{position},\"token_id\":5,\"decoder_idx\":0,\"rows_before\":{position},\"rows_after\":{},\
         \"argmax_token\":7,\"argmax_logit\":21.5,\"top_ids\":[7,8],\"top_logits\":[21.5,20.25]}}\n",
        position + 1
    )
}

fn inspect(scratch: &Scratch, name: &str, bytes: impl AsRef<[u8]>) -> crate::kit::Ran {
    fs::write(scratch.file(name), bytes).expect("a scratch file");
    lockstep(["inspect", &scratch.path(name), "--format", "json"])
}

#[test]
fn traces_that_contradict_themselves_are_refused() {
    let scratch = Scratch::new();
    inspect(&scratch, "empty.jsonl", "").expect_refusal(3, &["empty.jsonl"]);
    let back = [row(10), row(11), row(12), row(9)].concat();
    inspect(&scratch, "back.jsonl", back).expect_refusal(3, &["back.jsonl:4"]);
    let gap = [row(0), row(1), row(5)].concat();
    inspect(&scratch, "gap.jsonl", gap).expect_refusal(3, &["gap.jsonl:3"]);
    let damaged = [row(0), "{\"position_before\":1,\"tok".to_owned() + "\n", row(2)].concat();
    inspect(&scratch, "damaged.jsonl", damaged).expect_refusal(3, &["damaged.jsonl:2"]);
}

#[test]
fn what_is_readable_is_read() {
    use std::io::Write as _;
    let scratch = Scratch::new();
    let plain = [row(0), row(1), row(2)].concat();
    let bom = inspect(&scratch, "bom.jsonl", format!("\u{feff}{plain}")).expect(0).json();
    assert_eq!(bom["steps"], 3);
    let crlf = inspect(&scratch, "crlf.jsonl", plain.replace('\n', "\r\n")).expect(0).json();
    assert_eq!(crlf["steps"], 3);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(plain.as_bytes()).unwrap();
    let gzip = inspect(&scratch, "trace.jsonl.gz", gzip.finish().unwrap()).expect(0).json();
    assert_eq!(gzip["steps"], 3);
    let odd = plain.replacen("20.25", "NaN", 1).replacen("21.5,20.25", "Infinity,20.25", 1);
    let odd = inspect(&scratch, "odd.jsonl", odd).expect(0).json();
    assert_eq!(odd["non_finite_rows"], 2, "{odd:#}");
    let two = inspect(&scratch, "two.jsonl", [plain.clone(), plain].concat()).expect(0).json();
    assert_eq!(two["samples"].as_array().unwrap().len(), 2, "{two:#}");
}

fn copy_model(to: &Path) {
    fs::create_dir_all(to).expect("a scratch folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"] {
        fs::copy(lockstep_testkit::ledger().join(name), to.join(name))
            .expect("a copy of the model");
    }
}

fn run(model: &str, out: &str) -> crate::kit::Ran {
    lockstep([
        "run",
        "--model",
        model,
        "--prompt",
        "<bos> Solve:",
        "--max-new-tokens",
        "2",
        "--out",
        out,
    ])
}

#[test]
fn models_that_are_not_what_they_say_are_refused() {
    let scratch = Scratch::new();
    let edits = |name: &str, changes: &[(&str, &str)]| {
        let dir = scratch.file(name);
        copy_model(&dir);
        let mut config = fs::read_to_string(dir.join("config.json")).unwrap();
        for (from, to) in changes {
            assert!(config.contains(from), "{from}");
            config = config.replace(from, to);
        }
        fs::write(dir.join("config.json"), config).unwrap();
        text(&dir)
    };
    let edit = |name: &str, from: &str, to: &str| edits(name, &[(from, to)]);
    let out = |name: &str| scratch.path(&format!("{name}.run"));
    let other = edit("other", "Qwen3ForCausalLM", "MambaForCausalLM");
    run(&other, &out("a")).expect_refusal(3, &["config.json", "MambaForCausalLM"]);
    let four = "\"num_hidden_layers\": 4";
    let torn = edit("torn", four, "\"num_hidden_layers\": 5");
    run(&torn, &out("g")).expect_refusal(3, &["config.json", "layer_types", "4 layers"]);
    let kinds = ("\"layer_types\"", "\"not_layer_types\"");
    let deeper = edits("deeper", &[(four, "\"num_hidden_layers\": 5"), kinds]);
    run(&deeper, &out("b")).expect_refusal(3, &["model.layers.4."]);
    let shallower = edits("shallower", &[(four, "\"num_hidden_layers\": 3"), kinds]);
    run(&shallower, &out("c")).expect_refusal(3, &["model.layers.3."]);
    let wider = edit("wider", "\"intermediate_size\": 768", "\"intermediate_size\": 512");
    run(&wider, &out("d")).expect_refusal(3, &["mlp", "model.safetensors"]);
    let untied = edit("untied", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    run(&untied, &out("e")).expect_refusal(3, &["lm_head.weight"]);
    run(&scratch.path("nowhere"), &out("f")).expect_refusal(3, &["nowhere"]);
    let cut = scratch.file("cut");
    copy_model(&cut);
    let weights = fs::read(cut.join("model.safetensors")).unwrap();
    fs::write(cut.join("model.safetensors"), &weights[..weights.len() - 100]).unwrap();
    run(&text(&cut), &out("g")).expect_refusal(3, &["model.safetensors"]);
}

#[test]
fn asking_for_a_gpu_where_there_is_none_is_a_usage_error() {
    let scratch = Scratch::new();
    lockstep([
        "run",
        "--model",
        &ledger(),
        "--prompt",
        "x",
        "--device",
        "cuda",
        "--out",
        &scratch.path("r"),
    ])
    .expect_refusal(2, &["cuda"]);
}
