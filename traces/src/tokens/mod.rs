//! Token sequences in files of their own: ids, pieces of text, or a text alone.

mod pieces;
mod read;

pub use pieces::{PieceStyle, Vocabulary};
pub use read::{TokenFile, locate, read, read_vocabulary};
