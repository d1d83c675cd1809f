//! Text inside XML 1.0.

/// Text for attributes in double quotes and for elements: markup and line ends escaped, characters that XML 1.0 cannot hold made
/// visible.
pub(super) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            '\t' => out.push_str("&#9;"),
            other if forbidden(other) => out.extend(other.escape_unicode()),
            other => out.push(other),
        }
    }
    out
}

/// Outside of the `Char` production: control characters, and the two last code points of the first plane.
fn forbidden(character: char) -> bool {
    character < ' ' || matches!(character, '\u{fffe}' | '\u{ffff}')
}
