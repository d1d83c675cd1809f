//! Checks of loose tensor files that belong to no run: one compaction by its caches before and after, and context logits by the prompt
//! that they belong to.

mod compaction;
mod logits;
mod values;

pub use compaction::{CompactionSpec, KeyState, LooseCompaction, RopeSpec, RopeStyle, compaction};
pub use logits::{ContextLogits, LogitsSpec, ScoredToken, context_logits};
pub use values::numbers;
