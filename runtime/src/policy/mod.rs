//! Cache policies: when rows are dropped, and which.
//!
//! A [`Policy`] is resolved once for a run; a [`PolicyState`] follows one sequence. The policy counts rows and positions itself,
//! the engine tells it what it appended and moves the rows that it is told to keep:
//!
//! ```text
//! let mut state = policy.start(prompt_len, sample_id);
//! // prompt: feed `chunk` tokens in one forward, or fewer
//! while state.prompt_left() > 0 {
//!     if let Some(due) = policy.due_before_forward(&state)? { compact(due) }
//!     let chunk = policy.prompt_chunk(&state);         // 0: the cache is full (FinishReason::CacheFull)
//!     forward(chunk);  policy.appended(&mut state, chunk);
//!     if let Some(due) = policy.due_after_append(&state)? { compact(due) }
//! }
//! // each decode row
//! if let Some(due) = policy.due_before_forward(&state)? { compact(due) }
//! if !policy.has_room(&state) { cache full }
//! forward(1);  policy.appended(&mut state, 1);
//! if let Some(due) = policy.due_after_append(&state)? { compact(due) }
//!
//! compact(due): let selection = policy.choose(&mut state, &due, &cache_view, want_stages)?;
//!               gather K, V and positions of every layer and KV head by selection.keep.rows(layer, kv_head)
//!               EventRow { ordinal: due.ordinal, absolute_position: due.absolute_position, round_start: selection.round_start,
//!                          rows_before: due.rows, rows_after: selection.keep.len(), .. }
//! ```
//!
//! The new row's RoPE index is `state.absolute_position()` before `appended`; compaction never changes it.

mod control;
mod lifecycle;
mod resolved;
mod state;

#[cfg(test)]
pub(crate) mod golden;
#[cfg(test)]
mod tests;

pub use resolved::{Policy, Setup};
pub use state::{Compaction, PolicyState};
