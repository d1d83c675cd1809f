//! Hashes of logits, ids and files.
