//! Reductions over the GQA group and over layers (`TRIATTENTION.md` 4.2).

use lockstep_traces::Aggregation;

use super::Real;
use super::real::count;

/// Reduces rows of equal length column by column, in the order given; `None` where there are none.
#[must_use]
pub fn reduce<R: Real>(rows: &[&[R]], how: Aggregation) -> Option<Vec<R>> {
    let (first, rest) = rows.split_first()?;
    let mut total = first.to_vec();
    for row in rest {
        for (held, value) in total.iter_mut().zip(*row) {
            *held = match how {
                Aggregation::Mean => *held + *value,
                Aggregation::Max => held.larger(*value),
            };
        }
    }
    if how == Aggregation::Mean {
        let n = R::of(count(rows.len()));
        for held in &mut total {
            *held = *held / n;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_maximum_go_by_column() {
        let rows: [&[f64]; 2] = [&[1.0, 5.0], &[3.0, -5.0]];
        assert_eq!(reduce(&rows, Aggregation::Mean), Some(vec![2.0, 0.0]));
        assert_eq!(reduce(&rows, Aggregation::Max), Some(vec![3.0, 5.0]));
        assert_eq!(reduce::<f64>(&[], Aggregation::Max), None);
    }
}
