//! `inspect` of a base file of llama-perplexity: its sizes, its tokens' ends, what its codes can tell.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_traces::llamacpp::KldFile;
use serde::Serialize;

use crate::cli::Format;
use crate::console;
use crate::exit::Status;

/// `inspect --format json` of a base file.
#[derive(Debug, Serialize)]
struct Contents {
    path: String,
    kind: &'static str,
    n_ctx: usize,
    n_vocab: usize,
    /// Chunks that the header names.
    n_chunk: usize,
    /// Whole chunks, which are read.
    chunks: usize,
    /// Positions with a record, of a chunk.
    scored: usize,
    /// Scored positions whose token is the one of the highest code.
    top_is_next: usize,
    /// Nats from the lowest code to the highest, of the widest record.
    widest_range: f32,
    /// Largest error of a decoded log-probability, in nats.
    value_error: f64,
    /// Records whose entries of code 0 may lie anywhere below.
    cut_below: usize,
    /// What is missing at the end.
    cut: Option<String>,
}

pub(super) fn execute(path: &Path, format: Format) -> anyhow::Result<Status> {
    let contents = contents(&KldFile::open(path)?)?;
    console::answer(format, &text(&contents), &contents)?;
    Ok(Status::Parity)
}

/// Reads every record once; the first that no program can have written is an error.
fn contents(file: &KldFile) -> anyhow::Result<Contents> {
    let shape = file.shape();
    let mut contents = Contents {
        path: file.path().display().to_string(),
        kind: "llama-kld",
        n_ctx: shape.n_ctx,
        n_vocab: shape.n_vocab,
        n_chunk: shape.n_chunk,
        chunks: file.chunks(),
        scored: shape.scored(),
        top_is_next: 0,
        widest_range: 0.0,
        value_error: 0.0,
        cut_below: 0,
        cut: file.cut().map(str::to_owned),
    };
    for chunk in 0..file.chunks() {
        for index in 0..shape.scored() {
            let record = file.sound_record(chunk, index)?;
            contents.widest_range = contents.widest_range.max(record.range());
            contents.value_error = contents.value_error.max(record.error());
            contents.cut_below += usize::from(record.cut_below());
            let next = file.token(chunk, shape.first() + index + 1);
            contents.top_is_next += usize::from(record.top(1).first().copied() == next);
        }
    }
    Ok(contents)
}

fn text(contents: &Contents) -> String {
    let Contents { n_ctx, n_vocab, chunks, scored, .. } = contents;
    let records = chunks * scored;
    let mut out = format!(
        "{}: base file of llama-perplexity\n{chunks} of {} chunks of {n_ctx} tokens, {scored} of each scored, vocabulary {n_vocab}\n",
        contents.path, contents.n_chunk
    );
    let _ = writeln!(
        out,
        "the next token has the highest code in {} of {records} records",
        contents.top_is_next
    );
    let _ = writeln!(
        out,
        "records span up to {:.2} nats, {} of them cut below; a log-probability is off by at most {:.2e} nats",
        contents.widest_range, contents.cut_below, contents.value_error
    );
    if let Some(cut) = &contents.cut {
        let _ = writeln!(out, "{cut}");
    }
    out
}
