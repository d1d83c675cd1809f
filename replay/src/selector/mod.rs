//! Selections of a run recomputed.
