//! Is a pair of caches one legal compaction?
//!
//! Two conventions exist. Keys may stay as they were, rotated to the positions at which they were computed; the next query then goes on
//! counting from there. Or they are turned to the rows in which they now lie, and the next query takes the row count. Neither an exact
//! gather nor its absence shows a mistake: the keys together with the next position do.

use lockstep_traces::tensor_files::TensorSet;
use lockstep_traces::{TraceError, Verdict};
use serde::{Deserialize, Serialize};

use super::values::{fault, named, values};

/// Largest difference between a turned key and the file, relative to the largest key: the rounding of one f32 rotation, 2^-23 of each
/// of two products, with room for frequencies that were computed in f32.
const TURNED: f64 = 4e-6;

/// Pairing of dimensions in a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RopeStyle {
    /// Dimension d with d + dim/2.
    HalfSplit,
    /// Dimension 2d with 2d + 1.
    Interleaved,
}

/// A plain rotary embedding over the whole head: frequencies `base^(-2j/dim)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// Base.
    pub base: f64,
    /// Pairing.
    pub style: RopeStyle,
}

/// What is known of the compaction.
#[derive(Debug, Clone)]
pub struct CompactionSpec {
    /// Kept rows, in the order of the rows after.
    pub keep: Vec<usize>,
    /// Names of K and V in both files; each is `[head][row][dim]`.
    pub names: (String, String),
    /// Original position of the first row before; row i lies at this + i.
    pub first_position: u64,
    /// Rotation, if turned keys are to be recognised.
    pub rope: Option<RopeSpec>,
    /// Position of the next query.
    pub next_position: Option<u64>,
}

/// What the keys after are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// The kept rows, bit for bit: they stand at their original positions.
    Gathered,
    /// The kept rows turned to the rows 0, 1, .. in which they lie.
    TurnedToRows,
    /// Neither.
    Unexplained,
}

/// Answer for one pair of caches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LooseCompaction {
    /// Rows before and after.
    pub rows: (usize, usize),
    /// V is the kept rows, value for value.
    pub values_exact: bool,
    /// What K is.
    pub keys: KeyState,
    /// Largest difference of K from the kept rows.
    pub key_max_abs: f64,
    /// Rows after whose keys differ from the kept rows.
    pub key_rows_differing: Vec<usize>,
    /// Largest difference of K from the kept rows turned to their new rows; `null` without a rotation.
    pub turned_max_abs: Option<f64>,
    /// Position of the next query, as given.
    pub next_position: Option<u64>,
    /// Position that the next query must have with such keys.
    pub expected_next: Option<u64>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

/// Checks K and V of one compaction.
///
/// # Errors
/// [`TraceError::Tensor`] where a tensor is missing, has another shape than `[head][row][dim]`, or a kept row does not exist.
pub fn compaction(
    before: &TensorSet,
    after: &TensorSet,
    spec: &CompactionSpec,
) -> Result<LooseCompaction, TraceError> {
    let (key_name, value_name) = (&spec.names.0, &spec.names.1);
    let (keys, rows, dim) = gathered(before, after, key_name, &spec.keep)?;
    let (cached, ..) = gathered(before, after, value_name, &spec.keep)?;
    let values_exact = cached.iter().all(|(kept, found)| kept.to_bits() == found.to_bits());
    let kept = spec.keep.len();
    let row_of = |at: usize| at / dim % kept;
    let (mut max_abs, mut differing) = (0.0_f64, Vec::new());
    for (at, (a, b)) in keys.iter().enumerate().filter(|(_, (a, b))| a.to_bits() != b.to_bits()) {
        max_abs = max_abs.max((a - b).abs());
        if !differing.contains(&row_of(at)) {
            differing.push(row_of(at));
        }
    }
    differing.sort_unstable();
    let largest = keys.iter().fold(0.0_f64, |most, (a, _)| most.max(a.abs()));
    let turned = spec.rope.map(|rope| turned(&keys, &spec.keep, spec.first_position, dim, rope));
    let state = if differing.is_empty() {
        KeyState::Gathered
    } else if turned.is_some_and(|off| off <= TURNED * largest) {
        KeyState::TurnedToRows
    } else {
        KeyState::Unexplained
    };
    // With keys where they were, the next query follows the last row before; with turned keys it follows the last row after.
    let expected = match state {
        KeyState::Gathered => Some(spec.first_position + rows as u64),
        KeyState::TurnedToRows => Some(kept as u64),
        KeyState::Unexplained => None,
    };
    let mut out = LooseCompaction {
        rows: (rows, kept),
        values_exact,
        keys: state,
        key_max_abs: max_abs,
        key_rows_differing: differing,
        turned_max_abs: turned,
        next_position: spec.next_position,
        expected_next: expected,
        verdict: Verdict::Identical,
        summary: String::new(),
    };
    (out.verdict, out.summary) = judge(&out, spec);
    Ok(out)
}

