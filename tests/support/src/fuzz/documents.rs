//! Documents: log-probabilities, tokens, answers, datasets, artifacts, ledgers, model configurations.

use std::path::Path;

use lockstep_traces::answers::{Fields, read_answers};
use lockstep_traces::claims::{Ledger, cite, look};
use lockstep_traces::dataset::{Dataset, Selection, Shard};
use lockstep_traces::logprobs::{self, Logprob, Node};
use lockstep_traces::{ModelConfig, artifacts, tokens};

use super::{place, same};

/// Log-probabilities in any layout.
pub(super) fn logprobs(data: &[u8]) {
    place::file("logprobs.json", data, |path| {
        let _ = logprobs::looks_like(path);
        if let Ok(documents) = logprobs::documents(path) {
            for node in &documents.nodes {
                walk(node, 0);
                let _ = logprobs::asked(node);
                let _ = node.pointer("/choices/0/logprobs/content");
            }
        }
        let Ok(file) = logprobs::read(path) else { return };
        let _ = file.cannot();
        let mut entries = 0;
        for sequence in &file.sequences {
            entries += sequence.entries.len();
            for entry in &sequence.entries {
                number(&entry.logprob);
                for candidate in &entry.candidates {
                    number(&candidate.logprob);
                }
            }
        }
        assert_eq!(entries, file.entries());
    });
}

fn number(logprob: &Logprob) {
    let _ = (logprob.value(), logprob.spelled());
    serde_json::to_string(logprob).expect("a log-probability is printed");
}

fn walk(node: &Node, depth: usize) {
    assert!(depth < 1000, "nesting is bounded");
    let _ = (node.index(), node.number(), node.text());
    for (key, inner) in node.members().unwrap_or_default() {
        assert!(node.get(key).is_some());
        walk(inner, depth + 1);
    }
    for inner in node.list().unwrap_or_default() {
        walk(inner, depth + 1);
    }
}

/// A token sequence, whole and by pointer, and a vocabulary.
pub(super) fn tokens(data: &[u8]) {
    place::file("tokens.json", data, |path| {
        let whole = path.to_str().expect("a path of ours");
        for pointer in ["", "#", "#/", "#/0", "#/ids", "#/tokens", "#/a/0", "#/~1~0"] {
            let argument = format!("{whole}{pointer}");
            let _ = tokens::locate(&argument);
            if let Ok(file) = tokens::read(&argument) {
                assert!(file.ids.is_some() || file.pieces.is_some() || file.text.is_some());
            }
            if let Ok(vocabulary) = tokens::read_vocabulary(&argument) {
                for id in [0, 1, 5, u32::MAX] {
                    let _ = vocabulary.bytes(id);
                }
                let _ = (vocabulary.is_empty(), vocabulary.len());
            }
        }
    });
}

/// Answers of other tools.
pub(super) fn answers(data: &[u8]) {
    place::file("samples.jsonl", data, |path| {
        let named = Fields {
            id: Some("id".to_owned()),
            gold: Some("gold".to_owned()),
            answer: Some("answer".to_owned()),
            text: Some("text".to_owned()),
        };
        for fields in [Fields::default(), named] {
            let mut rows = 0;
            let source = read_answers(path, &fields, |row| {
                assert!(row.line > 0);
                rows += 1;
            });
            if let Ok(source) = source {
                assert_eq!(source.rows, rows);
            }
        }
    });
}

/// A dataset, and what is taken out of it.
pub(super) fn dataset(data: &[u8]) {
    place::file("data.jsonl", data, |path| {
        let _ = artifacts::read_dataset(path);
        let Ok(dataset) = Dataset::read(path) else { return };
        let rows = dataset.rows.len();
        let shards: Vec<Shard> =
            ["0/2", "1/2"].iter().filter_map(|text| text.parse().ok()).collect();
        assert_eq!(shards.len(), 2);
        let mut taken = 0;
        for shard in shards {
            let selection = Selection { select: None, limit: None, shard: Some(shard) };
            if let Ok(found) = dataset.take(&selection) {
                assert!(found.rows.iter().all(|row| *row < rows));
                taken += found.rows.len();
            }
        }
        assert!(taken <= rows, "shards take a row twice");
        for row in &dataset.rows {
            let _ = row.effective_index();
        }
    });
}

/// Whatever an artifact is by its content.
pub(super) fn artifact(data: &[u8]) {
    place::file("artifact", data, |path| {
        let _ = artifacts::guess(path);
        let _ = artifacts::read(path);
        let _ = artifacts::read_bench(path);
        let _ = artifacts::read_summary(path);
        let _ = artifacts::read_effective_config(path);
        let _ = artifacts::read_replay(path);
    });
}

/// An engine bundle.
pub(super) fn bundle(data: &[u8]) {
    let _ = artifacts::BundleFormat::of(data);
    place::file("engine.bundle", data, |path| {
        let Ok(bundle) = artifacts::read_bundle(path) else { return };
        for name in ["", "config", "engine", "tokenizer", "triattention_stats"] {
            let _ = bundle.section(name);
        }
    });
}

/// An engine's log.
pub(super) fn engine_log(data: &[u8]) {
    place::file("engine.log", data, |path| {
        let _ = artifacts::read_log(path);
    });
}

/// A ledger of claims; its records, appended one by one, are the ledger again.
pub(super) fn claims(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(ledger) = Ledger::parse(text, Path::new("claims.toml")) else { return };
    let home = place::folder();
    let path = home.path().join("again.toml");
    for claim in &ledger.claims {
        let _ = claim.intact();
        let _ = claim.scope.to_string();
        Ledger::append(&path, claim).expect("a record that was read fits behind those before it");
        assert!(ledger.get(&claim.id).is_some());
    }
    if !ledger.claims.is_empty() {
        let again = Ledger::read(&path).expect("a ledger that was written is read");
        assert!(same(&again, &ledger), "{again:?} is not {ledger:?}");
    }
}

/// An artifact that a claim cites.
pub(super) fn claim_evidence(data: &[u8]) {
    place::file("answer.json", data, |path| {
        let base = path.parent().expect("a folder");
        let cited = cite(base, path).expect("a file can be cited");
        let found = look(base, &cited);
        assert_eq!(found.sha256.as_deref(), Some(cited.sha256.as_str()));
    });
}

/// `config.json` of a model; written again it says the same.
pub(super) fn config(data: &[u8]) {
    place::file("config.json", data, |path| {
        let Ok(config) = ModelConfig::read(path.parent().expect("a folder")) else { return };
        let text = serde_json::to_string(&config).expect("a configuration is printed");
        let back: ModelConfig = serde_json::from_str(&text).expect("and read again");
        assert!(same(&back, &config), "{back:?} is not {config:?}");
    });
}
