//! `diff tokens` and `check tokens`: ids, pieces and texts before any logit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use lockstep_diff::tokens::{self, IdCheck, OutsideId, Sizes, TokenDiff, TokenSide};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::tokens::{TokenFile, Vocabulary, locate, read, read_vocabulary};
use lockstep_traces::{ModelConfig, TraceError, Verdict};
use serde_json::json;

use crate::cli::{CheckTokensArgs, DiffTokensArgs, Format};
use crate::console;
use crate::exit::{Status, usage};

/// `diff tokens`.
pub(crate) fn compare(args: &DiffTokensArgs, format: Format) -> anyhow::Result<Status> {
    let (left, right) = (read(&args.baseline)?, read(&args.target)?);
    let bos = args.bos.or(left.bos).or(right.bos);
    let has_ids = left.ids.is_some() || right.ids.is_some();
    let mut origin = None;
    let vocabulary = match (&args.pieces, &args.tokenizer) {
        (Some(pieces), _) if has_ids => Some(read_vocabulary(pieces)?),
        (Some(pieces), _) => {
            origin = Some(side(pieces, read(pieces)?, None));
            None
        }
        (None, Some(path)) => Some(vocabulary(path, [&left, &right])?),
        (None, None) => None,
    };
    let left = side(&args.baseline, left, vocabulary.as_ref());
    let right = side(&args.target, right, vocabulary.as_ref());
    let answer = tokens::compare(&left, &right, bos, origin.as_ref());
    console::answer(format, &text(&answer), &answer)?;
    Ok(Status::of(&answer.verdict))
}

/// A side, with the bytes of its tokens where the vocabulary knows all of them.
fn side(label: &str, file: TokenFile, vocabulary: Option<&Vocabulary>) -> TokenSide {
    let spelled = || {
        let (ids, vocabulary) = file.ids.as_ref().zip(vocabulary)?;
        ids.iter().map(|id| vocabulary.bytes(*id)).collect::<Option<Vec<_>>>()
    };
    let pieces = file.pieces.clone().or_else(spelled);
    TokenSide {
        label: label.to_owned(),
        pieces,
        text: file.text,
        ids: file.ids,
        synthetic_blank: file.synthetic_blank,
    }
}

fn tokenizer(path: &Path) -> anyhow::Result<Tokenizer> {
    let dir = if path.is_file() { path.parent().unwrap_or(path) } else { path };
    Tokenizer::read(dir)?
        .ok_or_else(|| usage(format!("--tokenizer {}: no tokenizer.json there", path.display())))
}

/// Pieces of the ids that the two sides have.
fn vocabulary(path: &Path, sides: [&TokenFile; 2]) -> anyhow::Result<Vocabulary> {
    let tokenizer = tokenizer(path)?;
    let ids = sides.into_iter().filter_map(|side| side.ids.as_ref()).flatten();
    let pieces: BTreeMap<u32, String> =
        ids.filter_map(|id| Some((*id, tokenizer.token(*id)?))).collect();
    Ok(Vocabulary::new(pieces))
}

fn text(answer: &TokenDiff) -> String {
    let mut out = format!("{} against {}: {}\n", answer.left, answer.right, answer.verdict.word());
    let _ = writeln!(out, "{}", answer.summary);
    for finding in &answer.findings {
        let _ = writeln!(out, "  ! {}: {}", finding.name, finding.title);
    }
    for region in &answer.regions {
        let _ = writeln!(
            out,
            "  characters {}..{} {:?}: {:?} against {:?}",
            region.first_char,
            region.last_char,
            region.text,
            region.left_pieces,
            region.right_pieces
        );
    }
    for check in &answer.rebuilt {
        let word = if check.right { "right" } else { "WRONG" };
        let _ = writeln!(
            out,
            "  {}: {:?} is {word}; the pieces give {:?}",
            check.label, check.text, check.expected
        );
    }
    for limit in &answer.limits {
        let _ = writeln!(out, "  not shown: {limit}");
    }
    out
}

