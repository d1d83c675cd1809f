//! A run with full logits becomes a KLD base file.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use super::encode::encode_row;
use super::kld::{KldShape, MAGIC};
use super::windows::{RunWindows, Window};
use crate::TraceError;
use crate::store::fail::{io, malformed};
use crate::store::replace_file;

/// How a run is cut.
#[derive(Debug, Clone, Copy, Default)]
pub struct KldExport {
    /// Tokens of a chunk; without it each sample is one chunk.
    pub chunk_tokens: Option<usize>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KldWritten {
    /// Sizes in the header.
    pub shape: KldShape,
    /// What was left out, one line each.
    pub remarks: Vec<String>,
}

/// Writes `out` as `llama-perplexity --save-all-logits` does, by temporary file and rename. One row of logits is in memory at a time.
///
/// # Errors
/// [`TraceError::Malformed`] where the run is incomplete, rows miss their logits, have another vocabulary than the first, or hold what
/// no code can (NaN, +inf), and where a token is no id of it; as [`RunWindows::open`].
pub fn export_kld(dir: &Path, options: KldExport, out: &Path) -> Result<KldWritten, TraceError> {
    let run = RunWindows::open(dir, options.chunk_tokens)?;
    if !run.run().is_complete() {
        return Err(malformed(
            dir,
            "the run is incomplete; finish it before it becomes a base file",
        ));
    }
    let first = run.n_ctx() / 2;
    let n_vocab = run.row(0, first)?.len();
    let shape = KldShape { n_ctx: run.n_ctx(), n_vocab, n_chunk: run.windows().len() };
    replace_file(out, |file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write_header(&mut file, dir, out, shape, run.windows())?;
        let mut record = Vec::new();
        for window in 0..shape.n_chunk {
            for index in 0..shape.scored() {
                record.clear();
                encode(&run, (window, first + index), n_vocab, &mut record)?;
                file.write_all(&record).map_err(io(out))?;
            }
        }
        file.flush().map_err(io(out))
    })?;
    let mut remarks = run.remarks().to_vec();
    if shape.n_chunk * shape.scored() < 100 {
        remarks.push(
            "llama-perplexity --kl-divergence prints no statistics for fewer than 100 scored tokens".to_owned(),
        );
    }
    Ok(KldWritten { shape, remarks })
}

fn write_header(
    file: &mut BufWriter<&mut File>,
    dir: &Path,
    out: &Path,
    shape: KldShape,
    windows: &[Window],
) -> Result<(), TraceError> {
    let number = |value: usize| {
        i32::try_from(value)
            .map_err(|_| malformed(dir, format!("{value} does not fit the file's 32-bit sizes")))
    };
    let mut header = MAGIC.to_vec();
    for size in [shape.n_ctx, shape.n_vocab, shape.n_chunk] {
        header.extend(number(size)?.to_le_bytes());
    }
    for window in windows {
        for token in &window.tokens {
            if usize::try_from(*token).map_or(true, |token| token >= shape.n_vocab) {
                return Err(malformed(
                    dir,
                    format!(
                        "sample `{}`: token {token} is not known or is no id of the {} logits",
                        window.sample_id, shape.n_vocab
                    ),
                ));
            }
            header.extend(token.to_le_bytes());
        }
        file.write_all(&header).map_err(io(out))?;
        header.clear();
    }
    Ok(())
}

fn encode(
    run: &RunWindows,
    (window, position): (usize, usize),
    n_vocab: usize,
    record: &mut Vec<u8>,
) -> Result<(), TraceError> {
    let row = run.row(window, position)?;
    let fault = |what: String| {
        let sample = run.windows().get(window).map_or("", |window| window.sample_id.as_str());
        let start = run.windows().get(window).map_or(0, |window| window.start);
        let at = usize::try_from(start).unwrap_or(0) + position;
        malformed(run.run().dir(), format!("sample `{sample}`, position {at}: {what}"))
    };
    if row.len() != n_vocab {
        return Err(fault(format!("{} logits, and the first row has {n_vocab}", row.len())));
    }
    match encode_row(&row, record) {
        Some(_) => Ok(()),
        None => Err(fault(
            "logits with NaN, +inf or values beyond 2^27, which no code can hold".to_owned(),
        )),
    }
}
