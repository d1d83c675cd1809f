//! Vocabulary pieces and the bytes that they stand for.

use std::collections::BTreeMap;

/// How pieces write bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceStyle {
    /// As text.
    Plain,
    /// SentencePiece: U+2581 is a blank, `<0xE2>` a byte.
    SentencePiece,
    /// Byte-level BPE: every byte is a printable character, a blank is U+0120.
    ByteLevel,
}

impl PieceStyle {
    /// The style of a list of pieces, told by the characters that only one style uses.
    pub fn of<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Self {
        let mut style = Self::Plain;
        for piece in pieces {
            if piece.contains('\u{2581}') {
                return Self::SentencePiece;
            }
            if piece.contains(['\u{0120}', '\u{010A}']) {
                style = Self::ByteLevel;
            }
        }
        style
    }

    /// Bytes of one piece.
    #[must_use]
    pub fn bytes(self, piece: &str) -> Vec<u8> {
        match self {
            Self::Plain => piece.as_bytes().to_vec(),
            Self::SentencePiece => match byte_token(piece) {
                Some(byte) => vec![byte],
                None => piece.replace('\u{2581}', " ").into_bytes(),
            },
            Self::ByteLevel => {
                let bytes: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
                bytes.unwrap_or_else(|| piece.as_bytes().to_vec())
            }
        }
    }
}

/// `<0xE2>` of SentencePiece's byte fallback.
fn byte_token(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Inverse of byte-level BPE's table: printable Latin-1 stands for itself, the other bytes for U+0100 on, in order.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let itself = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if itself(code) {
        return u8::try_from(code).ok();
    }
    let place = usize::try_from(code.checked_sub(0x100)?).ok()?;
    (0..256_u32).filter(|byte| !itself(*byte)).nth(place).and_then(|byte| u8::try_from(byte).ok())
}

/// Pieces by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    pieces: BTreeMap<u32, String>,
    style: PieceStyle,
}

impl Vocabulary {
    /// From pieces by id.
    #[must_use]
    pub fn new(pieces: BTreeMap<u32, String>) -> Self {
        let style = PieceStyle::of(pieces.values().map(String::as_str));
        Self { pieces, style }
    }

    /// Bytes of an id; `None` outside the vocabulary.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.pieces.get(&id).map(|piece| self.style.bytes(piece))
    }

    /// Ids known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// True where no id is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_each_style_give_the_bytes_that_they_stand_for() {
        let style = PieceStyle::of(["a", "\u{2581}lead"]);
        assert_eq!(style, PieceStyle::SentencePiece);
        assert_eq!(style.bytes("\u{2581}lead"), b" lead");
        assert_eq!(style.bytes("<0xE2>"), [0xE2]);
        assert_eq!(style.bytes("<0xZZ>"), b"<0xZZ>");
        let style = PieceStyle::of(["\u{0120}the"]);
        assert_eq!(style, PieceStyle::ByteLevel);
        assert_eq!(style.bytes("\u{0120}the\u{010A}"), b" the\n");
        // The published table of byte-level BPE: byte 0xE2 stands for itself, 0x80 for U+0122, 0xAD for U+0143.
        assert_eq!(style.bytes("\u{00E2}\u{0122}\u{0143}"), [0xE2, 0x80, 0xAD]);
        assert_eq!(PieceStyle::of(["a", " b"]), PieceStyle::Plain);
    }
}
