//! Integration tests: the binary as a user types it. One test binary, since each would link everything again.

mod badinput;
mod commands;
mod conformance;
mod device;
mod faults;
mod kit;
mod layering;
mod misuse;
mod ops;
mod readme;
mod record;
mod tensors;
mod tokens;
