//! The two sides of a comparison, and how their rows fit each other.

use lockstep_traces::TraceError;
use lockstep_traces::llamacpp::{KldFile, KldRecord, LogitRows, encode_row};

use super::report::OtherToken;

/// A side: records of a KLD base file, or rows of logits.
#[derive(Debug)]
pub enum KldSide {
    /// A KLD base file.
    Records(KldFile),
    /// Rows of logits.
    Logits(LogitRows),
}

/// Which row of one side belongs to which of the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairing {
    /// Chunks compared.
    pub chunks: usize,
    /// Chunks that the header of a file names, cut ones included.
    pub named: usize,
    /// Rows of a chunk.
    pub scored: usize,
    /// Position of the first of them.
    pub first: usize,
    /// Tokens of a chunk.
    pub n_ctx: usize,
    /// Rows are in chunks at all.
    pub in_chunks: bool,
    /// The logits have a row for every position of a chunk, and not for the scored ones only.
    pub every_position: bool,
    /// The token that follows a row is known.
    pub tokens_known: bool,
    /// The first token that is not the same.
    pub other_token: Option<OtherToken>,
    /// First tokens of chunks that differ, as they do where one side fed BOS.
    pub other_first: usize,
}

impl Pairing {
    /// How the rows of two sides fit.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] with both sizes where they do not.
    pub fn of(base: &KldSide, target: &KldSide) -> Result<Self, TraceError> {
        let misfit = |what: String| TraceError::Malformed { path: target.path(), what };
        let shape = match (base, target) {
            (KldSide::Records(file), _) | (_, KldSide::Records(file)) => Some(file),
            (KldSide::Logits(LogitRows::Run(_)), _) | (_, KldSide::Logits(LogitRows::Run(_))) => {
                None
            }
            (KldSide::Logits(one), KldSide::Logits(other)) => {
                return Self::loose(one, other).map_err(misfit);
            }
        };
        let (n_ctx, chunks, named) = match (shape, base, target) {
            (Some(file), ..) => (file.shape().n_ctx, file.chunks(), file.shape().n_chunk),
            (None, KldSide::Logits(LogitRows::Run(run)), _)
            | (None, _, KldSide::Logits(LogitRows::Run(run))) => {
                (run.n_ctx(), run.windows().len(), run.windows().len())
            }
            _ => return Err(misfit("nothing says how its rows are cut into chunks".to_owned())),
        };
        let mut pairing = Self {
            chunks,
            named,
            scored: n_ctx - 1 - n_ctx / 2,
            first: n_ctx / 2,
            n_ctx,
            in_chunks: true,
            every_position: false,
            tokens_known: true,
            other_token: None,
            other_first: 0,
        };
        for side in [base, target] {
            pairing.fit(side).map_err(misfit)?;
        }
        pairing.compare_tokens(base, target);
        Ok(pairing)
    }

    /// Two lists of rows that nothing cuts into chunks.
    fn loose(one: &LogitRows, other: &LogitRows) -> Result<Self, String> {
        let (rows, others) = (one.size(), other.size());
        if rows != others {
            return Err(format!("{rows:?} rows and entries in the base, {others:?} in the target"));
        }
        Ok(Self {
            chunks: 1,
            named: 1,
            scored: rows.0,
            first: 0,
            n_ctx: 0,
            in_chunks: false,
            every_position: false,
            tokens_known: false,
            other_token: None,
            other_first: 0,
        })
    }

    fn fit(&mut self, side: &KldSide) -> Result<(), String> {
        match side {
            KldSide::Records(file) => {
                if file.shape().n_ctx != self.n_ctx {
                    return Err(format!(
                        "chunks of {} tokens against {}: computed with another context",
                        file.shape().n_ctx,
                        self.n_ctx
                    ));
                }
                self.chunks = self.chunks.min(file.chunks());
            }
            KldSide::Logits(LogitRows::Run(run)) => {
                if run.windows().len() < self.chunks {
                    return Err(format!(
                        "{} windows of {} tokens, and the base has {} chunks",
                        run.windows().len(),
                        self.n_ctx,
                        self.chunks
                    ));
                }
                self.every_position = true;
            }
            KldSide::Logits(rows) => {
                let (found, _) = rows.size();
                let (scored, all) = (self.named * self.scored, self.named * self.n_ctx);
                let whole = [self.chunks * self.scored, self.chunks * self.n_ctx];
                // Rows of every chunk that the header names come first: a cut file lost its own rows and not the other's.
                if found == all || (found == whole[1] && found != scored) {
                    self.every_position = true;
                } else if found != scored && found != whole[0] {
                    return Err(format!(
                        "{found} rows of logits; the base has {scored} scored rows ({} chunks of {}), or {all} of all positions",
                        self.named, self.scored
                    ));
                }
            }
        }
        Ok(())
    }

