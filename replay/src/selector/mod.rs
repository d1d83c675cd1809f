//! Selector replay.
