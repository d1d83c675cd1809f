//! Token sequences against each other and against the tokenizer: inserted start tokens, other ids for the same text, texts
//! that lost a blank, ids that no tokenizer knows.

mod compare;
mod ranges;
mod regions;
#[cfg(test)]
mod tests;

pub use compare::{
    Doubled, Inserted, TextCheck, TokenDiff, TokenFinding, TokenSide, compare, doubled_start,
    rebuilt_against,
};
pub use ranges::{IdCheck, OutsideId, Sizes, check_ids};
pub use regions::Region;
