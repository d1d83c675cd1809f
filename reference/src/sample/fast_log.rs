//! The natural logarithm that PyTorch's CUDA kernels take of a uniform number: the instruction `lg2.approx` times ln 2.
//!
//! Read off an H200: piecewise quadratic over 64 pieces of the mantissa, in fixed point. Written in f64, where every step below is exact:
//! all terms are integers below 2^45.

/// Constant, slope and curvature of each piece, in units of 2^-38.
#[rustfmt::skip]
const PIECES: [[f64; 3]; 64] = [
    [29_510.0, 47_272.0, 1_454.0], [6_148_432_710.0, 46_545.0, 1_410.0], [12_203_000_646.0, 45_840.0, 1_370.0], [18_166_489_926.0, 45_156.0, 1_330.0],
    [24_041_640_776.0, 44_492.0, 1_292.0], [29_831_013_190.0, 43_847.0, 1_254.0], [35_537_077_062.0, 43_221.0, 1_220.0], [41_162_191_688.0, 42_612.0, 1_184.0],
    [46_708_667_208.0, 42_020.0, 1_152.0], [52_178_604_870.0, 41_444.0, 1_118.0], [57_574_130_504.0, 40_884.0, 1_088.0], [62_897_230_662.0, 40_339.0, 1_060.0],
    [68_149_822_278.0, 39_809.0, 1_036.0], [73_333_732_168.0, 39_292.0, 1_008.0], [78_450_783_046.0, 38_788.0, 982.0], [83_502_646_086.0, 38_297.0, 958.0],
    [88_490_939_206.0, 37_818.0, 932.0], [93_417_288_518.0, 37_351.0, 910.0], [98_283_180_870.0, 36_896.0, 890.0], [103_090_078_534.0, 36_451.0, 866.0],
    [107_839_419_206.0, 36_018.0, 850.0], [112_532_534_086.0, 35_594.0, 828.0], [117_170_770_760.0, 35_180.0, 808.0], [121_755_394_888.0, 34_776.0, 792.0],
    [126_287_618_886.0, 34_380.0, 770.0], [130_768_622_406.0, 33_994.0, 754.0], [135_199_564_624.0, 33_616.0, 736.0], [139_581_543_238.0, 33_247.0, 722.0],
    [143_915_623_238.0, 32_886.0, 708.0], [148_202_869_576.0, 32_532.0, 692.0], [152_444_248_902.0, 32_186.0, 678.0], [156_640_731_974.0, 31_847.0, 662.0],
    [160_793_285_448.0, 31_516.0, 652.0], [164_902_798_150.0, 31_191.0, 638.0], [168_970_179_398.0, 30_872.0, 622.0], [172_996_260_678.0, 30_561.0, 614.0],
    [176_981_869_382.0, 30_255.0, 600.0], [180_927_816_518.0, 29_955.0, 586.0], [184_834_904_902.0, 29_662.0, 578.0], [188_703_847_238.0, 29_374.0, 566.0],
    [192_535_413_574.0, 29_091.0, 552.0], [196_330_328_902.0, 28_814.0, 542.0], [200_089_273_158.0, 28_542.0, 532.0], [203_812_897_608.0, 28_276.0, 524.0],
    [207_501_906_758.0, 28_014.0, 514.0], [211_156_931_398.0, 27_757.0, 506.0], [214_778_549_062.0, 27_505.0, 498.0], [218_367_394_630.0, 27_257.0, 488.0],
    [221_924_049_734.0, 27_013.0, 476.0], [225_449_096_006.0, 26_774.0, 468.0], [228_943_086_408.0, 26_540.0, 464.0], [232_406_541_126.0, 26_309.0, 454.0],
    [235_840_037_702.0, 26_082.0, 446.0], [239_244_047_174.0, 25_859.0, 438.0], [242_619_102_024.0, 25_640.0, 432.0], [245_965_656_902.0, 25_424.0, 422.0],
    [249_284_195_142.0, 25_213.0, 418.0], [252_575_208_264.0, 25_004.0, 408.0], [255_839_150_918.0, 24_799.0, 402.0], [259_076_424_518.0, 24_598.0, 398.0],
    [262_287_512_390.0, 24_399.0, 390.0], [265_472_783_176.0, 24_204.0, 384.0], [268_632_675_142.0, 24_012.0, 378.0], [271_767_585_606.0, 23_823.0, 372.0],
];

/// `__logf(x)` for `0 < x < 1`, an f32 value.
#[must_use]
pub(super) fn cuda_log(x: f64) -> f64 {
    let exponent = x.log2().floor();
    // x / 2^exponent, put right where log2 rounded up to a whole number.
    let (exponent, mantissa) = match x / exponent.exp2() {
        below if below < 1.0 => (exponent - 1.0, 2.0 * below),
        above if above >= 2.0 => (exponent + 1.0, above / 2.0),
        mantissa => (exponent, mantissa),
    };
    let scaled = (mantissa - 1.0) * 64.0;
    let piece = scaled.floor();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 63")]
    let [constant, slope, curvature] = PIECES[piece as usize];
    let offset = (scaled - piece) * 131_072.0;
    let sum =
        exponent * 274_877_906_944.0 + constant + slope * offset - curvature * cut_square(offset);
    // Toward zero: first the two last places, then all but 24 bits.
    let size = (-sum / 4.0).floor();
    let grid = (size.log2().floor() - 23.0).max(0.0).exp2();
    let log2 = (size / grid).floor() * grid / 68_719_476_736.0;
    // One f32 product with the f32 of ln 2.
    -narrow(log2 * f64::from(std::f32::consts::LN_2))
}

/// The square of a 17-bit integer over 2^19 as a multiplier makes it that has no columns below the result's last: the sum over pairs of
/// bits, an unequal pair one column higher than a bit with itself.
fn cut_square(offset: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "17 bits")]
    let bits = offset as u32;
    let bit = |place: u32| bits >> place & 1;
    let mut sum = 0_u32;
    for high in 10..17 {
        for low in 18 - high..high {
            sum += (bit(low) & bit(high)) << (high + low - 18);
        }
        sum += bit(high) << (2 * high - 19);
    }
    f64::from(sum)
}

#[expect(clippy::cast_possible_truncation, reason = "the product is rounded to f32")]
fn narrow(value: f64) -> f64 {
    f64::from(value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_numbers_of_torch_come_out() {
        // lg2.approx on an H200 at 1 - k 2^-24, in units of 2^-36.
        for (k, wanted) in
            [(1.0, 813.0), (2.0, 6769.0), (3.0, 12_724.0), (4.0, 18_680.0), (5.0, 24_543.0)]
        {
            let found = cuda_log(1.0 - k / 16_777_216.0);
            assert!(
                (found + narrow(wanted / 68_719_476_736.0 * f64::from(std::f32::consts::LN_2)))
                    .abs()
                    < 1e-30,
                "{k}"
            );
        }
        let half = narrow((1.0 - f64::from(f32::EPSILON)) * f64::from(std::f32::consts::LN_2));
        assert!((cuda_log(0.5) + half).abs() < 1e-30);
    }

    #[test]
    fn the_square_lacks_its_low_columns_only() {
        for offset in [0.0, 1.0, 511.0, 1024.0, 65_536.0, 131_071.0, 98_765.0] {
            let exact = offset * offset / 524_288.0;
            let found = cut_square(offset);
            assert!(found <= exact && exact - found < 20.0, "{offset}: {found} {exact}");
        }
    }
}
