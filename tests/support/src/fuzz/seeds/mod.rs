//! Small whole inputs, made from `tests/data` and by the writers: a fuzzer starts from them, the smoke test bends them.

mod binary;
mod foreign;
mod runs;
mod text;

pub(super) use binary::{
    gguf, npy, pickle, safetensors, stats_dense, stats_torch, tensor_folder, tensor_json,
    tensor_raw, zip, zip_entries,
};
pub(super) use foreign::{
    exports, forms, llama_debug, llama_kld, llama_results, lm_eval_import, logprob_import, parquet,
    recording, tensor_import, token_texts, trtmc_import,
};
pub(super) use runs::{
    RESPONSE_KEYS, dump, keep_dump, keep_dump_tree, manifest, response_bodies, response_rows,
    responses, run,
};
pub(super) use text::{
    answers, artifact, bundle, claim_evidence, claims, config, dataset, engine_log, logprobs,
    tokens, trace,
};

/// Longest seed that is taken over: what is small is mutated more often.
const MOST: usize = 24 << 10;

/// A file of `tests/data`.
///
/// # Panics
/// Where it is missing: a test without its data must fail.
fn data(name: &str) -> Vec<u8> {
    let path = crate::data().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files of `tests/data` that end so, anywhere below a folder of it, the small ones.
fn small(below: &str, ends: &[&str]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut folders = vec![crate::data().join(below)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if ends.iter().any(|end| name.ends_with(end)) {
                found.extend(std::fs::read(&path).ok().filter(|bytes| bytes.len() <= MOST));
            }
        }
    }
    found
}

/// Texts as seeds.
fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The same, compressed.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).expect("memory takes bytes");
    encoder.finish().expect("memory takes bytes")
}
