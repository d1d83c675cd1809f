//! Audits 25 to 63.

use super::Audit;

/// In order of their numbers.
pub(super) const AUDITS: &[&Audit] = &[];
