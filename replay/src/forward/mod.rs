//! Teacher-forced replay.
