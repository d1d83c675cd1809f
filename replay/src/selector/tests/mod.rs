//! Runs written by a selector of the tests' own, right and wrong, and golden caches.

mod foreign;
mod golden;
mod planted;
mod producer;
