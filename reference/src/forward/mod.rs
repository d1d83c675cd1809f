//! Forward pass.
