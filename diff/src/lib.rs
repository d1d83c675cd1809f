//! lockstep-diff.
