//! Golden vectors against the reference.
