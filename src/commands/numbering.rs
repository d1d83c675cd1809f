//! Two traces brought to one numbering of tokens, where the ids of one only number the texts of its run.

use std::collections::BTreeMap;

use lockstep_diff::numbering::{Numbering, Renumbered};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::limits::TokenIds;
use lockstep_traces::tokens::Vocabulary;

use super::inputs::Trace;
use crate::exit::inconclusive;

/// Brings both sides to one numbering; what that leaves open comes back, one line each. Nothing is done where neither side's ids
/// number texts, or a side knows no token at all.
pub(crate) fn join(
    left: &mut Trace,
    right: &mut Trace,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<Vec<String>> {
    let ids = [&*left, &*right].map(|trace| trace.loaded.manifest.limits.token_ids);
    if ids.contains(&TokenIds::Nothing) || !ids.contains(&TokenIds::Invented) {
        return Ok(Vec::new());
    }
    let lines = if ids == [TokenIds::Invented; 2] {
        let mut numbering = Numbering::of_texts(left.texts()?);
        numbering.extend(right.texts()?);
        let done = [number(left, &numbering)?, number(right, &numbering)?];
        left.names = numbering.names();
        right.names = numbering.names();
        let unknown = done.iter().map(|side| side.unknown).sum::<u64>();
        let mut lines = vec![
            "token ids of both sides number texts: tokens are equal where their bytes are"
                .to_owned(),
        ];
        if unknown > 0 {
            lines.push(format!("{unknown} ids stand for no certain token and equal nothing"));
        }
        lines
    } else {
        let (invented, other) = if ids[0] == TokenIds::Invented {
            (&mut *left, &mut *right)
        } else {
            (&mut *right, &mut *left)
        };
        with_tokenizer(invented, other, tokenizer)?
    };
    left.joint = true;
    right.joint = true;
    Ok(lines)
}

fn number(trace: &mut Trace, numbering: &Numbering) -> anyhow::Result<Renumbered> {
    let texts = trace.texts()?.clone();
    Ok(numbering.texts(&texts, &mut trace.loaded.steps, &mut trace.samples))
}

fn with_tokenizer(
    invented: &mut Trace,
    other: &mut Trace,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<Vec<String>> {
    let tokenizer = tokenizer.ok_or_else(|| {
        inconclusive(format!(
            "{} gives texts and no token ids, {} gives ids: give --model, whose tokenizer says which text an id is",
            invented.label, other.label
        ))
    })?;
    let numbering = of_tokenizer(tokenizer);
    let texts = number(invented, &numbering)?;
    let ids = numbering.ids(&mut other.loaded.steps, &mut other.samples);
    let mut lines = vec![format!(
        "tokens of {} are texts and were held against the vocabulary by their bytes",
        invented.label
    )];
    if texts.ambiguous + ids.ambiguous > 0 {
        lines.push(format!(
            "{} texts here stand for several ids of the vocabulary and count as the lowest of them",
            texts.ambiguous.max(ids.ambiguous)
        ));
    }
    if texts.unknown > 0 {
        lines.push(format!(
            "{} texts of {} are no token of the vocabulary and equal nothing",
            texts.unknown, invented.label
        ));
    }
    Ok(lines)
}

/// Ids by the bytes of the pieces that the tokenizer has.
fn of_tokenizer(tokenizer: &Tokenizer) -> Numbering {
    let size = u32::try_from(tokenizer.size()).unwrap_or(u32::MAX);
    let pieces: BTreeMap<u32, String> =
        (0..size).filter_map(|id| Some((id, tokenizer.token(id)?))).collect();
    let vocabulary = Vocabulary::new(pieces);
    Numbering::of_vocabulary(size, &|id| vocabulary.bytes(id))
}
