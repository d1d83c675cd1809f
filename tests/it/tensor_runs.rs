//! Dumps of a run go out as tensor files and come back as a run; other programs' tensors become a run.

#![expect(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::path::Path;
use std::process::Command;

use lockstep_traces::store::RunReader;

use crate::kit::{Scratch, lockstep, record, text};

/// Flags under which `ledger_05` compacts twice, its cache dumped.
fn compacted() -> Vec<String> {
    let stats =
        lockstep_testkit::data().join("golden/traces/stats/ledger_stats_decode_only.safetensors");
    let flags = [
        "--policy",
        "triattention",
        "--rule-set",
        "trt",
        "--kv-budget",
        "260",
        "--divide-length",
        "32",
        "--recent-window",
        "32",
        "--record-cache",
        "all",
        "--cache-dtype",
        "bf16",
        "--stats",
    ];
    flags.iter().map(|flag| (*flag).to_owned()).chain([text(&stats)]).collect()
}

fn prompt_len(run: &str) -> String {
    let run = RunReader::open(Path::new(run)).unwrap();
    run.samples().unwrap()[0].prompt_len.unwrap().to_string()
}

/// Turns the lowest bit of the last element of an array.
fn plant(path: &Path, width: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - width;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn an_exported_run_comes_back_equal_and_a_changed_logit_is_found() {
    let home = Scratch::new();
    let run = home.path("run");
    record(&run, "ledger_05", &["--record-logits", "all", "--record-hidden", "1,103"]).expect(0);
    let (file, folder) = (home.path("x.safetensors"), home.path("npy"));
    lockstep(["export", "safetensors", &run, "--out", &file]).expect(0);
    lockstep(["export", "npy", &run, "--sample", "ledger_05", "--out", &folder]).expect(0);
    let length = prompt_len(&run);
    for (name, source) in [("a", &file), ("b", &folder)] {
        let back = home.path(name);
        lockstep(["import", "tensors", source, "--prompt-len", &length, "--out", &back]).expect(0);
        let answer = lockstep(["diff", &run, &back, "--format", "json"]).expect(0).json();
        // Tensors tell nothing of row counts, so that more than "within noise" cannot be said.
        assert_eq!(answer["verdict"]["kind"], "within_noise", "{answer:#}");
        assert_eq!(answer["available"]["rows"], "not available on the right");
    }
    plant(&home.file("npy/ledger_05/step_0000103/logits.npy"), 4);
    let back = home.path("planted");
    lockstep(["import", "tensors", &folder, "--prompt-len", &length, "--out", &back]).expect(0);
    let answer = lockstep(["diff", &run, &back, "--format", "json"]).expect(1);
    assert!(answer.stdout.contains("103"), "{}", answer.stdout);
    // The two forms themselves are compared under the same names.
    let answer = lockstep(["diff", "tensors", &file, &folder]).expect(1);
    assert!(answer.stdout.contains("ledger_05/step_0000103/logits"), "{}", answer.stdout);
    assert!(answer.stdout.contains(" 1 diverged"), "{}", answer.stdout);
}

#[test]
fn an_exported_cache_still_passes_the_gather_check_and_a_changed_row_does_not() {
    let home = Scratch::new();
    let run = home.path("run");
    let flags = compacted();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    record(&run, "ledger_05", &flags).expect(0);
    let folder = home.path("npy");
    lockstep(["export", "npy", &run, "--out", &folder]).expect(0);
    let checked = |name: &str, code: i32| {
        let back = home.path(name);
        lockstep(["import", &folder, "--out", &back]).expect(0);
        lockstep(["check", "gather", &back, "--format", "json"]).expect(code).json()
    };
    let clean = checked("clean", 0);
    let original = lockstep(["check", "gather", &run, "--format", "json"]).expect(0).json();
    assert_eq!(clean["compared"], original["compared"]);
    assert!(clean["compared"].as_u64().unwrap() > 0);
    plant(&home.file("npy/ledger_05/compaction_0002/post.v.layer00.npy"), 2);
    let planted = checked("planted", 1);
    assert!(planted["findings"].to_string().contains("\"ordinal\":2"), "{planted:#}");
}

#[test]
fn dumps_of_four_engines_become_runs_and_a_wrong_kind_is_refused() {
    let home = Scratch::new();
    let data = |name: &str| text(&lockstep_testkit::data().join("tensors").join(name));
    for (kind, source) in [
        ("sglang-dump", "sglang"),
        ("msprobe", "msprobe"),
        ("trtllm-debug", "trtllm"),
        ("polygraphy", "polygraphy.json"),
        ("tensors", "stored.npz"),
    ] {
        let out = home.path(kind);
        let ran = lockstep(["import", &data(source), "--out", &out]).expect(0);
        assert!(ran.stdout.contains(&format!("read as {kind}")), "{}", ran.stdout);
        let run = RunReader::open(Path::new(&out)).unwrap();
        assert!(!run.dumps().unwrap().is_empty(), "{kind}");
    }
    lockstep(["import", "msprobe", &data("sglang"), "--out", &home.path("x")])
        .expect_refusal(2, &["SGLang dump", "import it as sglang-dump"]);
    let map = home.path("map.yaml");
    std::fs::write(&map, "rules: [{names: '.*', to: logits}]").unwrap();
    lockstep(["import", "tensors", &data("stored.npz"), "--map", &map, "--out", &home.path("y")])
        .expect_refusal(3, &["map.yaml", "rule 0", "position"]);
}

/// Reads an export with NumPy and the safetensors package: as many tensors, and equal bytes.
const READ_BACK: &str = r"
import json, os, sys
import numpy
from safetensors import safe_open
file, folder = sys.argv[1:]
side = json.load(open(os.path.join(folder, 'export.json')))
seen = {}
for root, _, names in os.walk(folder):
    for name in names:
        if name.endswith('.npy'):
            path = os.path.join(root, name)
            seen[os.path.relpath(path, folder)[:-4]] = numpy.load(path, allow_pickle=False)
with open(file, 'rb') as raw:
    size = int.from_bytes(raw.read(8), 'little')
    header = json.loads(raw.read(size))
    data = raw.read()
with safe_open(file, 'np') as tensors:
    assert tensors.metadata()['origin'] == 'lockstep export'
    assert sorted(tensors.keys()) == sorted(seen), sorted(seen)
for name, array in seen.items():
    info = header[name]
    start, end = info['data_offsets']
    assert list(array.shape) == info['shape'], name
    assert array.tobytes() == data[start:end], name
    assert (info['dtype'] == 'BF16') == (side['elements'].get(name + '.npy') == 'bf16'), name
print(len(seen), len(side['elements']))
";

#[test]
fn numpy_and_safetensors_read_what_is_exported() {
    let python = std::env::var("LOCKSTEP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", "import numpy, safetensors"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "skipped: {python} has no numpy and safetensors; name one that has in LOCKSTEP_PYTHON"
        );
        return;
    }
    let home = Scratch::new();
    let run = home.path("run");
    let flags = compacted();
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.extend(["--record-logits", "3", "--record-hidden", "3"]);
    record(&run, "ledger_05", &flags).expect(0);
    let (file, folder) = (home.path("x.safetensors"), home.path("npy"));
    lockstep(["export", "safetensors", &run, "--out", &file]).expect(0);
    lockstep(["export", "npy", &run, "--out", &folder]).expect(0);
    let output = Command::new(&python).args(["-c", READ_BACK, &file, &folder]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counts: Vec<usize> = said.split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert!(matches!(counts[..], [all, half] if all > half && half > 0), "{said}");
}
