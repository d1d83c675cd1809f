//! Sampling, written again from its sources: which ids survive the filters, and which of them a seed draws.
//!
//! Everything that the definitions leave free is f64: probabilities, sums, logarithms, quotients. What a definition fixes in f32 or in
//! integers stays so: Philox and Mersenne words, and the f32 of a uniform or exponential number where the drawn token depends on it.

mod draws;
mod fast_log;
mod filters;
mod geometry;
mod mersenne;
mod philox;
mod random;

pub use draws::{Order, ScoredDraw, interval_draw, race_draw};
pub use filters::{Candidate, Edges, Filters, Kept, Rules, Variant};
pub use geometry::{Geometry, SM_THREADS};
pub use mersenne::Mersenne;
pub use philox::philox;
pub use random::{counter_gumbel, half_exponential, race_exponential, uniform_of, xorshift_step};

#[cfg(test)]
mod tests;
