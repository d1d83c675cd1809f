//! The answer in a completion.

/// Name of the rule of [`boxed_answer`] in sample rows.
pub(super) const RULE: &str = "last-boxed";

/// Content of the last `\boxed{...}` with balanced braces, without surrounding blanks.
#[must_use]
pub fn boxed_answer(text: &str) -> Option<String> {
    const OPEN: &str = "\\boxed{";
    let mut end = text.len();
    while let Some(start) = text.get(..end)?.rfind(OPEN) {
        let content = &text[start + OPEN.len()..];
        let mut depth = 1_usize;
        for (at, char) in content.char_indices() {
            match char {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(content[..at].trim().to_owned());
            }
        }
        end = start;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::boxed_answer;

    #[test]
    fn the_last_balanced_box_counts() {
        assert_eq!(
            boxed_answer(r"\boxed{ 7 } then \boxed{\frac{1}{2}} end").unwrap(),
            r"\frac{1}{2}"
        );
        assert_eq!(boxed_answer(r"\boxed{41} and \boxed{4").unwrap(), "41");
        assert_eq!(boxed_answer("no box {1}"), None);
        assert_eq!(boxed_answer(r"ü\boxed{ü}").unwrap(), "ü");
    }
}
