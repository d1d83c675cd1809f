//! The comparison as a whole, on traces written out by hand.

mod cases;
mod faults;
mod firsts;
mod judged;
mod limits;
