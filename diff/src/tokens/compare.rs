//! Two token sequences: ids first, then text, before any logit is looked at.

use lockstep_traces::Verdict;
use serde::Serialize;

use super::regions::{Region, regions};
use crate::report::{TokenOp, TokenOpKind};

/// One side as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenSide {
    /// Name to show.
    pub label: String,
    /// Ids.
    pub ids: Option<Vec<u32>>,
    /// Bytes of each token.
    pub pieces: Option<Vec<Vec<u8>>>,
    /// Text.
    pub text: Option<String>,
    /// The pieces are of a tokenizer that puts one blank before a text and takes it away again.
    pub synthetic_blank: bool,
}

impl TokenSide {
    /// The text: as given, else put together from the pieces.
    fn whole(&self) -> Option<String> {
        let joined = || {
            self.pieces
                .as_ref()
                .map(|pieces| String::from_utf8_lossy(&pieces.concat()).into_owned())
        };
        self.text.clone().or_else(joined)
    }

    fn tokens(&self) -> Option<usize> {
        self.ids.as_ref().map(Vec::len).or_else(|| self.pieces.as_ref().map(Vec::len))
    }
}

/// A start token that stands twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Doubled {
    /// Its id.
    pub id: u32,
    /// How often it stands at the front.
    pub times: usize,
}

/// The start token of a sequence, where it stands more than once at the front. With `bos` only that id counts; two
/// different special tokens are no doubling.
#[must_use]
pub fn doubled_start(ids: &[u32], bos: Option<u32>) -> Option<Doubled> {
    let id = *ids.first()?;
    let times = ids.iter().take_while(|other| **other == id).count();
    (times > 1 && bos.is_none_or(|bos| bos == id)).then_some(Doubled { id, times })
}

/// Tokens that one side has and the other has not, everything else being equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inserted {
    /// `left` or `right`: the side that has them.
    pub side: String,
    /// Index on that side at which the first of them stands.
    pub index: usize,
    /// They.
    pub ids: Vec<u32>,
    /// Equal tokens on both sides.
    pub equal: usize,
    /// By how much every later position of that side is shifted.
    pub shift: usize,
    /// They repeat the start token.
    pub doubled_start: bool,
}

/// Something that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenFinding {
    /// Stable name: `doubled_start`, `inserted`, `same_text_other_ids`, `ids_differ`, `text_differs`, `leading_blanks`.
    pub name: String,
    /// One line for people.
    pub title: String,
}

/// Answer of a comparison of two token sequences.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenDiff {
    /// Left.
    pub left: String,
    /// Right.
    pub right: String,
    /// Tokens on the left and on the right.
    pub tokens: (Option<usize>, Option<usize>),
    /// Ids are equal; `null` where a side has none.
    pub ids_equal: Option<bool>,
    /// Texts are equal; `null` where a side has none. Does not imply equal ids.
    pub text_equal: Option<bool>,
    /// Characters of the text on the left and on the right.
    pub characters: (Option<usize>, Option<usize>),
    /// First token that differs.
    pub first_token: Option<usize>,
    /// First character that differs, or at which the tokens of an equal text are cut otherwise.
    pub first_char: Option<usize>,
    /// Stretches of the id difference.
    pub ops: Vec<TokenOp>,
    /// One side has tokens more, and nothing else differs.
    pub inserted: Option<Inserted>,
    /// The left starts with one token twice.
    pub left_doubled: Option<Doubled>,
    /// The right does.
    pub right_doubled: Option<Doubled>,
    /// Stretches of an equal text that are cut into other tokens.
    pub regions: Vec<Region>,
    /// Texts without tokens, held against the pieces that they come from.
    pub rebuilt: Vec<TextCheck>,
    /// Per-token log-probabilities of the two sides speak of the same tokens.
    pub per_token_comparable: bool,
    /// The total log-likelihood of the two sides is of the same text.
    pub total_comparable: bool,
    /// What was found.
    pub findings: Vec<TokenFinding>,
    /// What this does not show.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// Compares two sequences; `bos` is the start token, where it is known. A text is held against the pieces of the other
