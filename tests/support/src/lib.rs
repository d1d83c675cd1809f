//! lockstep-testkit.
