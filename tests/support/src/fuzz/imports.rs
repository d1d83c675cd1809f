//! Files and folders of other tools as runs, and runs in the formats of other tools.

use std::path::Path;

use lockstep_traces::export::{self, Selection};
use lockstep_traces::forms::{ArmTable, CacheStates, KeepSpec, KeptRows, Shifts, VisibleKeys};
use lockstep_traces::llamacpp::{self, KldExport, KldFile, LogitRows, ResultsFile};
use lockstep_traces::logprobs::{self, LogprobImport, LogprobKind};
use lockstep_traces::tensor_files::{ReadOptions, read};
use lockstep_traces::tensor_runs::{self, RunMap, TensorImport};
use lockstep_traces::{RunReader, TokenTexts, TraceError, lm_eval, parquet_trace, perfetto};
use lockstep_traces::{recorded, trtmc};

use super::{place, runs, same};

/// Ids and values kept of a row of whole logits.
const TOP: usize = 3;
/// Elements of a set of tensors that is imported: one of stride 0 stands for more of them than its bytes hold.
const MOST_ELEMENTS: u64 = 1 << 16;
/// Samples of an imported run that is written out again.
const MOST_SAMPLES: usize = 2;
/// Every layout of log-probabilities.
const KINDS: [LogprobKind; 6] = [
    LogprobKind::OpenaiChat,
    LogprobKind::OpenaiCompletions,
    LogprobKind::Vllm,
    LogprobKind::Sglang,
    LogprobKind::LlamaServer,
    LogprobKind::Miles,
];

/// Imports into a new folder; what became a run is read to its last value. True where it became one.
fn imported(import: impl FnOnce(&Path) -> Result<Vec<String>, TraceError>) -> bool {
    let home = place::folder();
    let out = home.path().join("run");
    match import(&out) {
        Ok(remarks) => {
            assert!(remarks.iter().all(|line| !line.is_empty() && !line.contains('\n')));
            let run = RunReader::open(&out).expect("an imported run opens");
            runs::every_row(&out);
            // Writing asks for each sample some twenty times.
            if run.sample_ids().is_ok_and(|ids| ids.len() <= MOST_SAMPLES) {
                exported(&out);
            }
            true
        }
        Err(error) => {
            let whole = RunReader::open(&out).is_ok_and(|run| run.is_complete());
            assert!(!whole, "a refused import leaves a complete run: {error}");
            false
        }
    }
}

/// Writes a run in every format of other tools; log-probabilities that were written are log-probabilities of their kind.
fn exported(dir: &Path) {
    let Ok(run) = RunReader::open(dir) else { return };
    let home = place::folder();
    let at = |name: &str| home.path().join(name);
    let selection = Selection { run: &run, sample: None };
    let texts = |id: u32| Some(id.to_string().into_bytes());
    let chat = export::openai_chat(selection, &at("chat.jsonl"), &texts);
    let completions = export::openai_completions(selection, &at("completions.jsonl"), &texts);
    let vllm = export::vllm(selection, &at("vllm.jsonl"));
    let written = [
        (chat.is_ok(), "chat.jsonl", LogprobKind::OpenaiChat),
        (completions.is_ok(), "completions.jsonl", LogprobKind::OpenaiCompletions),
        (vllm.is_ok(), "vllm.jsonl", LogprobKind::Vllm),
    ];
    for (_, name, kind) in written.into_iter().filter(|(done, ..)| *done) {
        let again = home.path().join("again");
        let _ = logprobs::import(&at(name), kind, &LogprobImport::default(), &again);
        let _ = std::fs::remove_dir_all(&again);
    }
    let _ = export::neutral(selection, &at("neutral.jsonl"));
    let _ = export::csv(selection, &at("rows.csv"));
    let _ = perfetto::export_timeline(&run, &at("timeline.json"));
    let _ = lm_eval::export_samples(&run, &at("samples.jsonl"));
    let _ = tensor_runs::export_safetensors(&run, None, &at("dumps.safetensors"));
    let _ = tensor_runs::export_npy(&run, None, &at("npy"));
    for chunk_tokens in [None, Some(3)] {
        let path = at("base.kld");
        if llamacpp::export_kld(dir, KldExport { chunk_tokens }, &path).is_ok() {
            KldFile::open(&path).expect("a base file that was written opens");
        }
    }
}

/// A run directory, written in every format.
pub(super) fn exports(data: &[u8]) {
    place::tree(data, exported);
}

/// A base file of llama-perplexity: every record, and as a run.
pub(super) fn llama_kld(data: &[u8]) {
    place::file("base.kld", data, |path| {
        let known = llamacpp::is_kld(path);
        if let Ok(file) = KldFile::open(path) {
            assert!(known, "a file that opens is recognised");
            let shape = file.shape();
            for chunk in 0..shape.n_chunk.min(64) {
                for index in 0..shape.scored().min(64) {
                    let Some(record) = file.record(chunk, index) else { continue };
                    assert_eq!(record.codes().count(), shape.n_vocab);
                    let _ = (record.range(), record.cut_below(), record.error());
                    let sound = record.fault().is_none();
                    assert_eq!(file.sound_record(chunk, index).is_ok(), sound);
                    let top = record.top(TOP);
                    assert_eq!(top.len(), TOP.min(shape.n_vocab));
                    let codes: Vec<_> = top.iter().map(|id| record.code(*id as usize)).collect();
                    assert!(codes.is_sorted_by(|left, right| left >= right), "{codes:?}");
                }
            }
        }
        imported(|out| llamacpp::import_kld(path, TOP, out));
    });
}

