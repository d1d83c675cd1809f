//! lockstep.
fn main() {}
