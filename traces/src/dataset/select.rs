//! Which rows are run: a selection, then a limit, then a shard by row index.

use std::str::FromStr;

use super::Dataset;
use crate::Choice;

/// A part of a dataset: rows whose index leaves `index` when divided by `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 0 to `count - 1`.
    pub index: u64,
    /// Parts.
    pub count: u64,
}

impl FromStr for Shard {
    type Err = String;
    /// `0/4` to `3/4`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(index, count)| {
            Some((index.trim().parse::<u64>().ok()?, count.trim().parse::<u64>().ok()?))
        });
        match parts {
            Some((index, count)) if index < count => Ok(Self { index, count }),
            _ => Err(format!("`{text}` is no shard; write 0/4 for the first of four")),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.index, self.count)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// `3`, `0-9`, `0-90/10` (row indexes), or sample ids with commas.
    pub select: Option<String>,
    /// The first so many of them.
    pub limit: Option<usize>,
    /// Of these, the rows of one shard.
    pub shard: Option<Shard>,
}

/// Rows taken, as places in [`Dataset::rows`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// All shards together: what a merge expects.
    pub expected: Vec<usize>,
    /// Those of this shard.
    pub rows: Vec<usize>,
}

/// A selection takes nothing, or what is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// No row is left.
    #[error("{what} takes none of the {rows} rows")]
    Nothing {
        /// Flag with its value.
        what: String,
        /// Rows there are.
        rows: usize,
    },
    /// An id that the dataset does not have.
    #[error("no sample `{id}` in the dataset; ids are given with commas, row indexes as `0-9`")]
    NoSample {
        /// The id.
        id: String,
    },
    /// An id is named twice.
    #[error("sample `{id}` is selected twice")]
    Twice {
        /// The id.
        id: String,
    },
}

impl Dataset {
    /// Applies selection, limit and shard in this order. Rows stay in file order.
    ///
    /// # Errors
    /// [`SelectError`].
    pub fn take(&self, selection: &Selection) -> Result<Taken, SelectError> {
        let rows = self.rows.len();
        let nothing = |what: String| SelectError::Nothing { what, rows };
        let mut expected = match &selection.select {
            None => (0..rows).collect(),
            Some(text) => self.selected(text)?,
        };
        if expected.is_empty() {
            let what = format!("--select {}", selection.select.as_deref().unwrap_or_default());
            return Err(nothing(what));
        }
        if let Some(limit) = selection.limit {
            expected.truncate(limit);
            if limit == 0 {
                return Err(nothing("--limit 0".to_owned()));
            }
        }
        let taken: Vec<usize> = match selection.shard {
            None => expected.clone(),
            Some(shard) => {
                let mine = |place: &usize| {
                    self.rows.get(*place).is_some_and(|row| row.index % shard.count == shard.index)
                };
                expected.iter().copied().filter(mine).collect()
            }
        };
        match selection.shard {
            Some(shard) if taken.is_empty() => Err(nothing(format!("--shard {shard}"))),
            _ => Ok(Taken { expected, rows: taken }),
        }
    }

    fn selected(&self, text: &str) -> Result<Vec<usize>, SelectError> {
        if let Ok(choice) = text.parse::<Choice>() {
            let chosen = |index: u64| u32::try_from(index).is_ok_and(|index| choice.has(index));
            let places = self.rows.iter().enumerate();
            return Ok(places
                .filter(|(_, row)| chosen(row.index))
                .map(|(place, _)| place)
                .collect());
        }
        let mut places = Vec::new();
        for id in text.split(',').map(str::trim) {
            let place = self.rows.iter().position(|row| row.sample_id == id);
            let place = place.ok_or_else(|| SelectError::NoSample { id: id.to_owned() })?;
            if places.contains(&place) {
                return Err(SelectError::Twice { id: id.to_owned() });
            }
            places.push(place);
        }
        places.sort_unstable();
        Ok(places)
    }
}
