//! lockstep-replay.
