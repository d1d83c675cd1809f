//! Draws from kept ids, given the numbers: a race, or an interval of the running sum.

/// In which order ids lie along a running sum, or in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Most probable first, lower id first on equal ones.
    Rank,
    /// Ascending ids.
    Id,
}

/// A drawn place and how far the nearest other outcome was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredDraw {
    /// Place in the list given.
    pub place: usize,
    /// ln of the winner's quotient over the second's (race), or distance of the number from the nearer end of the place's interval
    /// (running sum). Infinite where there is no other outcome.
    pub margin: f64,
    /// ln of the winner's quotient (race), or the number (running sum).
    pub lead: f64,
}

/// The place with the largest `ln p - ln E`; the lower id of `ids` on equal ones. `None` for an empty list.
#[must_use]
pub fn race_draw(
    ids: &[u32],
    probabilities: &[f64],
    exponential: impl Fn(usize) -> f64,
) -> Option<ScoredDraw> {
    let mut best: Option<(usize, f64)> = None;
    let mut second = f64::NEG_INFINITY;
    for (place, (id, p)) in ids.iter().zip(probabilities).enumerate() {
        let score = p.ln() - exponential(place).ln();
        let wins = best.is_none_or(|(held, lead)| {
            score > lead || (score.total_cmp(&lead).is_eq() && ids.get(held) > Some(id))
        });
        if wins {
            second = best.map_or(second, |(_, lead)| lead);
            best = Some((place, score));
        } else {
            second = second.max(score);
        }
    }
    best.map(|(place, lead)| ScoredDraw { place, margin: lead - second, lead })
}

/// The first place along `probabilities` whose running sum exceeds `unit`; the last one where none does.
#[must_use]
pub fn interval_draw(probabilities: &[f64], unit: f64) -> Option<ScoredDraw> {
    let last = probabilities.len().checked_sub(1)?;
    let mut sum = 0.0;
    for (place, p) in probabilities.iter().enumerate() {
        let below = sum;
        sum += p;
        if sum > unit || place == last {
            let lower = if place == 0 { f64::INFINITY } else { unit - below };
            let upper = if place == last { f64::INFINITY } else { sum - unit };
            return Some(ScoredDraw { place, margin: lower.min(upper), lead: unit });
        }
    }
    None
}
