//! JSON values with their keys in order, as often as they stand.

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string, unescaped; halves of surrogate pairs and bytes that are no UTF-8 are U+FFFD.
    Text(String),
    /// An array.
    List(Vec<Node>),
    /// An object: its members in the order of the text, those of equal keys too.
    Object(Vec<(String, Node)>),
}

/// A number as it was printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    /// The text rounded once to f64; not finite for the words `NaN` and `Infinity`.
    pub value: f64,
    /// Digits behind the decimal point, exponent counted in; 0 for whole numbers.
    pub decimals: u8,
}

impl Node {
    /// The last member of that key, as ordinary readers have it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.members()?.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The value at a JSON pointer (RFC 6901), with the last member of equal keys.
    #[must_use]
    pub fn pointer(&self, pointer: &str) -> Option<&Self> {
        if pointer.is_empty() {
            return Some(self);
        }
        pointer.strip_prefix('/')?.split('/').try_fold(self, |node, step| {
            let step = step.replace("~1", "/").replace("~0", "~");
            match node {
                Self::List(items) => items.get(step.parse::<usize>().ok()?),
                node => node.get(&step),
            }
        })
    }

    /// Members of an object.
    #[must_use]
    pub fn members(&self) -> Option<&[(String, Self)]> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    /// Elements of an array.
    #[must_use]
    pub fn list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    /// A string.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// A number, words for values that are not finite included.
    #[must_use]
    pub const fn number(&self) -> Option<Number> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// A whole number of 0 ..= 2^53.
    #[must_use]
    pub fn index(&self) -> Option<u64> {
        let value = self.number()?.value;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, not negative and at most 2^53"
        )]
        ((0.0..=9_007_199_254_740_992.0).contains(&value) && value.fract() == 0.0)
            .then_some(value as u64)
    }
}
