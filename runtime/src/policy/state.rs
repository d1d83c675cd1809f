//! What a policy remembers of one sequence.

use crate::select::NoiseGenerator;

/// One sequence as its cache policy sees it.
#[derive(Debug, Clone)]
pub struct PolicyState {
    /// P.
    pub(super) prompt_len: usize,
    /// N: tokens appended so far, which is the position of the next one.
    pub(super) fed: usize,
    /// Live cache rows T.
    pub(super) rows: usize,
    /// Prompt rows among them in KV head 0.
    pub(super) prompt_rows: usize,
    /// Compactions so far.
    pub(super) ordinal: u32,
    /// N at the last compaction.
    pub(super) compacted_at: Option<usize>,
    /// Number of this sequence in the stream of the `random` policy.
    pub(super) stream: u64,
    /// Noise of rule set `hf`; advances from compaction to compaction.
    pub(super) noise: Option<NoiseGenerator>,
}

impl PolicyState {
    /// N: position of the next token (its RoPE index).
    #[must_use]
    pub const fn absolute_position(&self) -> usize {
        self.fed
    }

    /// Live cache rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Prompt tokens not yet appended.
    #[must_use]
    pub const fn prompt_left(&self) -> usize {
        self.prompt_len.saturating_sub(self.fed)
    }

    /// P.
    pub(crate) const fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The generator of `hf`'s noise.
    pub(crate) const fn noise(&self) -> Option<&NoiseGenerator> {
        self.noise.as_ref()
    }

    /// Compactions so far.
    #[must_use]
    pub const fn compactions(&self) -> u32 {
        self.ordinal
    }

    /// Counts a compaction as done.
    pub(super) fn settle(&mut self, due: &Compaction, kept: usize, prompt_rows: usize) {
        self.rows = kept;
        self.prompt_rows = prompt_rows;
        self.ordinal = due.ordinal;
        self.compacted_at = Some(self.fed);
    }
}

/// A compaction that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    /// 1-based.
    pub ordinal: u32,
    /// N: position of the next token.
    pub absolute_position: u32,
    /// R: round start of the score.
    pub round_start: u32,
    /// Rows before, T.
    pub rows: usize,
    /// Rows wanted afterwards.
    pub keep: usize,
}
