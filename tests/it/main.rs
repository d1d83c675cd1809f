//! Integration tests: the binary as a user types it. One test binary, since each would link everything again.

mod arms;
mod audit;
mod badinput;
mod commands;
mod conformance;
mod device;
mod evaluate;
mod faults;
mod gguf;
mod keepsets;
mod kit;
mod kld;
mod layering;
mod limits;
mod logprob_files;
mod misuse;
mod ops;
mod python;
mod readme;
mod record;
mod sampler;
mod score;
mod states;
mod story;
mod tensors;
mod tokens;
