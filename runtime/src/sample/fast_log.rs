//! CUDA's `__logf`, bit for bit, for uniform numbers: PyTorch's exponential numbers are `-__logf(u)`.
//!
//! `__logf(x)` is `lg2.approx(x)` times ln 2, one f32 product. Close to 1 that is far from the logarithm (at `1 - 2^-24` it is 0.14 of it),
//! and numbers close to 1 win races over large vocabularies, so a draw that is to be PyTorch's needs the instruction's own bits. The
//! instruction interpolates: of the mantissa's 23 bits the first 6 choose a line of the table, the other 17 are `d`, and
//! `log2 = exponent + (c0 + c1 d - c2 s(d)) 2^-38`, cut toward zero at 2^-36 and then at 24 bits. `s` is the square of `d` over 2^19,
//! with every partial product below its last place left out.
//!
//! Table and form were read off an H200 (sm_90) by this project: all 2^23 mantissas of [0.5, 1) are reproduced without an exception,
//! and so are 151,936 exponential numbers of torch 2.11. Other architectures were not measured.

/// c0, c1 and c2 of each line, in units of 2^-38.
#[rustfmt::skip]
const LINES: [(i64, i64, i64); 64] = [
    (29_510, 47_272, 1_454), (6_148_432_710, 46_545, 1_410), (12_203_000_646, 45_840, 1_370), (18_166_489_926, 45_156, 1_330),
    (24_041_640_776, 44_492, 1_292), (29_831_013_190, 43_847, 1_254), (35_537_077_062, 43_221, 1_220), (41_162_191_688, 42_612, 1_184),
    (46_708_667_208, 42_020, 1_152), (52_178_604_870, 41_444, 1_118), (57_574_130_504, 40_884, 1_088), (62_897_230_662, 40_339, 1_060),
    (68_149_822_278, 39_809, 1_036), (73_333_732_168, 39_292, 1_008), (78_450_783_046, 38_788, 982), (83_502_646_086, 38_297, 958),
    (88_490_939_206, 37_818, 932), (93_417_288_518, 37_351, 910), (98_283_180_870, 36_896, 890), (103_090_078_534, 36_451, 866),
    (107_839_419_206, 36_018, 850), (112_532_534_086, 35_594, 828), (117_170_770_760, 35_180, 808), (121_755_394_888, 34_776, 792),
    (126_287_618_886, 34_380, 770), (130_768_622_406, 33_994, 754), (135_199_564_624, 33_616, 736), (139_581_543_238, 33_247, 722),
    (143_915_623_238, 32_886, 708), (148_202_869_576, 32_532, 692), (152_444_248_902, 32_186, 678), (156_640_731_974, 31_847, 662),
    (160_793_285_448, 31_516, 652), (164_902_798_150, 31_191, 638), (168_970_179_398, 30_872, 622), (172_996_260_678, 30_561, 614),
    (176_981_869_382, 30_255, 600), (180_927_816_518, 29_955, 586), (184_834_904_902, 29_662, 578), (188_703_847_238, 29_374, 566),
    (192_535_413_574, 29_091, 552), (196_330_328_902, 28_814, 542), (200_089_273_158, 28_542, 532), (203_812_897_608, 28_276, 524),
    (207_501_906_758, 28_014, 514), (211_156_931_398, 27_757, 506), (214_778_549_062, 27_505, 498), (218_367_394_630, 27_257, 488),
    (221_924_049_734, 27_013, 476), (225_449_096_006, 26_774, 468), (228_943_086_408, 26_540, 464), (232_406_541_126, 26_309, 454),
    (235_840_037_702, 26_082, 446), (239_244_047_174, 25_859, 438), (242_619_102_024, 25_640, 432), (245_965_656_902, 25_424, 422),
    (249_284_195_142, 25_213, 418), (252_575_208_264, 25_004, 408), (255_839_150_918, 24_799, 402), (259_076_424_518, 24_598, 398),
    (262_287_512_390, 24_399, 390), (265_472_783_176, 24_204, 384), (268_632_675_142, 24_012, 378), (271_767_585_606, 23_823, 372),
];

/// The factor of the last product.
const LN_2: f32 = std::f32::consts::LN_2;

/// `__logf(x)` for a normal number below 1.
pub(crate) fn fast_log(x: f32) -> f32 {
    let bits = x.to_bits();
    let d = i64::from(bits & 0x1_ffff);
    let (c0, c1, c2) = LINES[(bits >> 17 & 63) as usize];
    let exponent = i64::from(bits >> 23) - 127;
    let sum = (exponent << 38) + c0 + c1 * d - c2 * square(d);
    let size = sum.unsigned_abs() >> 2;
    let spare = 40 - size.leading_zeros().min(40);
    #[expect(clippy::cast_precision_loss, reason = "24 bits are left")]
    let log2 = -((size >> spare << spare) as f32) / 68_719_476_736.0;
    log2 * LN_2
}

/// The square of 17 bits over 2^19, without the partial products below 1.
fn square(d: i64) -> i64 {
    let row = |j: i64| (d >> j & 1) * (((d & ((1 << j) - 1)) >> (18 - j)) + (1 << (2 * j - 19)));
    (10..17).map(row).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_read_off_an_h200_come_out() {
        // lg2.approx of 1 - k 2^-24, in units of 2^-36, for k = 1 to 8.
        let read =
            [-813.0, -6769.0, -12_724.0, -18_680.0, -24_543.0, -30_499.0, -36_454.0, -42_410.0_f32];
        for (k, wanted) in (1_u16..).zip(read) {
            let x = 1.0 - f32::from(k) / 16_777_216.0;
            let wanted = wanted / 68_719_476_736.0 * LN_2;
            assert_eq!(fast_log(x).to_bits(), wanted.to_bits(), "{k}");
        }
        assert_eq!(fast_log(0.5).to_bits(), (-(1.0 - f32::EPSILON) * LN_2).to_bits());
    }

    #[test]
    fn it_is_a_logarithm_within_what_the_vendor_states() {
        // CUDA's guide gives 2^-21.41 in [0.5, 2] and 3 units of the last place elsewhere.
        for step in 1..100_000_u32 {
            #[expect(clippy::cast_precision_loss, reason = "a sample of the range")]
            let x = step as f32 / 100_001.0;
            let (found, wanted) = (f64::from(fast_log(x)), f64::from(x).ln());
            let bound = if x >= 0.5 { 0.5_f64.powf(21.41) } else { wanted.abs() * 3.6e-7 };
            assert!((found - wanted).abs() <= bound, "{x}: {found} {wanted}");
        }
    }
}
