//! Comparisons that several audits look at.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::DiffReport;

/// Comparisons of pairs by the places of their two sides in the evidence. A clone starts empty.
#[derive(Debug, Default)]
pub struct Comparisons(Mutex<BTreeMap<(usize, usize), Arc<DiffReport>>>);

impl Clone for Comparisons {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Comparisons {
    /// Keeps a comparison that was made elsewhere.
    pub fn put(&self, left: usize, right: usize, report: DiffReport) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert((left, right), Arc::new(report));
    }

    /// The comparison of these two, made by `make` the first time.
    pub(crate) fn get(
        &self,
        left: usize,
        right: usize,
        make: impl FnOnce() -> DiffReport,
    ) -> Arc<DiffReport> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(kept.entry((left, right)).or_insert_with(|| Arc::new(make())))
    }
}