/// `check tokens`.
pub(crate) fn check(args: &CheckTokensArgs, format: Format) -> anyhow::Result<Status> {
    let (path, pointer) = locate(&args.input);
    if pointer.is_some() {
        return sequence(args, &read(&args.input)?, format);
    }
    match lockstep_traces::load(&path) {
        Ok(loaded) => {
            let answer = with_sizes(args, |sizes| tokens::check_ids(&loaded.steps, sizes))?;
            if let Some(first) = answer.beyond_logits.first() {
                return Err(TraceError::Malformed { path, what: beyond(first, &answer) }.into());
            }
            console::answer(format, &ids_text(&args.input, &answer), &answer)?;
            Ok(Status::of(&answer.verdict))
        }
        Err(error) => match read(&args.input) {
            Ok(file) if file.ids.is_some() => sequence(args, &file, format),
            _ => Err(error.into()),
        },
    }
}

fn beyond(first: &OutsideId, answer: &IdCheck) -> String {
    format!(
        "id {} at position {} of {} lies beyond the {} logits: the file is damaged or another model's",
        first.id,
        first.position,
        first.sample_id,
        answer.logits.unwrap_or(0)
    )
}

fn with_sizes<T>(args: &CheckTokensArgs, check: impl FnOnce(&Sizes<'_>) -> T) -> anyhow::Result<T> {
    let mut logits = args.logits_width;
    if let Some(path) = &args.tokenizer {
        let tokenizer = tokenizer(path)?;
        let dir = if path.is_file() { path.parent().unwrap_or(path) } else { path };
        if logits.is_none() && dir.join("config.json").is_file() {
            logits = ModelConfig::read(dir)?.vocab_size.and_then(|size| u32::try_from(size).ok());
        }
        let known = |id: u32| tokenizer.token(id).is_some();
        return Ok(check(&Sizes {
            known: &known,
            tokenizer: Some(tokenizer.size() as u64),
            logits,
        }));
    }
    let Some(size) = args.tokenizer_size else {
        return Err(usage(
            "what the tokenizer knows is needed: --tokenizer PATH or --tokenizer-size N",
        ));
    };
    if logits.is_some_and(|width| width < size) {
        return Err(usage("--logits-width is smaller than --tokenizer-size"));
    }
    let known = |id: u32| id < size;
    Ok(check(&Sizes { known: &known, tokenizer: Some(u64::from(size)), logits }))
}

fn ids_text(path: &str, answer: &IdCheck) -> String {
    let mut out = format!("{path}: {}\n{}\n", answer.verdict.word(), answer.summary);
    let lists = [
        ("chosen", &answer.chosen_outside),
        ("fed", &answer.fed_outside),
        ("among the largest logits, harmless there and without a text", &answer.listed_outside),
    ];
    for (name, list) in lists {
        for outside in list {
            let _ = writeln!(
                out,
                "  id {} {name}: {} rows, first at position {} of {}",
                outside.id, outside.rows, outside.position, outside.sample_id
            );
        }
    }
    out
}

/// A token sequence by itself: its start token.
fn sequence(args: &CheckTokensArgs, file: &TokenFile, format: Format) -> anyhow::Result<Status> {
    let Some(ids) = &file.ids else {
        return Err(usage(format!("{}: no ids there", args.input)));
    };
    let bos = args.bos.or(file.bos);
    let doubled = tokens::doubled_start(ids, bos);
    let verdict = match (&doubled, ids.is_empty()) {
        (Some(_), _) => Verdict::Diverged,
        (None, true) => Verdict::Incomparable { why: "the sequence is empty".to_owned() },
        (None, false) => Verdict::Identical,
    };
    let summary = match &doubled {
        Some(doubled) => format!("starts with id {} {} times", doubled.id, doubled.times),
        None => format!("{} ids, no start token stands twice", ids.len()),
    };
    let answer = json!({"input": args.input, "tokens": ids.len(), "bos": bos, "doubled_start": doubled, "verdict": verdict, "summary": summary});
    console::answer(format, &format!("{}: {summary}", args.input), &answer)?;
    Ok(Status::of(&verdict))
}
