//! TeX around an answer: macros that set text and do not change what it says.

use super::boxed::braces;

/// Macros whose argument is set as text.
const TEXT: [&str; 10] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "textnormal",
    "mathrm",
    "mathbf",
    "mathit",
    "mbox",
    "operatorname",
];

/// Macros and marks that only place or size what follows; longer names first.
const LAYOUT: [&str; 17] = [
    "\\displaystyle",
    "\\qquad",
    "\\quad",
    "\\left",
    "\\right",
    "\\bigl",
    "\\bigr",
    "\\big",
    "\\!",
    "\\,",
    "\\;",
    "\\:",
    "\\ ",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
];

/// The answer as plain text: `\text{..}` and its kin unwrapped, layout dropped, `\{ \} \% \$` as characters, `\dfrac` and
/// `\tfrac` as `\frac`, mathematics signs (`$`) around it dropped, blanks collapsed and none beside a sign, no full stop at the end.
pub(super) fn plain(raw: &str) -> String {
    let mut text = raw.trim().to_owned();
    while let Some(unwrapped) = unwrap_text(&text) {
        text = unwrapped;
    }
    for name in LAYOUT {
        text = drop_macro(&text, name);
    }
    for (from, to) in [
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
        ("{,}", ","),
        ("~", " "),
        ("\\$", "\u{0}"),
        ("$", ""),
        ("\u{0}", "$"),
        ("\\{", "{"),
        ("\\}", "}"),
        ("\\%", "%"),
        ("\u{2212}", "-"),
    ] {
        text = text.replace(from, to);
    }
    let text = blanks(&text);
    text.strip_suffix('.').unwrap_or(&text).trim_end().to_owned()
}

/// Nothing is left once TeX is taken away.
pub(super) fn is_empty(raw: &str) -> bool {
    plain(raw).chars().all(|char| matches!(char, '{' | '}' | ' '))
}

/// The first text macro with its argument in its place; `None` where there is none.
fn unwrap_text(text: &str) -> Option<String> {
    let pairs = braces(text);
    for (at, _) in text.match_indices('\\') {
        let rest = text.get(at + 1..)?;
        let letters = rest.find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(rest.len());
        let name = rest.get(..letters)?;
        let body = rest.get(letters..)?.trim_start();
        if !(TEXT.contains(&name) && body.starts_with('{')) {
            continue;
        }
        let open = text.len() - body.len();
        if let Some(close) = pairs.get(&open) {
            let (head, inside, tail) =
                (text.get(..at)?, text.get(open + 1..*close)?, text.get(close + 1..)?);
            return Some(format!("{head}{inside}{tail}"));
        }
    }
    None
}

/// Takes a macro out, where its name ends there.
fn drop_macro(text: &str, name: &str) -> String {
    let letters = name.ends_with(|char: char| char.is_ascii_alphabetic());
    let mut parts = text.split(name);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if letters && part.starts_with(|char: char| char.is_ascii_alphabetic()) {
            out.push_str(name);
        }
        out.push_str(part);
    }
    out
}

/// One blank between words, none beside anything else.
fn blanks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut pending = false;
    for char in text.chars() {
        if char.is_whitespace() {
            pending = true;
            continue;
        }
        let joins = out.ends_with(char::is_alphanumeric) && char.is_alphanumeric();
        if pending && joins {
            out.push(' ');
        }
        pending = false;
        out.push(char);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_is_taken_away_and_content_stays() {
        for (raw, wanted) in [
            (r"\text{062}", "062"),
            (r"\text{\textbf{ 7 }}", "7"),
            (r"\mathrm {cm}", "cm"),
            (r"\{1, 2\}", "{1,2}"),
            (r"\left( 3, 4 \right)", "(3,4)"),
            (r"\dfrac{1}{2}", r"\frac{1}{2}"),
            ("$62$", "62"),
            (r"\$62", "$62"),
            (r"\( 62 \)", "62"),
            (r"1{,}234", "1,234"),
            ("a  b", "a b"),
            ("62.", "62"),
            (r"\leftarrow", r"\leftarrow"),
            (r"\frac{1} {2}", r"\frac{1}{2}"),
            (r"\text{open", r"\text{open"),
            (r"50\%", "50%"),
            ("\u{2212}7", "-7"),
        ] {
            assert_eq!(plain(raw), wanted, "{raw}");
        }
    }

    #[test]
    fn only_setting_is_empty() {
        assert!(is_empty(r"\text{ }") && is_empty("{ }") && is_empty("") && is_empty(r"\,"));
        assert!(!is_empty("0") && !is_empty(r"\varnothing"));
    }

    #[test]
    fn deep_nesting_ends() {
        let deep = format!("{}7{}", r"\text{".repeat(300), "}".repeat(300));
        assert_eq!(plain(&deep), "7");
    }
}
