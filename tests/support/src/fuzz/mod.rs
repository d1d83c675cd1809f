//! Bodies of the fuzz targets: one function for each reader of foreign input.
//!
//! A body may be given any bytes. It must not panic, takes bounded time and memory, reads what a reader gives to its last value, and
//! where the format has a writer holds what comes back against what was read. `fuzz/` calls the bodies from libFuzzer, the smoke test
//! `tests/fuzz` from ordinary Rust over seeds and their mutations. Bodies for readers above the traces crate stand in
//! `tests/fuzz/above`.

mod documents;
mod imports;
pub mod mutate;
pub mod place;
mod runs;
pub mod seal;
mod seeds;
mod tensors;
mod traces;

/// One reader as a fuzzer calls it.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name, as `LOCKSTEP_FUZZ_TARGET` and the corpus folder spell it.
    pub name: &'static str,
    /// Reads the bytes.
    pub body: fn(&[u8]),
    /// Small whole inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Readers of the traces crate.
pub const TARGETS: &[Target] = &[
    Target { name: "trace", body: traces::trace, seeds: seeds::trace },
    Target { name: "trace_import", body: traces::trace_import, seeds: seeds::trace },
    Target { name: "keep_dump", body: traces::keep_dump, seeds: seeds::keep_dump },
    Target {
        name: "keep_dump_import",
        body: traces::keep_dump_import,
        seeds: seeds::keep_dump_tree,
    },
    Target { name: "logprobs", body: documents::logprobs, seeds: seeds::logprobs },
    Target { name: "tokens", body: documents::tokens, seeds: seeds::tokens },
    Target { name: "answers", body: documents::answers, seeds: seeds::answers },
    Target { name: "dataset", body: documents::dataset, seeds: seeds::dataset },
    Target { name: "artifact", body: documents::artifact, seeds: seeds::artifact },
    Target { name: "bundle", body: documents::bundle, seeds: seeds::bundle },
    Target { name: "engine_log", body: documents::engine_log, seeds: seeds::engine_log },
    Target { name: "claims", body: documents::claims, seeds: seeds::claims },
    Target {
        name: "claim_evidence",
        body: documents::claim_evidence,
        seeds: seeds::claim_evidence,
    },
    Target { name: "config", body: documents::config, seeds: seeds::config },
    Target { name: "gguf", body: tensors::gguf, seeds: seeds::gguf },
    Target { name: "npy", body: tensors::npy, seeds: seeds::npy },
    Target { name: "zip", body: tensors::zip, seeds: seeds::zip },
    Target { name: "zip_entries", body: tensors::zip_entries, seeds: seeds::zip_entries },
    Target { name: "pickle", body: tensors::pickle, seeds: seeds::pickle },
    Target { name: "safetensors", body: tensors::safetensors, seeds: seeds::safetensors },
    Target { name: "tensor_json", body: tensors::json, seeds: seeds::tensor_json },
    Target { name: "tensor_raw", body: tensors::raw, seeds: seeds::tensor_raw },
    Target { name: "tensor_folder", body: tensors::folder, seeds: seeds::tensor_folder },
    Target { name: "stats_dense", body: tensors::stats_dense, seeds: seeds::stats_dense },
    Target { name: "stats_torch", body: tensors::stats_torch, seeds: seeds::stats_torch },
    Target { name: "dump", body: runs::dump, seeds: seeds::dump },
    Target { name: "manifest", body: runs::manifest, seeds: seeds::manifest },
    Target { name: "run", body: runs::run, seeds: seeds::run },
    Target { name: "run_behind_sums", body: runs::run_behind_sums, seeds: seeds::run },
    Target { name: "responses", body: runs::responses, seeds: seeds::responses },
    Target { name: "response_rows", body: runs::response_rows, seeds: seeds::response_rows },
    Target { name: "exports", body: imports::exports, seeds: seeds::exports },
    Target { name: "llama_kld", body: imports::llama_kld, seeds: seeds::llama_kld },
    Target { name: "llama_results", body: imports::llama_results, seeds: seeds::llama_results },
    Target { name: "llama_debug", body: imports::llama_debug, seeds: seeds::llama_debug },
    Target { name: "parquet", body: imports::parquet, seeds: seeds::parquet },
    Target { name: "recording", body: imports::recording, seeds: seeds::recording },
    Target { name: "forms", body: imports::forms, seeds: seeds::forms },
    Target { name: "token_texts", body: imports::token_texts, seeds: seeds::token_texts },
    Target { name: "logprob_import", body: imports::logprob_import, seeds: seeds::logprob_import },
    Target { name: "lm_eval_import", body: imports::lm_eval_import, seeds: seeds::lm_eval_import },
    Target { name: "trtmc_import", body: imports::trtmc_import, seeds: seeds::trtmc_import },
    Target { name: "tensor_import", body: imports::tensor_import, seeds: seeds::tensor_import },
];

/// Equal, or equal in every digit where a NaN stands, which is equal to nothing.
fn same<T: PartialEq + std::fmt::Debug>(left: &T, right: &T) -> bool {
    left == right || format!("{left:?}") == format!("{right:?}")
}
