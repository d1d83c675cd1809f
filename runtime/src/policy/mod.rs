//! Cache policies: when rows are dropped, and which.
