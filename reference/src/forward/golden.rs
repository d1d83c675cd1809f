//! The forward pass against traces made by Hugging Face transformers on the ledger model.

use lockstep_testkit::{data, golden, gunzip, ledger};

use super::{Chunk, KeepSets, Model, Precision, Watch};

#[derive(Debug, serde::Deserialize)]
struct Row {
    position_before: u32,
    token_id: u32,
    rows_before: usize,
    rows_after: usize,
    argmax_token: u32,
    top_ids: Vec<u32>,
    top_logits: Vec<f32>,
    #[serde(default)]
    compaction: Option<u32>,
}

fn trace(name: &str) -> Vec<Row> {
    let text = gunzip(&golden().join("traces").join(name));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn tensor(file: &str, name: &str) -> (Vec<usize>, Vec<f64>) {
    tensor_at(&golden().join("traces").join(file), name)
}

fn tensor_at(path: &std::path::Path, name: &str) -> (Vec<usize>, Vec<f64>) {
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor(name).unwrap();
    let values = match view.dtype() {
        safetensors::Dtype::I16 => {
            view.data().as_chunks().0.iter().map(|b| f64::from(i16::from_le_bytes(*b))).collect()
        }
        safetensors::Dtype::I32 => {
            view.data().as_chunks().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect()
        }
        _ => view.data().as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
    };
    (view.shape().to_vec(), values)
}

/// Keep-sets of compaction `index` (0-based in these files): `[k]`, `[heads, k]` or `[layers, heads, k]`.
fn keep(file: &str, index: u32) -> KeepSets {
    let (shape, values) = tensor(file, &format!("c{index:03}.keep"));
    let (layers, heads, rows) = match shape[..] {
        [rows] => (1, 1, rows),
        [heads, rows] => (1, heads, rows),
        [layers, heads, rows] => (layers, heads, rows),
        _ => panic!("{shape:?}"),
    };
    KeepSets::new(layers, heads, rows, values.iter().map(|v| *v as u32).collect()).unwrap()
}

/// Feeds the whole trace in chunks that end where it compacts; returns the logits of every row.
fn replay(model: &Model, rows: &[Row], keeps: Option<&str>, chunk: usize) -> Vec<Vec<f32>> {
    let mut cache = model.new_cache().unwrap();
    let mut logits = Vec::new();
    let mut start = 0;
    while start < rows.len() {
        let limit = (start + chunk).min(rows.len());
        let event = rows[start..limit].iter().position(|row| row.compaction.is_some());
        let end = event.map_or(limit, |offset| start + offset + 1);
        let ids: Vec<u32> = rows[start..end].iter().map(|row| row.token_id).collect();
        let positions: Vec<u32> = rows[start..end].iter().map(|row| row.position_before).collect();
        assert_eq!(cache.rows(), rows[start].rows_before);
        let wanted: Vec<usize> = (0..ids.len()).collect();
        let chunk = Chunk { ids: &ids, positions: &positions, logits: &wanted };
        let fed = model.feed(&mut cache, &chunk, Watch::default()).unwrap();
        logits.extend(fed.logits.rows().map(<[f32]>::to_vec));
        if let (Some(offset), Some(file)) = (event, keeps) {
            cache.gather(&keep(file, rows[start + offset].compaction.unwrap())).unwrap();
        }
        assert_eq!(cache.rows(), rows[end - 1].rows_after);
        start = end;
    }
    logits
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    u32::try_from(best.unwrap().0).unwrap()
}

/// Rows whose argmax differs though their own gap allows no doubt, and the largest difference among the top 8.
fn compare(rows: &[Row], logits: &[Vec<f32>], doubt: f32) -> (usize, f32) {
    assert_eq!(rows.len(), logits.len());
    let mut flips = 0;
    let mut worst = 0f32;
    for (row, logits) in rows.iter().zip(logits) {
        let gap = row.top_logits[0] - row.top_logits[1];
        flips += usize::from(gap >= doubt && argmax(logits) != row.argmax_token);
        for (id, logit) in row.top_ids.iter().zip(&row.top_logits) {
            worst = worst.max((logits[*id as usize] - logit).abs());
        }
    }
    (flips, worst)
}

#[test]
fn dense_logits_agree_with_transformers_on_every_row() {
    let model = Model::load(&ledger(), Precision::F32).unwrap();
    for id in ["ledger_05", "ledger_17"] {
        let rows = trace(&format!("dense/{id}.fp32.jsonl.gz"));
        let (flips, worst) = compare(&rows, &replay(&model, &rows, None, 512), 4e-4);
        assert!(flips == 0 && worst < 2e-4, "{id}: {flips} flips, worst {worst}");
    }
}

#[test]
fn chunking_changes_no_logit_by_more_than_rounding() {
    let model = Model::load(&ledger(), Precision::F32).unwrap();
    let rows = trace("dense/ledger_01.fp32.jsonl.gz");
    let whole = replay(&model, &rows, None, 512);
    let pieces = replay(&model, &rows, None, 7);
    let worst =
        whole.concat().iter().zip(pieces.concat()).fold(0f32, |w, (a, b)| w.max((a - b).abs()));
    // Logits reach 40; transformers' own stepwise and whole passes differ by up to 3.9e-5 here.
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn f64_is_the_limit_of_f32() {
    let rows = trace("dense/ledger_05.fp32.jsonl.gz");
    let run = |precision| replay(&Model::load(&ledger(), precision).unwrap(), &rows, None, 512);
    let (flips, worst) = compare(&rows, &run(Precision::F64), 4e-4);
    assert!(flips == 0 && worst < 2e-4, "{flips} flips, worst {worst}");
}

#[test]
fn hidden_stages_agree_with_transformers() {
    let model = Model::load(&ledger(), Precision::F32).unwrap();
    // The repository carries the first of these two files.
    for id in ["ledger_05", "ledger_17"] {
        let file = format!("dense/{id}.fp32.hidden.safetensors");
        if id != "ledger_05" && !golden().join("traces").join(&file).exists() {
            continue;
        }
        let rows = trace(&format!("dense/{id}.fp32.jsonl.gz"));
        let watched: Vec<usize> =
            tensor(&file, "positions").1.iter().map(|position| *position as usize).collect();
        let ids: Vec<u32> = rows.iter().map(|row| row.token_id).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.position_before).collect();
        let mut cache = model.new_cache().unwrap();
        let chunk = Chunk { ids: &ids, positions: &positions, logits: &[] };
        let fed = model.feed(&mut cache, &chunk, Watch { rows: &watched }).unwrap();
        let mut compared = 0;
        for stage in &fed.stages {
            let name = match stage.layer {
                Some(layer) => format!("layer{layer}.{}", stage.name),
                None => stage.name.to_owned(),
            };
            let stored =
                ["embed", "final_norm", "input_norm", "q_proj", "q_norm", "k_norm", "v_proj"]
                    .iter()
                    .chain(&["attn_out", "mlp_out", "out"])
                    .any(|stored| *stored == stage.name);
            if !stored {
                continue;
            }
            let (shape, values) = tensor(&file, &name);
            let place = watched.iter().position(|row| *row == stage.row).unwrap();
            let golden = &values[place * shape[1]..(place + 1) * shape[1]];
            let norm = golden.iter().map(|v| v * v).sum::<f64>().sqrt();
            let error =
                golden.iter().zip(&stage.values).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            assert!(error < 2e-5 * norm, "{id} row {} {name}: {}", stage.row, error / norm);
            compared += 1;
        }
        assert_eq!(compared, watched.len() * (2 + 4 * 8));
    }
}

#[test]
fn compressed_runs_are_reproduced_from_their_keep_sets() {
    let model = Model::load(&ledger(), Precision::F32).unwrap();
    // Per head, per layer and head, union, unprotected prompt.
    for run in ["ledger_05.a", "ledger_17.b", "ledger_05.plph", "ledger_05.lib", "ledger_05.u"] {
        let rows = trace(&format!("compressed/{run}.jsonl.gz"));
        assert!(rows.iter().any(|row| row.compaction.is_some()), "{run} never compacts");
        let keeps = format!("compressed/{run}.keep.safetensors");
        let (flips, worst) = compare(&rows, &replay(&model, &rows, Some(&keeps), 512), 4e-4);
        assert!(flips == 0 && worst < 2e-4, "{run}: {flips} flips, worst {worst}");
    }
}

#[test]
fn a_long_compressed_run_differs_from_transformers_by_less_than_either_from_the_truth() {
    // f32 rotary angles and accumulation cost 1.5e-3 here; the two f32 programs share most of it.
    let run = "ledger_17.lib";
    let rows = trace(&format!("compressed/{run}.jsonl.gz"));
    let keeps = format!("compressed/{run}.keep.safetensors");
    let go =
        |precision| replay(&Model::load(&ledger(), precision).unwrap(), &rows, Some(&keeps), 512);
    let (flips, worst) = compare(&rows, &go(Precision::F32), 4e-4);
    let (_, theirs) = compare(&rows, &go(Precision::F64), 4e-4);
    assert!(flips == 0 && worst < 0.3 * theirs && theirs < 3e-3, "{worst} against {theirs}");
}

#[test]
fn dropped_rows_change_the_logits() {
    let model = Model::load(&ledger(), Precision::F32).unwrap();
    let rows = trace("compressed/ledger_17.b.jsonl.gz");
    let compressed = replay(&model, &rows, Some("compressed/ledger_17.b.keep.safetensors"), 512);
    let dense_rows: Vec<Row> = trace("dense/ledger_17.fp32.jsonl.gz");
    let shared = rows.iter().zip(&dense_rows).take_while(|(a, b)| a.token_id == b.token_id).count();
    let first = rows.iter().position(|row| row.compaction.is_some()).unwrap();
    assert!(shared > first + 1);
    let (_, worst) = compare(&dense_rows[first + 1..shared], &compressed[first + 1..shared], 4e-4);
    assert!(worst > 0.01, "dense logits after a compaction agree to {worst}");
}

#[test]
fn rounded_arithmetic_is_as_far_from_f32_as_transformers_in_that_dtype() {
    for (precision, name, flips_allowed) in
        [(Precision::Bf16, "bf16", 1), (Precision::F16, "fp16", 1)]
    {
        let model = Model::load(&ledger(), precision).unwrap();
        let rows = trace(&format!("dense/ledger_05.{name}.jsonl.gz"));
        let truth = trace("dense/ledger_05.fp32.jsonl.gz");
        let logits = replay(&model, &rows, None, 512);
        let prompt = 104;
        let mut flips = 0;
        let (mut ours, mut theirs) = (0f64, 0f64);
        for ((row, truth), logits) in rows.iter().zip(&truth).zip(&logits).skip(prompt) {
            assert_eq!(row.token_id, truth.token_id);
            flips += usize::from(argmax(logits) != row.argmax_token);
            let id = row.argmax_token as usize;
            let exact = truth.top_ids.iter().position(|top| *top as usize == id).unwrap();
            let exact = f64::from(truth.top_logits[exact]);
            ours += (f64::from(logits[id]) - exact).powi(2);
            theirs += (f64::from(row.top_logits[0]) - exact).powi(2);
        }
        let ratio = (ours / theirs).sqrt();
        // Same rounding points, other order of accumulation: errors of the same size, not the same errors.
        assert!((0.5..2.0).contains(&ratio), "{name}: error ratio {ratio}");
        assert!(flips <= flips_allowed, "{name}: {flips} flips");
        let grid =
            logits.concat().iter().all(|v| precision.rounding().f32(*v).to_bits() == v.to_bits());
        assert!(grid, "{name}: a logit is off the grid");
    }
}

#[test]
fn tiny_models_of_each_family_and_rope_agree_with_transformers() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(data().join("models")).unwrap() {
        let dir = entry.unwrap().path();
        if dir.join("golden.safetensors").exists() {
            seen.push(tiny(&dir, &dir));
        }
    }
    seen.sort_unstable();
    let plain = ["default"; 5];
    assert_eq!(seen, [plain.as_slice(), &["linear", "llama3", "yarn"]].concat());
}

