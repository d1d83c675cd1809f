//! What the Python package `lockstep_trace` records of a live engine: a folder that becomes a run.
//!
//! ```text
//! DIR/trace.jsonl                                  lines of JSON, appended while the engine runs
//! DIR/tensors/<sample>/step_<position:07>.safetensors    dumps of fed tokens, as in a run (`dump`)
//! ```
//!
//! | line | keys |
//! |---|---|
//! | first | `lockstep_trace` (schema, `"1.0"`), `producer` (`name`, `version`), `recorder`, `created_at`, `model` (`path`, `architecture`, `config_sha256`, `weights_sha256`, `tokenizer_sha256`), `dtype`, `cache_dtype`, `device`, `top_k`, `hash_seeds` (two of 16 hex digits), `settings` (key to `value` and `source`), `remarks` |
//! | `"t":"setting"` | `key`, `value`, `source`: a value that became known later |
//! | `"t":"step"` | `sample`, `position`, `phase` (`prompt`, `decode`), `token` (fed), `next` (chosen, or null), `rows` (before and after), `rope` (or null); and where the engine computed this row's logits: `argmax`, `top_ids`, `top_logits`, `logsumexp` (or null), `finite`, `hash` (two of 16 hex digits) |
//! | `"t":"sample"` | `sample`, `prompt_ids`, `prompt_ids_sha256`, `generated_ids`, `text`, `finish`, `prefill_seconds`, `decode_seconds` |
//! | `"t":"end"` | `steps`, `samples`: counts of the lines before |
//!
//! Numbers of `top_logits` have nine significant digits, which give f32 bits back; NaN and infinities are the words
//! `"NaN"`, `"Infinity"`, `"-Infinity"`. Rows of one sample come in order of position; samples of a batch interleave.
//! A file without its `end` line, or whose last line is cut, is a recording that was stopped: an incomplete run.

mod import;
mod line;
mod read;
#[cfg(test)]
mod tests;

pub use import::{import_recorded, is_recorded, load_recorded};
