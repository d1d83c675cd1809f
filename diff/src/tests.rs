//! The comparison as a whole, on traces written out by hand.

mod faults;
mod firsts;
mod judged;
