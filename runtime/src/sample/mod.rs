//! Sampling: filters and draws.
