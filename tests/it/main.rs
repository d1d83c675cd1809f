//! Integration tests: the binary as a user types it. One test binary, since each would link everything again.

mod audit;
mod badinput;
mod commands;
mod conformance;
mod device;
mod evaluate;
mod exported;
mod faults;
mod gguf;
mod imported;
mod kit;
mod layering;
mod misuse;
mod ops;
mod readme;
mod record;
mod sampler;
mod score;
mod story;
mod tensors;
mod tokens;
