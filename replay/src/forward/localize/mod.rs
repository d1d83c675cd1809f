//! Localize.