#[test]
fn tiny_models_as_gguf_agree_with_transformers() {
    let dir = tempfile::tempdir().unwrap();
    for (name, kind) in [
        ("llama_bias_mha", "default"),
        ("llama_linear", "linear"),
        ("llama_llama3", "factors"),
        ("qwen3_theta_sharded", "default"),
    ] {
        let folder = data().join("models").join(name);
        let path = dir.path().join(format!("{name}.gguf"));
        lockstep_testkit::gguf::convert(&folder).write(&path);
        assert_eq!(tiny(&path, &folder), kind, "{name}");
    }
}

/// Holds the model at `path` against the golden logits in `folder`; the name of its rotary scaling.
fn tiny(path: &std::path::Path, folder: &std::path::Path) -> &'static str {
    let file = folder.join("golden.safetensors");
    let dir = path;
    let model = Model::load(dir, Precision::F32).unwrap();
    let freqs: Vec<f32> = tensor_at(&file, "inv_freq").1.iter().map(|v| *v as f32).collect();
    for (ours, theirs) in model.hyper().rope.inv_freq().iter().zip(&freqs) {
        assert!((ours / theirs - 1.0).abs() < 3e-7, "{}: {ours} {theirs}", dir.display());
    }
    let ids: Vec<u32> = tensor_at(&file, "input_ids").1.iter().map(|id| *id as u32).collect();
    let positions: Vec<u32> = (0..).take(ids.len()).collect();
    let wanted: Vec<usize> = (0..ids.len()).collect();
    let mut cache = model.new_cache().unwrap();
    let chunk = Chunk { ids: &ids, positions: &positions, logits: &wanted };
    let fed = model.feed(&mut cache, &chunk, Watch { rows: &wanted }).unwrap();
    let worst = |ours: &[f64], theirs: &[f64]| {
        ours.iter().zip(theirs).fold(0f64, |worst, (a, b)| worst.max((a - b).abs()))
    };
    let (_, logits) = tensor_at(&file, "logits");
    let ours: Vec<f64> = fed.logits.values.iter().map(|v| f64::from(*v)).collect();
    assert_eq!(ours.len(), logits.len());
    // Logits of a few units from f32 arithmetic: 1e-5 is some ten roundings.
    assert!(worst(&ours, &logits) < 3e-5, "{}: {}", dir.display(), worst(&ours, &logits));
    let hidden: Vec<f64> = fed
        .stages
        .iter()
        .filter(|stage| stage.name == "final_norm")
        .flat_map(|stage| stage.values.clone())
        .collect();
    assert!(worst(&hidden, &tensor_at(&file, "last_hidden").1) < 3e-5, "{}", dir.display());
    model.hyper().rope.kind.name()
}

