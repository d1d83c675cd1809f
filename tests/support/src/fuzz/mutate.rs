//! Mutations of an input, each a function of its number alone.
//!
//! The kinds are those by which readers fall: turned bits, cuts, lies in what may be a length, parts of another input, nesting without
//! end, numbers beyond every type.

/// SplitMix64: a mutation must be the same on every machine and in every year.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Numbers by seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    /// A number below `end`; 0 where `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }
}

/// Lengths that no file has, and the edges of the types in which they stand.
const LIES: [u64; 12] = [
    0,
    1,
    0x7F,
    0xFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x0000_0001_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Numbers and words where JSON has a number.
const WORDS: [&str; 18] = [
    "-1",
    "0",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    "-1e999",
    "1e-999",
    "0.1e1",
    "NaN",
    "Infinity",
    "-Infinity",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
];

/// What is repeated to nest.
const NESTS: [&[u8]; 7] = [b"[", b"{\"a\":", b"(", b"]", b"\x80\x02]", b"[[claim]]\n", b"- "];

/// Longest mutation.
const MOST: usize = 1 << 17;

/// Mutation `number` of `seed`; `other` is where parts come from.
#[must_use]
pub fn mutation(seed: &[u8], other: &[u8], number: u64) -> Vec<u8> {
    let mut dice = Dice::new(number);
    let mut bytes = seed.to_vec();
    for _ in 0..=dice.below(3) {
        once(&mut bytes, other, &mut dice);
    }
    bytes.truncate(MOST);
    bytes
}

fn once(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(bytes.len());
    match dice.below(9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = dice.below(256) as u8;
            }
        }
        2 => bytes.truncate(at),
        3 => {
            let end = at + dice.below(bytes.len() - at);
            bytes.drain(at..end);
        }
        4 => lie(bytes, at, dice),
        5 => {
            let start = dice.below(other.len());
            let end = start + dice.below(other.len() - start);
            let to = at + dice.below(bytes.len() - at);
            bytes.splice(at..to, other[start..end].iter().copied());
        }
        6 => {
            let nest = NESTS[dice.below(NESTS.len())];
            let times = [3, 130, 5000][dice.below(3)];
            bytes.splice(at..at, nest.iter().copied().cycle().take(times * nest.len()));
        }
        7 => word(bytes, dice),
        _ => {
            let end = at + dice.below((bytes.len() - at).min(512));
            let part = bytes[at..end].to_vec();
            let times = [1, 2, 40][dice.below(3)];
            for _ in 0..times {
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
}

/// A lie in the 1, 2, 4 or 8 bytes at `at`, in either byte order.
fn lie(bytes: &mut [u8], at: usize, dice: &mut Dice) {
    let width = [1, 2, 4, 8][dice.below(4)];
    let near = dice.below(3) == 0;
    let Some(field) = bytes.get_mut(at..at + width) else { return };
    let value = if near {
        // The value that stands there, a little off.
        let stands = field.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        stands.wrapping_add(dice.below(9) as u64).wrapping_sub(4)
    } else {
        LIES[dice.below(LIES.len())]
    };
    field.copy_from_slice(&value.to_le_bytes()[..width]);
    if dice.below(4) == 0 {
        field.reverse();
    }
}

/// Another word where a number stands in a text.
fn word(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|&at| number(&bytes[at]) && (at == 0 || !number(&bytes[at - 1])))
        .collect();
    let Some(&start) = starts.get(dice.below(starts.len())) else { return };
    let end = start + bytes[start..].iter().take_while(|byte| number(byte)).count();
    bytes.splice(start..end, WORDS[dice.below(WORDS.len())].bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_depend_on_their_number_alone_and_differ() {
        let seed = br#"{"position":0,"top":[[1,2.5]]}"#;
        let all: Vec<_> = (0..200).map(|number| mutation(seed, b"GGUF", number)).collect();
        let again: Vec<_> = (0..200).map(|number| mutation(seed, b"GGUF", number)).collect();
        assert_eq!(all, again);
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert!(distinct.len() > 150, "{}", distinct.len());
        assert!(all.iter().any(|bytes| bytes.len() < seed.len()));
        assert!(all.iter().any(|bytes| bytes.len() > 5000));
        assert!(mutation(b"", b"", 7).len() <= MOST);
    }
}
