//! lockstep-runtime.
