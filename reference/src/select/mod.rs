//! Selector rules of all four rule sets in f64.
