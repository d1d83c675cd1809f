//! The floating-point types of up to 32 bits as they are stored.

/// Bits of the exponent of an f32: all of them are set in infinities and NaN.
pub(crate) const EXPONENT: u32 = 0x7f80_0000;

/// An element as it is stored: widened to f32 exactly, and ranked among the values of its type.
pub(crate) trait Stored<const N: usize> {
    /// How far apart two ranks are, with its top bit turned: vectors of every processor compare signed numbers only.
    type Distance: Copy + Ord;
    /// Binary digits of a value, the leading one among them.
    const DIGITS: u32;
    /// A distance of 0.
    const NONE: Self::Distance;
    /// Bits of the f32 of equal value.
    fn widen(bytes: [u8; N]) -> u32;
    /// Representable values from one to the other; +0 and -0 are one value.
    fn distance(left: [u8; N], right: [u8; N]) -> Self::Distance;
    /// The distance as a number.
    fn plain(distance: Self::Distance) -> u32;
    /// How many of fewer than 2^16 distances are larger than `limit`.
    fn above(distances: &[Self::Distance], limit: u32) -> u32;
    /// In how many of fewer than 2^16 places two lists have other bytes.
    fn different(left: &[[u8; N]], right: &[[u8; N]]) -> u32;
}

/// IEEE binary32.
pub(crate) struct Single;
/// bfloat16.
pub(crate) struct Brain;
/// IEEE binary16.
pub(crate) struct Half;

/// What all types of one width share; counts are kept in lanes as wide as an element.
macro_rules! ranked {
    ($bits:ty, $signed:ty, $width:literal, $top:literal) => {
        type Distance = $signed;
        const NONE: $signed = <$signed>::MIN;
        #[inline(always)]
        fn distance(left: [u8; $width], right: [u8; $width]) -> $signed {
            let rank = |bytes: [u8; $width]| {
                let bits = <$bits>::from_le_bytes(bytes);
                let magnitude = bits & !$top;
                if bits & $top == 0 { $top + magnitude } else { $top - magnitude }
            };
            let (left, right) = (rank(left), rank(right));
            ((left.max(right) - left.min(right)) ^ $top).cast_signed()
        }
        #[inline(always)]
        fn plain(distance: $signed) -> u32 {
            u32::from(distance.cast_unsigned() ^ $top)
        }
        #[inline(always)]
        fn above(distances: &[$signed], limit: u32) -> u32 {
            let Ok(limit) = <$bits>::try_from(u64::from(limit)) else { return 0 };
            let limit = (limit ^ $top).cast_signed();
            let mut count: $bits = 0;
            for distance in distances {
                count += <$bits>::from(*distance > limit);
            }
            u32::from(count)
        }
        #[inline(always)]
        fn different(left: &[[u8; $width]], right: &[[u8; $width]]) -> u32 {
            let mut count: $bits = 0;
            for (l, r) in left.iter().zip(right) {
                count += <$bits>::from(<$bits>::from_le_bytes(*l) != <$bits>::from_le_bytes(*r));
            }
            u32::from(count)
        }
    };
}

impl Stored<4> for Single {
    ranked!(u32, i32, 4, 0x8000_0000);
    const DIGITS: u32 = 24;
    #[inline(always)]
    fn widen(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
}

impl Stored<2> for Brain {
    ranked!(u16, i16, 2, 0x8000);
    const DIGITS: u32 = 8;
    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> u32 {
        u32::from(u16::from_le_bytes(bytes)) << 16
    }
}

impl Stored<2> for Half {
    ranked!(u16, i16, 2, 0x8000);
    const DIGITS: u32 = 11;
    #[inline(always)]
    fn widen(bytes: [u8; 2]) -> u32 {
        let bits = u32::from(u16::from_le_bytes(bytes));
        // Exponent and fraction moved into place are the value times 2^-112, subnormal values included.
        let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
        let special = if bits & 0x7c00 == 0x7c00 { EXPONENT } else { 0 };
        scaled.to_bits() | special | (bits & 0x8000) << 16
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_value_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (narrow, wide) =
                (f16::from_bits(bits), f32::from_bits(Half::widen(bits.to_le_bytes())));
            let expected = narrow.to_f32();
            assert!(
                wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan()),
                "{bits:04x}"
            );
            let brain = f32::from_bits(Brain::widen(bits.to_le_bytes()));
            let expected = bf16::from_bits(bits).to_f32();
            assert!(brain.to_bits() == expected.to_bits() || (brain.is_nan() && expected.is_nan()));
        }
    }

    #[test]
    fn distances_count_representable_values() {
        let of = |a: f32, b: f32| Single::plain(Single::distance(a.to_le_bytes(), b.to_le_bytes()));
        assert_eq!((of(0.0, -0.0), of(1.0, f32::from_bits(1.0_f32.to_bits() + 1))), (0, 1));
        assert_eq!(of(-f32::from_bits(3), f32::from_bits(4)), 7);
        assert_eq!(of(f32::MAX, f32::MIN), 2 * f32::MAX.to_bits());
        let half = |a: u16, b: u16| Half::plain(Half::distance(a.to_le_bytes(), b.to_le_bytes()));
        assert_eq!((half(0x8001, 0x0001), half(0x7bff, 0xfbff)), (2, 2 * 0x7bff));
        let distances = [0_u16, 1, 2, 3, 40_000].map(|d| (d ^ 0x8000).cast_signed());
        let above = |limit| <Brain as Stored<2>>::above(&distances, limit);
        assert_eq!([0, 1, 2, 39_999, 40_000, 70_000].map(above), [4, 3, 2, 1, 0, 0]);
    }
}
