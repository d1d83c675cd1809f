//! lm-eval (EleutherAI's lm-evaluation-harness): `samples_<task>_<time>.jsonl`, read and written.
//!
//! One row for each document and filter: `doc_id, doc, target, arguments{gen_args_N{arg_0, arg_1}}, resps, filtered_resps, filter,
//! metrics, doc_hash, prompt_hash, target_hash`, then the metrics' values. Checked against files that lm_eval 0.4.13 wrote.

mod export;
mod import;
mod results;

pub use export::export_samples;
pub use import::{Import, KIND, import_samples, recognised};
