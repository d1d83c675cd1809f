//! Not written yet.

use super::Entry;

pub(super) const ENTRIES: &[Entry] = &[];