/// Results of llama-results: every row, and as a run.
pub(super) fn llama_results(data: &[u8]) {
    place::file("results.gguf", data, |path| {
        let _ = llamacpp::is_results(path);
        if let Ok(file) = ResultsFile::open(path) {
            for row in 0..64 {
                let _ = file.row(row);
            }
        }
        imported(|out| llamacpp::import_results(path, TOP, out));
    });
}

/// One row of logits with its tokens beside it, or any tensor as rows of logits.
pub(super) fn llama_debug(data: &[u8]) {
    place::tree(data, |dir| {
        let path = dir.join("llamacpp-base.bin");
        for vocabulary in [None, Some(1), Some(48)] {
            imported(|out| llamacpp::import_debug(&path, vocabulary, TOP, out));
        }
        for name in ["llamacpp-base.bin", "logits.npy"] {
            let Ok(rows) = LogitRows::open(&dir.join(name), Some(4), Some(48)) else { continue };
            let (count, _) = rows.size();
            for number in [0, count / 2, count.saturating_sub(1), count] {
                let _ = (rows.row(number), rows.token(number));
            }
        }
    });
}

/// A trace as a Parquet table, read and imported.
pub(super) fn parquet(data: &[u8]) {
    place::file("trace.parquet", data, |path| {
        let known = parquet_trace::is_parquet(path);
        if !known {
            return;
        }
        imported(|out| trtmc::import_trace(path, Some(2), out));
    });
}

/// A folder that the recorders write.
pub(super) fn recording(data: &[u8]) {
    place::tree(data, |dir| {
        let known = recorded::is_recorded(dir);
        if let Ok((loaded, samples)) = recorded::load_recorded(dir) {
            assert!(known, "a recording that is read is recognised");
            assert!(loaded.samples.len() >= samples.len());
        }
        imported(|out| recorded::import_recorded(dir, out));
    });
}

/// Forms of single questions: arms, cache states, keeps, shifts, visible keys.
pub(super) fn forms(data: &[u8]) {
    place::file("form.json", data, |path| {
        if let Ok(table) = ArmTable::read(path, "accuracy", &["notes".to_owned()]) {
            assert!(table.arms.iter().all(|arm| arm.levels.len() == table.factors.len()));
            assert!(table.arms.iter().all(|arm| arm.effect.is_finite()));
        }
        if let Ok(spec) = KeepSpec::read(path) {
            assert_eq!(spec.amp.len(), spec.omega.len());
            assert_eq!(spec.amp.len(), spec.phase.len());
        }
        let _ = (KeptRows::read(path), CacheStates::read(path));
        let _ = (Shifts::read(path), VisibleKeys::read(path));
    });
}

/// The texts of invented token ids beside a run; written again they say the same.
pub(super) fn token_texts(data: &[u8]) {
    place::file("token_texts.json", data, |path| {
        let run = path.parent().expect("a folder");
        let Ok(Some(texts)) = TokenTexts::read(run) else { return };
        assert_eq!(texts.iter().count(), texts.len());
        for text in texts.iter() {
            assert!(same(&texts.get(text.id), &Some(text)));
        }
        texts.write(run).expect("texts that were read are written");
        let back = TokenTexts::read(run).expect("and read again").expect("they are there");
        assert!(same(&back, &texts), "{back:?} is not {texts:?}");
    });
}

/// Log-probabilities in every layout, as a run.
pub(super) fn logprob_import(data: &[u8]) {
    place::file("logprobs.json", data, |path| {
        let guessed = LogprobKind::of(path);
        for kind in KINDS {
            let plain = LogprobImport::default();
            let done = imported(|out| logprobs::import(path, kind, &plain, out));
            let labelled = LogprobImport {
                prompt_ids: Some(&[1, 5]),
                prompt_len: Some(2),
                labels: logprobs::Labels::Next,
                ..LogprobImport::default()
            };
            let more = kind == LogprobKind::Miles || (done && guessed == Some(kind));
            if more {
                imported(|out| logprobs::import(path, kind, &labelled, out));
            }
        }
    });
}

/// Samples of lm-eval, as a run.
pub(super) fn lm_eval_import(data: &[u8]) {
    place::file("samples_task.jsonl", data, |path| {
        let _ = lm_eval::recognised(path);
        for filter in [None, Some("none".to_owned())] {
            imported(|out| lm_eval::import_samples(path, &lm_eval::Import { filter }, out));
        }
    });
}

/// Artifacts of TensorRT-Model-Connect beside traces and dumps, as runs.
pub(super) fn trtmc_import(data: &[u8]) {
    place::file("artifact", data, |path| {
        let _ = (trtmc::is_ladder(path), trtmc::is_stats(path));
        imported(|out| trtmc::import_rows(path, out));
        imported(|out| trtmc::import_summary(path, None, out));
        imported(|out| trtmc::import_summary(path, Some("tri"), out));
        imported(|out| trtmc::import_bundle(path, out));
        imported(|out| trtmc::import_ladder(path, out));
        imported(|out| trtmc::import_config(path, out));
        imported(|out| trtmc::import_stats(path, out));
    });
}

/// A folder of tensors as a run, with the map `map.yaml` beside them where it is one.
pub(super) fn tensor_import(data: &[u8]) {
    place::tree(data, |dir| {
        let map = RunMap::read(&dir.join("map.yaml")).unwrap_or_default();
        let _ = std::fs::remove_file(dir.join("map.yaml"));
        let Ok(set) = read(dir, &ReadOptions::default()) else { return };
        let elements = set.tensors.iter().map(|t| t.elements()).fold(0, u64::saturating_add);
        if elements > MOST_ELEMENTS {
            return;
        }
        let bare = TensorImport { prompt_len: Some(1), ..TensorImport::default() };
        imported(|out| tensor_runs::import_tensors(&set, &bare, out));
        let mapped = TensorImport { map, prompt_len: None };
        imported(|out| tensor_runs::import_tensors(&set, &mapped, out));
    });
}