/// side, or of `origin`, where neither side has ids.
#[must_use]
pub fn compare(
    left: &TokenSide,
    right: &TokenSide,
    bos: Option<u32>,
    origin: Option<&TokenSide>,
) -> TokenDiff {
    let ids = left.ids.as_deref().zip(right.ids.as_deref());
    let ids_equal = ids.map(|(l, r)| l == r);
    let (ltext, rtext) = (left.whole(), right.whole());
    let text_equal = ltext.as_ref().zip(rtext.as_ref()).map(|(l, r)| l == r);
    let diff = ids.map(|(l, r)| crate::text::diff(l, r, None));
    let pieces = left.pieces.as_deref().zip(right.pieces.as_deref());
    let same_bytes = pieces.filter(|(l, r)| l.concat() == r.concat());
    let regions = same_bytes.map_or_else(Vec::new, |(l, r)| {
        regions((l, left.ids.as_deref()), (r, right.ids.as_deref()))
    });
    let first_char = regions.first().map(|region| region.first_char).or_else(|| {
        let (l, r) = ltext.as_ref().zip(rtext.as_ref()).filter(|(l, r)| l != r)?;
        Some(l.chars().zip(r.chars()).take_while(|(l, r)| l == r).count())
    });
    let first_token = match (&diff, regions.first()) {
        (Some(diff), _) => diff.first_token,
        (None, Some(region)) => Some(region.left.start),
        (None, None) => None,
    };
    let doubled = |side: &TokenSide| side.ids.as_deref().and_then(|ids| doubled_start(ids, bos));
    let inserted = ids.zip(diff.as_ref()).and_then(|((l, r), diff)| inserted(l, r, &diff.ops, bos));
    let mut answer = TokenDiff {
        left: left.label.clone(),
        right: right.label.clone(),
        tokens: (left.tokens(), right.tokens()),
        ids_equal,
        text_equal,
        characters: (
            ltext.as_ref().map(|t| t.chars().count()),
            rtext.as_ref().map(|t| t.chars().count()),
        ),
        first_token,
        first_char,
        ops: diff.map_or_else(Vec::new, |diff| diff.ops),
        inserted,
        left_doubled: doubled(left),
        right_doubled: doubled(right),
        per_token_comparable: ids_equal
            .unwrap_or_else(|| same_bytes.is_some() && regions.is_empty()),
        total_comparable: ids_equal == Some(true) || text_equal == Some(true),
        regions,
        rebuilt: rebuilt(left, right, origin),
        findings: Vec::new(),
        limits: Vec::new(),
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    judge(&mut answer, ltext.as_deref(), rtext.as_deref());
    answer
}

/// Texts without tokens, held against the pieces that they come from.
fn rebuilt(left: &TokenSide, right: &TokenSide, origin: Option<&TokenSide>) -> Vec<TextCheck> {
    let bare = |side: &TokenSide| side.ids.is_none() && side.pieces.is_none();
    let from = match (origin, bare(left), bare(right)) {
        (Some(origin), true, true) => origin,
        (_, false, true) if left.text.is_none() => left,
        (_, true, false) if right.text.is_none() => right,
        _ => return Vec::new(),
    };
    let Some(pieces) = &from.pieces else { return Vec::new() };
    let texts = [left, right].into_iter().filter(|side| bare(side));
    let check = |side: &TokenSide| {
        Some(rebuilt_against(&side.label, pieces, side.text.as_deref()?, from.synthetic_blank))
    };
    texts.filter_map(check).collect()
}

/// Tokens of one side only, where nothing is replaced.
fn inserted(left: &[u32], right: &[u32], ops: &[TokenOp], bos: Option<u32>) -> Option<Inserted> {
    let extra: Vec<&TokenOp> = ops.iter().filter(|op| op.kind != TokenOpKind::Equal).collect();
    let first = extra.first()?;
    let on_right = first.kind == TokenOpKind::Insert;
    let one_way = if on_right { TokenOpKind::Insert } else { TokenOpKind::Delete };
    let equal: usize =
        ops.iter().filter(|op| op.kind == TokenOpKind::Equal).map(|op| op.left.len()).sum();
    if equal == 0 || extra.iter().any(|op| op.kind != one_way) {
        return None;
    }
    let side = if on_right { right } else { left };
    let range = |op: &TokenOp| if on_right { op.right.clone() } else { op.left.clone() };
    let ids: Vec<u32> =
        extra.iter().filter_map(|op| side.get(range(op))).flatten().copied().collect();
    let doubled = doubled_start(side, bos).is_some_and(|doubled| {
        ids.iter().all(|id| *id == doubled.id) && range(first).start < doubled.times
    });
    Some(Inserted {
        side: if on_right { "right" } else { "left" }.to_owned(),
        index: range(first).start,
        shift: ids.len(),
        ids,
        equal,
        doubled_start: doubled,
    })
}

fn judge(answer: &mut TokenDiff, left: Option<&str>, right: Option<&str>) {
    let mut findings = Vec::new();
    let mut find =
        |name: &str, title: String| findings.push(TokenFinding { name: name.to_owned(), title });
    if let Some(inserted) = &answer.inserted {
        let (name, what) = if inserted.doubled_start {
            ("doubled_start", "has the start token once more than the other")
        } else {
            ("inserted", "has tokens that the other has not")
        };
        find(
            name,
            format!(
                "the {} side {what}: {:?} at index {}; the other {} tokens are equal, every later position is shifted by {}",
                inserted.side, inserted.ids, inserted.index, inserted.equal, inserted.shift
            ),
        );
    }
    if let (Some(l), Some(r)) = (&answer.left_doubled, &answer.right_doubled) {
        find(
            "doubled_start",
            format!("both sides start with one token twice: {} and {}", l.id, r.id),
        );
    }
    let other_cuts = answer.ids_equal == Some(false) && answer.text_equal == Some(true)
        || answer.ids_equal.is_none() && !answer.regions.is_empty();
    if other_cuts {
        find("same_text_other_ids", other_ids(answer));
    } else if answer.ids_equal == Some(false) && answer.inserted.is_none() {
        let at = answer.first_token.unwrap_or(0);
        find("ids_differ", format!("the ids differ from index {at} on"));
    }
    for check in answer.rebuilt.iter().filter(|check| !check.right) {
        find(if check.stripped.is_some() { "leading_blanks" } else { "text_differs" }, lost(check));
    }
    if answer.text_equal == Some(false)
        && answer.ids_equal != Some(false)
        && answer.rebuilt.is_empty()
        && let Some((l, r)) = left.zip(right)
    {
        find(texts_name(l, r), texts(l, r, answer.first_char.unwrap_or(0), answer.ids_equal));
    }
    answer.findings = findings;
    if answer.ids_equal.is_none() {
        answer
            .limits
            .push("ids are not known on both sides: equal text is not equal ids".to_owned());
    }
    if answer.text_equal.is_none() && answer.ids_equal == Some(false) {
        answer.limits.push(
            "no pieces are known: whether the two sides spell the same text is open".to_owned(),
        );
    }
    let compared = answer.ids_equal.is_some() || answer.text_equal.is_some();
    (answer.verdict, answer.summary) = match (answer.findings.first(), compared) {
        (Some(first), _) => (Verdict::Diverged, first.title.clone()),
        (None, false) => {
            let why = "one side has ids only, the other a text only; give --pieces or --tokenizer"
                .to_owned();
            (Verdict::Incomparable { why: why.clone() }, why)
        }
        (None, true) if answer.ids_equal == Some(true) => {
            (Verdict::Identical, "the ids are equal".to_owned())
        }
        (None, true) if !answer.rebuilt.is_empty() => {
            (Verdict::Identical, "the text is what its pieces make up".to_owned())
        }
        (None, true) => (Verdict::Identical, "the texts are equal".to_owned()),
    };
}

fn lost(check: &TextCheck) -> String {
    let synthetic = usize::from(check.expected != check.joined);
    match check.stripped {
        Some(stripped) => format!(
            "{}: {stripped} blanks at the front are lost where {synthetic} is synthetic; the right text is {:?}. The pieces are the same: this is text only, no model difference",
            check.label, check.expected
        ),
        None => format!(
            "{}: differs from the joined pieces from character {} on",
            check.label,
            check.first_char.unwrap_or(0)
        ),
    }
}

fn other_ids(answer: &TokenDiff) -> String {
    let count = |n: Option<usize>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let place = answer.regions.first().map_or_else(String::new, |region| {
        format!(", first at token {} and character {}", region.left.start, region.first_char)
    });
    format!(
        "the same text ({} characters) in other tokens: {} against {}, {} stretches{place}; per-token log-probabilities are not comparable, the total log-likelihood is",
        count(answer.characters.0),
        count(answer.tokens.0),
        count(answer.tokens.1),
        answer.regions.len()
    )
}

fn blanks(text: &str) -> usize {
    text.bytes().take_while(|byte| *byte == b' ').count()
}

fn only_blanks(left: &str, right: &str) -> bool {
    left.trim_start_matches(' ') == right.trim_start_matches(' ')
}

fn texts_name(left: &str, right: &str) -> &'static str {
    if only_blanks(left, right) { "leading_blanks" } else { "text_differs" }
}

