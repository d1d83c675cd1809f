//! Outside text made safe and visible: prompts, tokens, paths, messages.
//!
//! [`visible`] turns bytes into text in which nothing can hide; [`escape`] makes any text safe inside HTML elements and
//! quoted attributes. Everything that reaches the page from outside passes both.

/// Text of bytes that may be anything. Valid UTF-8 stays as it is, except: line feed, carriage return and tab become
/// `⏎`, `␍` and `⇥`; other control characters `\xNN` (below U+0100) or `\u{N}`; characters that change the direction
/// of text, join, or have no width `\u{N}`; each byte that is no UTF-8 `\xNN`.
#[must_use]
pub fn visible(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_visible(&mut out, character);
        }
        for byte in chunk.invalid() {
            push_hex_byte(&mut out, *byte);
        }
    }
    out
}

/// True where [`visible`] would show the bytes unchanged.
#[must_use]
pub fn is_plain(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.chars().any(is_hidden))
}

/// True of characters that a reader would not see, or that change how others are shown.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(u32::from(character),
            0xAD | 0x034F | 0x061C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F
            | 0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F | 0x3164 | 0xFE00..=0xFE0F
            | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFFB | 0xFFFE..=0xFFFF | 0xE0000..=0xE0FFF)
}

fn push_visible(out: &mut String, character: char) {
    match character {
        '\n' => out.push('⏎'),
        '\r' => out.push('␍'),
        '\t' => out.push('⇥'),
        _ if !is_hidden(character) => out.push(character),
        _ => match u8::try_from(u32::from(character)) {
            Ok(byte) => push_hex_byte(out, byte),
            Err(_) => out.extend(character.escape_unicode()),
        },
    }
}

fn push_hex_byte(out: &mut String, byte: u8) {
    out.push_str("\\x");
    for nibble in [byte >> 4, byte & 15] {
        out.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
    }
}

/// Lower-case hex of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    out
}

/// Text for HTML elements and quoted attributes. Hidden characters are made visible as in [`visible`], except the line
/// feed, which stays.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            other => push_visible(&mut out, other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_quotes_are_escaped() {
        assert_eq!(
            escape("<script>alert(\"1\")</script> & 'x'"),
            "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#39;x&#39;"
        );
    }

    #[test]
    fn nul_and_direction_overrides_are_shown() {
        assert_eq!(escape("a\0b\u{202e}c\u{7f}"), "a\\x00b\\u{202e}c\\x7f");
        assert_eq!(visible("a\0\n\r\t\u{feff}".as_bytes()), "a\\x00⏎␍⇥\\u{feff}");
    }

    #[test]
    fn bytes_that_are_no_utf8_are_shown_one_by_one() {
        assert_eq!(visible(b"\xe2\x82"), "\\xe2\\x82");
        assert_eq!(visible(b"ok \xff\xe2\x82\xac"), "ok \\xff€");
    }

    #[test]
    fn only_text_without_hidden_characters_is_plain() {
        assert!(is_plain("naïve 語 ∑".as_bytes()));
        assert!(!is_plain(b"\xe2\x82"));
        assert!(!is_plain(b"a\nb"));
        assert!(!is_plain("\u{200f}".as_bytes()));
    }
}
