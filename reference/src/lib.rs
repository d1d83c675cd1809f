//! lockstep-reference.