/// Without its window, or with one row more or less, a model must not pass for itself.
#[test]
fn another_window_is_seen_in_the_logits() {
    let source = data().join("models").join("mistral_window");
    let (_, golden) = tensor_at(&source.join("golden.safetensors"), "logits");
    let ids = tensor_at(&source.join("golden.safetensors"), "input_ids").1;
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    for window in ["23", "25", "null"] {
        let dir = tempfile::tempdir().unwrap();
        let changed =
            text.replace("\"sliding_window\": 24", &format!("\"sliding_window\": {window}"));
        assert_ne!(changed, text);
        std::fs::write(dir.path().join("config.json"), changed).unwrap();
        let weights = "model.safetensors";
        std::fs::copy(source.join(weights), dir.path().join(weights)).unwrap();
        let model = Model::load(dir.path(), Precision::F32).unwrap();
        let positions: Vec<u32> = (0..).take(ids.len()).collect();
        let wanted: Vec<usize> = (0..ids.len()).collect();
        let chunk = Chunk { ids: &ids, positions: &positions, logits: &wanted };
        let mut cache = model.new_cache().unwrap();
        let fed = model.feed(&mut cache, &chunk, Watch::default()).unwrap();
        let far = |row: usize| {
            let width = fed.logits.vocab;
            let part = row * width..(row + 1) * width;
            let pairs = fed.logits.values[part.clone()].iter().zip(&golden[part]);
            pairs.fold(0f64, |far, (a, b)| far.max((f64::from(*a) - b).abs()))
        };
        // The first row whose window is full is the first that can differ.
        assert!(far(22) < 3e-5 && (25..160).any(|row| far(row) > 1e-2), "{window}: {}", far(22));
    }
}
