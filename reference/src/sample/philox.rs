//! Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.

/// One block: ten rounds over the 128-bit `counter` (word 0 lowest) under the 64-bit `key`.
#[must_use]
pub fn philox(counter: u128, key: u64) -> [u32; 4] {
    let mut words = [0, 32, 64, 96].map(|shift| word(counter >> shift));
    let mut keys = [word(u128::from(key)), word(u128::from(key >> 32))];
    for round in 0..10 {
        if round > 0 {
            keys[0] = keys[0].wrapping_add(0x9E37_79B9);
            keys[1] = keys[1].wrapping_add(0xBB67_AE85);
        }
        let left = 0xD251_1F53_u128 * u128::from(words[0]);
        let right = 0xCD9E_8D57_u128 * u128::from(words[2]);
        words = [
            word(right >> 32) ^ words[1] ^ keys[0],
            word(right),
            word(left >> 32) ^ words[3] ^ keys[1],
            word(left),
        ];
    }
    words
}

fn word(value: u128) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// `kat_vectors` of Random123.
    #[test]
    fn random123s_known_answers_come_out() {
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox(u128::MAX, u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(0x0370_7344_1319_8a2e_85a3_08d3_243f_6a88, 0x299f_31d0_a409_3822),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
