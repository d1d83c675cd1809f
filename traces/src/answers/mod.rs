//! Answers that other tools wrote down: lm-eval's samples, the rows of TensorRT-Model-Connect's benchmark, plain tables of gold and
//! prediction, and the samples of a run. Reading only; whether an answer is right is judged elsewhere.

mod fields;
mod lenient;
mod likelihood;
mod read;
mod row;
#[cfg(test)]
mod tests;

pub use read::read_answers;
pub use row::{AnswerRow, AnswerSource, Fields, Schema};
