//! `key=value` words of a log line.

/// The words of one line.
pub(super) struct Words<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Words<'a> {
    /// Splits at white space; words without `=` are dropped.
    pub(super) fn of(text: &'a str) -> Self {
        Self(text.split_whitespace().filter_map(|word| word.split_once('=')).collect())
    }

    /// Value of `key`, as text.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// A number that must be there.
    pub(super) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<T, String> {
        let value = self.get(key).and_then(|text| text.parse().ok());
        value.ok_or_else(|| format!("`{key}` is missing or no number"))
    }

    /// A count that must be there.
    pub(super) fn count(&self, key: &str) -> Result<u32, String> {
        self.number(key)
    }

    /// A count that may be absent.
    pub(super) fn optional(&self, key: &str) -> Option<u32> {
        self.get(key)?.parse().ok()
    }

    /// `0` or `1`.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}

/// The number that stands before the word `unit`.
pub(super) fn number_before(text: &str, unit: &str) -> Option<f64> {
    let words: Vec<_> = text.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
    let at = words.iter().position(|word| *word == unit)?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_give_numbers_flags_and_texts() {
        let words = Words::of("init a=3 b=x c=1 d=2 tok/s=7.5");
        assert_eq!(
            (words.count("a"), words.get("b"), words.flag("c"), words.flag("d")),
            (Ok(3), Some("x"), Some(true), None)
        );
        assert_eq!(words.number::<f64>("tok/s"), Ok(7.5));
        assert!(words.count("b").is_err() && words.count("z").is_err());
    }

    #[test]
    fn a_number_before_its_unit() {
        assert_eq!(number_before("Decode: 4 tokens, 12.5 ms, 8 tok/s", "ms"), Some(12.5));
        assert_eq!(number_before("ms 4", "ms"), None);
    }
}
