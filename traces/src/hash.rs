//! Hashes of logits, ids and files.
//!
//! The logits hash is a sum, so that a device may add its terms in any order and any grouping and still agree
//! with the CPU bit for bit. It proves equality of `f32` bits up to the two identifications below; it is not
//! cryptographic. Files and id lists are named by sha256.

use std::io::Read as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::TraceError;

/// Seeds of the two sums (the first 64 fractional bits of the square roots of 2 and of 3).
pub const DEFAULT_SEEDS: [u64; 2] = [0x6A09_E667_F3BC_C908, 0xBB67_AE85_84CA_A73B];

/// Every NaN counts as this one.
const NAN_BITS: u32 = 0x7FC0_0000;

/// One output of the SplitMix64 generator whose state is `state` (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", with Vigna's constants): the state is advanced first, then mixed.
#[must_use]
pub const fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Bits under which a logit enters the hash: -0.0 as +0.0, any NaN as one pattern, else its own.
#[must_use]
pub const fn canonical_bits(logit: f32) -> u32 {
    if logit.is_nan() {
        NAN_BITS
    } else if logit == 0.0 {
        0
    } else {
        logit.to_bits()
    }
}

/// Hash of a full logits vector `[vocab]`: for k = 0 and 1 the wrapping sum over all elements of
/// `splitmix64(seeds[k] ^ (index << 32 | bits))`. The empty vector hashes to `[0, 0]`.
#[must_use]
pub fn logits_hash(logits: &[f32], seeds: [u64; 2]) -> [u64; 2] {
    let mut sums = [0_u64; 2];
    for (index, &logit) in (0_u64..).zip(logits) {
        let word = (index << 32) | u64::from(canonical_bits(logit));
        for (sum, seed) in sums.iter_mut().zip(seeds) {
            *sum = sum.wrapping_add(splitmix64(seed ^ word));
        }
    }
    sums
}

/// sha256 of `bytes`, lower-case hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// sha256 of a file, lower-case hex, in constant memory.
///
/// # Errors
/// [`TraceError::Io`] with the path.
pub fn sha256_file(path: impl AsRef<Path>) -> Result<String, TraceError> {
    let path = path.as_ref();
    let fail = |source| TraceError::Io { path: path.to_path_buf(), source };
    let mut file = std::fs::File::open(path).map_err(fail)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hasher.update(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Ok(hex(&hasher.finalize()))
}

/// sha256 over ids as little-endian `u32`, lower-case hex.
#[must_use]
pub fn ids_sha256(ids: &[u32]) -> String {
    let mut hasher = Sha256::new();
    for id in ids {
        hasher.update(id.to_le_bytes());
    }
    hex(&hasher.finalize())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit =
        |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_gives_the_published_stream_of_seed_zero() {
        // The generator's state grows by the golden gamma, so output n has state n * gamma before it.
        const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
        let published = [
            0xE220_A839_7B1D_CDAF,
            0x6E78_9E6A_A1B9_65F4,
            0x06C4_5D18_8009_454F,
            0xF88B_B8A8_724C_81EC,
            0x1B39_896A_51A8_749B,
        ];
        for (n, expected) in (0_u64..).zip(published) {
            assert_eq!(splitmix64(n.wrapping_mul(GAMMA)), expected, "output {n}");
        }
    }

    #[test]
    fn one_zero_logit_under_seed_zero_is_the_first_output_of_splitmix64() {
        // Index 0 and bits 0 leave the seed alone.
        assert_eq!(logits_hash(&[0.0], [0, 0]), [0xE220_A839_7B1D_CDAF; 2]);
        assert_eq!(logits_hash(&[], DEFAULT_SEEDS), [0, 0]);
    }

    #[test]
    fn the_index_stands_above_the_bits() {
        // 1.0 has bits 0x3F800000; at index 1 the word is 0x0000_0001_3F80_0000.
        let first = splitmix64(7);
        let second = splitmix64(7 ^ 0x0000_0001_3F80_0000);
        assert_eq!(logits_hash(&[0.0, 1.0], [7, 7])[0], first.wrapping_add(second));
    }

    #[test]
    fn terms_may_be_added_in_any_order() {
        let logits = [1.5_f32, -2.25, 0.0, 1e-30, f32::INFINITY];
        let word = |i: usize| ((i as u64) << 32) | u64::from(logits[i].to_bits());
        for (k, &seed) in DEFAULT_SEEDS.iter().enumerate() {
            let backwards =
                (0..5).rev().fold(0_u64, |sum, i| sum.wrapping_add(splitmix64(seed ^ word(i))));
            assert_eq!(logits_hash(&logits, DEFAULT_SEEDS)[k], backwards);
        }
    }

    #[test]
    fn swapping_two_logits_or_one_bit_changes_both_sums() {
        let base = logits_hash(&[1.0, 2.0, 3.0], DEFAULT_SEEDS);
        let swapped = logits_hash(&[2.0, 1.0, 3.0], DEFAULT_SEEDS);
        let nudged = logits_hash(&[1.0, 2.0, f32::from_bits(3.0_f32.to_bits() + 1)], DEFAULT_SEEDS);
        for other in [swapped, nudged] {
            assert_ne!(base[0], other[0]);
            assert_ne!(base[1], other[1]);
        }
    }

    #[test]
    fn both_zeros_are_one_and_every_nan_is_one() {
        assert_eq!(logits_hash(&[-0.0], DEFAULT_SEEDS), logits_hash(&[0.0], DEFAULT_SEEDS));
        let quiet = logits_hash(&[f32::NAN], DEFAULT_SEEDS);
        for bits in [0xFFC0_0000_u32, 0x7F80_0001, 0xFFFF_FFFF] {
            assert_eq!(logits_hash(&[f32::from_bits(bits)], DEFAULT_SEEDS), quiet);
        }
        assert_ne!(logits_hash(&[f32::INFINITY], DEFAULT_SEEDS), quiet);
        assert_ne!(
            logits_hash(&[f32::INFINITY], DEFAULT_SEEDS),
            logits_hash(&[f32::NEG_INFINITY], DEFAULT_SEEDS)
        );
    }

    #[test]
    fn sha256_gives_the_published_digest_of_abc() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex(b"abc"), abc);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(sha256_file(&path).unwrap(), abc);
        let missing = sha256_file(dir.path().join("none")).unwrap_err();
        assert!(matches!(missing, TraceError::Io { path, .. } if path.ends_with("none")));
    }

    #[test]
    fn ids_are_hashed_as_little_endian_words() {
        assert_eq!(ids_sha256(&[0x6463_6261]), sha256_hex(b"abcd"));
        assert_eq!(ids_sha256(&[1, 2]), sha256_hex(&[1, 0, 0, 0, 2, 0, 0, 0]));
        assert_eq!(ids_sha256(&[]), sha256_hex(b""));
    }
}
