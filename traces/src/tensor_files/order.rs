//! Order of names in which `layer_2` stands before `layer_10`.

use std::cmp::Ordering;

/// Compares two names; runs of digits by value. Names that differ only in leading zeros are told apart by their bytes.
#[must_use]
pub fn natural(left: &str, right: &str) -> Ordering {
    let (mut a, mut b) = (left.as_bytes(), right.as_bytes());
    loop {
        let (Some(x), Some(y)) = (a.first(), b.first()) else {
            return a.len().cmp(&b.len()).then_with(|| left.cmp(right));
        };
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (n, rest_a) = number(a);
            let (m, rest_b) = number(b);
            let order = n.len().cmp(&m.len()).then_with(|| n.cmp(m));
            if order.is_ne() {
                return order;
            }
            (a, b) = (rest_a, rest_b);
        } else if x == y {
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
        } else {
            return x.cmp(y);
        }
    }
}

/// The leading digits without leading zeros, and what follows.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().position(|byte| *byte != b'0').unwrap_or(digits.len());
    (digits.get(zeros..).unwrap_or_default(), rest)
}