fn judge(out: &LooseCompaction, spec: &CompactionSpec) -> (Verdict, String) {
    if !out.values_exact {
        return (Verdict::Diverged, "V is not the kept rows".to_owned());
    }
    let keys = match out.keys {
        KeyState::Gathered => "K is the kept rows at their original positions",
        KeyState::TurnedToRows => "K is the kept rows turned to the rows in which they lie",
        KeyState::Unexplained => {
            let text = format!(
                "K differs from the kept rows by up to {:.6} in rows {:?} and no rotation that was given explains it",
                out.key_max_abs, out.key_rows_differing
            );
            return (Verdict::Diverged, text);
        }
    };
    let Some(((next, expected), last)) =
        out.next_position.zip(out.expected_next).zip(spec.keep.iter().max())
    else {
        let why = format!("V is exact, {keys}; without the next position this shows nothing");
        return (Verdict::Incomparable { why: why.clone() }, why);
    };
    if next == expected {
        return (
            Verdict::Identical,
            format!("V is exact, {keys}, and the next position is {next}: consistent"),
        );
    }
    let latest = spec.first_position + *last as u64;
    let text = if out.keys == KeyState::Gathered && next <= latest {
        format!(
            "V is exact, {keys}, but the next position is {next}: the row of position {latest} would lie in its future; expected {expected}"
        )
    } else {
        format!("V is exact, {keys}, but the next position is {next}, expected {expected}")
    };
    (Verdict::Diverged, text)
}

type Gathered = (Vec<(f64, f64)>, usize, usize);

/// Pairs of kept and found values in the order of the file after; rows before; dimensions of a head.
fn gathered(
    before: &TensorSet,
    after: &TensorSet,
    name: &str,
    keep: &[usize],
) -> Result<Gathered, TraceError> {
    let (b, a) = (named(before, name)?, named(after, name)?);
    let ([heads, rows, dim], [heads_after, rows_after, dim_after]) =
        (b.shape.as_slice(), a.shape.as_slice())
    else {
        return Err(fault(
            a,
            format!("is {:?}, before it is {:?}; [head][row][dim] is expected", a.shape, b.shape),
        ));
    };
    if (heads, dim, keep.len()) != (heads_after, dim_after, *rows_after)
        || keep.is_empty()
        || *dim == 0
    {
        let what = format!(
            "is {:?}, before it is {:?}, and {} rows are kept",
            a.shape,
            b.shape,
            keep.len()
        );
        return Err(fault(a, what));
    }
    if let Some(row) = keep.iter().find(|row| *row >= rows) {
        return Err(fault(b, format!("has {rows} rows, so that row {row} cannot be kept")));
    }
    let (from, found) = (values(b)?, values(a)?);
    let mut pairs = Vec::with_capacity(found.len());
    let mut found = found.into_iter();
    for head in 0..*heads {
        for row in keep {
            let start = (head * rows + row) * dim;
            let kept = from.get(start..start + dim).unwrap_or_default();
            pairs.extend(kept.iter().copied().zip(found.by_ref().take(*dim)));
        }
    }
    Ok((pairs, *rows, *dim))
}

/// Largest difference of the found keys from the kept ones, turned from their positions to their rows.
#[expect(clippy::cast_precision_loss, reason = "positions and dimensions are far below 2^53")]
fn turned(keys: &[(f64, f64)], keep: &[usize], first: u64, dim: usize, rope: RopeSpec) -> f64 {
    let half = dim / 2;
    let mut most = 0.0_f64;
    for (at, row) in keys.chunks_exact(dim).enumerate() {
        let place = at % keep.len();
        let position = first as f64 + keep.get(place).map_or(0.0, |row| *row as f64);
        let by = place as f64 - position;
        for j in 0..half {
            let (x, y) = match rope.style {
                RopeStyle::HalfSplit => (j, j + half),
                RopeStyle::Interleaved => (2 * j, 2 * j + 1),
            };
            let (Some((a, found_a)), Some((b, found_b))) = (row.get(x), row.get(y)) else {
                continue;
            };
            let (sin, cos) = (by * rope.base.powf(-2.0 * j as f64 / dim as f64)).sin_cos();
            most = most
                .max((a * cos - b * sin - found_a).abs())
                .max((a * sin + b * cos - found_b).abs());
        }
    }
    most
}