    fn compare_tokens(&mut self, base: &KldSide, target: &KldSide) {
        for chunk in 0..self.chunks {
            for position in 0..self.n_ctx {
                let at = (chunk, position);
                let (Some(left), Some(right)) = (base.token(self, at), target.token(self, at))
                else {
                    continue;
                };
                if left == right {
                    continue;
                }
                // llama-perplexity feeds BOS in place of a chunk's first token and stores the token; a run has what it was fed.
                if position == 0 && self.first > 0 {
                    self.other_first += 1;
                    continue;
                }
                let (chunk, position) = (chunk as u64 + 1, position as u64);
                self.other_token = Some(OtherToken { chunk, position, base: left, target: right });
                return;
            }
        }
    }

    /// The row of `logits` for a scored row.
    fn row_number(&self, (chunk, index): (usize, usize)) -> usize {
        if self.every_position {
            chunk * self.n_ctx + self.first + index
        } else {
            chunk * self.scored + index
        }
    }

    /// The token that follows a scored row.
    pub(super) fn next_token(
        &self,
        base: &KldSide,
        target: &KldSide,
        (chunk, index): (usize, usize),
    ) -> Option<usize> {
        let at = (chunk, self.first + index + 1);
        let token = base.token(self, at).or_else(|| target.token(self, at));
        token.filter(|_| self.tokens_known).and_then(|token| usize::try_from(token).ok())
    }
}

impl KldSide {
    /// The file or folder.
    pub(super) fn path(&self) -> std::path::PathBuf {
        match self {
            Self::Records(file) => file.path().to_path_buf(),
            Self::Logits(LogitRows::Run(run)) => run.run().dir().to_path_buf(),
            Self::Logits(LogitRows::Tensor(tensor)) => tensor.path.clone(),
            Self::Logits(LogitRows::Bare(row)) => row.path().to_path_buf(),
        }
    }

    fn token(&self, pairing: &Pairing, (chunk, position): (usize, usize)) -> Option<u32> {
        match self {
            Self::Records(file) => file.token(chunk, position),
            Self::Logits(rows) => rows.token(chunk * pairing.n_ctx + position),
        }
    }

    /// The record of a scored row; `None` on a side of logits.
    pub(super) fn record(
        &self,
        (chunk, index): (usize, usize),
    ) -> Result<Option<KldRecord<'_>>, TraceError> {
        match self {
            Self::Records(file) => file.sound_record(chunk, index).map(Some),
            Self::Logits(_) => Ok(None),
        }
    }

    /// The record of a scored row; logits are coded as llama-perplexity would have stored them.
    pub(super) fn as_record<'a>(
        &'a self,
        pairing: &Pairing,
        at: (usize, usize),
        coded: &'a mut Vec<u8>,
    ) -> Result<KldRecord<'a>, TraceError> {
        if let Some(record) = self.record(at)? {
            return Ok(record);
        }
        let Self::Logits(rows) = self else { return Err(self.missing(at.0, at.1)) };
        let row = rows.row(pairing.row_number(at))?;
        if encode_row(&row, coded).is_none() {
            let (chunk, index) = at;
            return Err(TraceError::Malformed {
                path: self.path(),
                what: format!(
                    "row {index} of chunk {} has NaN or +inf and cannot be a base",
                    chunk + 1
                ),
            });
        }
        KldRecord::of(coded, row.len()).ok_or_else(|| self.missing(at.0, at.1))
    }

    /// The logits of a scored row, of the vocabulary of the base; `None` on a side of records.
    pub(super) fn logits(
        &self,
        pairing: &Pairing,
        at: (usize, usize),
        n_vocab: usize,
    ) -> Result<Option<Vec<f32>>, TraceError> {
        let misfit = |found: usize| TraceError::Malformed {
            path: self.path(),
            what: format!("a vocabulary of {found} against {n_vocab} of the base"),
        };
        match self {
            Self::Records(file) if file.shape().n_vocab != n_vocab => {
                Err(misfit(file.shape().n_vocab))
            }
            Self::Records(_) => Ok(None),
            Self::Logits(rows) => {
                let row = rows.row(pairing.row_number(at))?;
                if row.len() == n_vocab { Ok(Some(row)) } else { Err(misfit(row.len())) }
            }
        }
    }

    pub(super) fn missing(&self, chunk: usize, index: usize) -> TraceError {
        TraceError::Malformed {
            path: self.path(),
            what: format!("row {index} of chunk {} is not there", chunk + 1),
        }
    }
}
