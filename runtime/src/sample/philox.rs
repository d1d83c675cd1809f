//! Philox4x32-10, the counter-based generator behind CUDA draws (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Ten rounds over `counter` under `key`.
pub(super) fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut low, mut high] = key;
    for _ in 0..ROUNDS {
        let (first_high, first_low) = wide(MULTIPLIERS[0], a);
        let (second_high, second_low) = wide(MULTIPLIERS[1], c);
        (a, b, c, d) = (second_high ^ b ^ low, second_low, first_high ^ d ^ high, first_low);
        low = low.wrapping_add(WEYL[0]);
        high = high.wrapping_add(WEYL[1]);
    }
    [a, b, c, d]
}

fn wide(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    (high(product), low(product))
}

/// Upper half.
pub(super) fn high(value: u64) -> u32 {
    low(value >> 32)
}

/// Lower half.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
pub(super) fn low(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123_come_out() {
        let ones = u32::MAX;
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([ones; 4], [ones; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