fn texts(left: &str, right: &str, at: usize, ids_equal: Option<bool>) -> String {
    let ids = if ids_equal == Some(true) {
        "; the ids are equal: this is text only, no model difference"
    } else {
        ""
    };
    if only_blanks(left, right) {
        format!(
            "the texts differ in leading blanks only: {} against {}{ids}",
            blanks(left),
            blanks(right)
        )
    } else {
        format!("the texts differ from character {at} on{ids}")
    }
}

/// A text against the pieces that it was put together from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TextCheck {
    /// Name to show.
    pub label: String,
    /// Text.
    pub text: String,
    /// Pieces joined.
    pub joined: String,
    /// Pieces joined, less the one blank that a tokenizer puts in front (none where there is none).
    pub expected: String,
    /// Blanks that the text lost at the front; `null` where it differs elsewhere.
    pub stripped: Option<usize>,
    /// It is what is expected.
    pub right: bool,
    /// First character at which it is not.
    pub first_char: Option<usize>,
}

/// Holds a text against pieces. Tokenizers that put one blank before a text take exactly that one away again; pieces of
/// a text without one are expected as they are.
#[must_use]
pub fn rebuilt_against(label: &str, pieces: &[Vec<u8>], text: &str, synthetic: bool) -> TextCheck {
    let joined = String::from_utf8_lossy(&pieces.concat()).into_owned();
    let expected = joined.strip_prefix(' ').filter(|_| synthetic).unwrap_or(&joined).to_owned();
    let stripped = (only_blanks(&joined, text) && blanks(text) <= blanks(&joined))
        .then(|| blanks(&joined) - blanks(text));
    let first_char = (text != expected)
        .then(|| text.chars().zip(expected.chars()).take_while(|(l, r)| l == r).count());
    TextCheck {
        label: label.to_owned(),
        text: text.to_owned(),
        right: text == expected,
        joined,
        expected,
        stripped,
        first_char,
    }
}
