//! Run directories, dumps and caches of responses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use lockstep_traces::responses::{Configuration, ResponseCache};
use lockstep_traces::store::write_safetensors;
use lockstep_traces::{DumpFile, Manifest, RunReader, StepColumn, StepQuery, TensorRef, load};

use super::{place, same, seal, seeds};

/// A dump: every tensor of it, and the same file written again.
pub(super) fn dump(data: &[u8]) {
    place::tree(data, |dir| {
        let Ok(file) = DumpFile::open(&dir.join("compaction_0001.safetensors")) else { return };
        let names: Vec<String> = file.names().map(str::to_owned).collect();
        let mut tensors = Vec::new();
        for name in &names {
            assert!(file.has(name));
            let Ok(view) = file.get(name) else { continue };
            assert_eq!(view.bytes.len(), view.len() * view.dtype.size(), "{name}");
            let _ = (view.to_f32(), view.to_f64(), view.to_i32(), view.is_empty());
            assert!(view.expect(view.dtype, &view.shape.clone()).is_ok());
            let shape = view.shape.clone();
            tensors.push(TensorRef {
                name: name.clone(),
                dtype: view.dtype,
                shape,
                data: view.bytes,
            });
        }
        if tensors.len() < names.len() {
            return;
        }
        let again = dir.join("again.safetensors");
        let owned: Vec<_> = tensors.iter().map(TensorRef::to_tensor).collect();
        if write_safetensors(&again, &BTreeMap::new(), &owned).is_ok() {
            let back = DumpFile::open(&again).expect("a dump that was written opens");
            assert!(back.names().eq(names.iter().map(String::as_str)));
            for tensor in &tensors {
                let view = back.get(&tensor.name).expect("its tensor is there");
                assert_eq!(
                    (view.dtype, &view.shape, view.bytes),
                    (tensor.dtype, &tensor.shape, tensor.data)
                );
            }
        }
    });
}

/// `manifest.json`; written again it says the same.
pub(super) fn manifest(data: &[u8]) {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(data) else { return };
    let _ = manifest.encoding.exact();
    let text = serde_json::to_string(&manifest).expect("a manifest is printed");
    let back: Manifest = serde_json::from_str(&text).expect("and read again");
    assert!(same(&back, &manifest), "{back:?} is not {manifest:?}");
    let _ = Configuration::of(&manifest);
}

/// A run directory as it stands.
pub(super) fn run(data: &[u8]) {
    place::tree(data, every_row);
}

/// A run directory whose checksums are made right first, so that the decoders behind them see the bytes.
pub(super) fn run_behind_sums(data: &[u8]) {
    let mut files = place::unpack(data);
    for (name, bytes) in &mut files {
        if name.ends_with(".arrows") {
            seal::stream(bytes);
        } else if name == "manifest.json"
            && let Ok(mut manifest) = serde_json::from_slice::<serde_json::Value>(bytes)
            && let Some(tables) = manifest.get_mut("tables")
        {
            *tables = serde_json::json!({});
            *bytes = serde_json::to_vec(&manifest).unwrap_or_default();
        }
    }
    let home = place::folder();
    place::lay(home.path(), &files);
    every_row(home.path());
}

pub(super) fn every_row(dir: &Path) {
    let Ok(run) = RunReader::open(dir) else { return };
    let _ = (run.samples(), run.events(None), run.events(Some("a")), run.dumps());
    let all = run.steps(&StepQuery::default());
    if let Ok(steps) = &all {
        for row in 0..steps.len {
            let _ = steps.row(row);
            let _ = steps.sample_id(row);
            assert_eq!(steps.ids_of(row).len(), steps.logits_of(row).len());
        }
    }
    let first = run.sample_ids().ok().and_then(|ids| ids.first().cloned());
    let some = StepQuery {
        sample_id: first,
        positions: Some(1..=2),
        columns: Some(vec![StepColumn::Argmax, StepColumn::TopLogits]),
    };
    if let (Ok(some), Ok(all)) = (run.steps(&some), &all) {
        assert!(some.len <= all.len, "a query gives more rows than there are");
    }
    for id in run.dumps().unwrap_or_default() {
        if let Ok(Some(file)) = run.dump(&id) {
            for name in file.names() {
                let _ = file.get(name);
            }
        }
    }
    let _ = load(dir);
}

/// The bodies of a cache of responses, one a line.
pub(super) fn responses(data: &[u8]) {
    cache(&seal::responses(data));
}

/// The Arrow stream of the step rows inside of one response.
pub(super) fn response_rows(data: &[u8]) {
    static TEMPLATE: LazyLock<String> =
        LazyLock::new(|| String::from_utf8(seeds::response_bodies()).expect("JSON is text"));
    let mut lines = TEMPLATE.lines();
    let (Some(header), Some(response)) = (lines.next(), lines.next()) else {
        panic!("a cache has a header and a response")
    };
    let mut response: serde_json::Value = serde_json::from_str(response).expect("JSON");
    response["steps"] = seal::base64(data).into();
    cache(&seal::responses(format!("{header}\n{response}\n").as_bytes()));
}

fn cache(bytes: &[u8]) {
    place::file("cache.jsonl", bytes, |path| {
        let open = || ResponseCache::open(path, &Configuration::default(), None);
        let Ok(mut cache) = open() else { return };
        let (keys, rows) = (seeds::RESPONSE_KEYS, cache.len());
        let found: Vec<_> = keys.iter().filter_map(|key| cache.get(key).ok().flatten()).collect();
        drop(cache);
        let again = path.with_file_name("again.jsonl");
        let mut copy =
            ResponseCache::open(&again, &Configuration::default(), None).expect("a new cache");
        for response in &found {
            copy.append(response).expect("a response that was read is written");
            let back = copy.get(&response.key).expect("it is read again").expect("it is there");
            assert!(same(&back, response), "{back:?} is not {response:?}");
        }
        let reopened = open().expect("a cache that opened opens again");
        assert_eq!(reopened.len(), rows);
    });
}
