//! Values and ranks of stored elements. Every element is little-endian here; a view has turned the others round.

use half::f16;
use lockstep_traces::tensor_files::{Element, PlainTensor};

use super::view::View;

/// Appends what `read` makes of each element's bytes.
fn fill<const N: usize, T>(bytes: &[u8], out: &mut Vec<T>, read: impl Fn([u8; N]) -> T) {
    out.extend(bytes.as_chunks::<N>().0.iter().map(|element| read(*element)));
}

/// The values of a block as f64: exact but for integers beyond 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "64-bit integers are compared by their bits; the figures are of their f64 values"
)]
pub(super) fn values(element: Element, bytes: &[u8], out: &mut Vec<f64>) {
    out.clear();
    match element {
        Element::F64 => fill(bytes, out, f64::from_le_bytes),
        Element::F32 => fill(bytes, out, |b| f32::from_le_bytes(b).into()),
        Element::F16 => fill(bytes, out, |b| f16::from_le_bytes(b).to_f64()),
        Element::Bf16 => {
            fill(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16).into());
        }
        Element::I64 => fill(bytes, out, |b| i64::from_le_bytes(b) as f64),
        Element::U64 => fill(bytes, out, |b| u64::from_le_bytes(b) as f64),
        Element::I32 => fill(bytes, out, |b| i32::from_le_bytes(b).into()),
        Element::U32 => fill(bytes, out, |b| u32::from_le_bytes(b).into()),
        Element::I16 => fill(bytes, out, |b| i16::from_le_bytes(b).into()),
        Element::U16 => fill(bytes, out, |b| u16::from_le_bytes(b).into()),
        Element::I8 => fill(bytes, out, |b| i8::from_le_bytes(b).into()),
        Element::U8 | Element::Bool => fill(bytes, out, |[b]| b.into()),
        Element::F8E4M3 | Element::F8E5M2 | Element::F8E4M3Fnuz | Element::F8E5M2Fnuz => {
            fill(bytes, out, |[b]| eight(element, b));
        }
    }
}

/// The value of one fp8 code (OCP 8-bit floating point, and the FNUZ variants of arXiv:2206.02915).
fn eight(element: Element, code: u8) -> f64 {
    let (fraction_bits, bias) = match element {
        Element::F8E4M3 => (3, 7),
        Element::F8E4M3Fnuz => (3, 8),
        Element::F8E5M2 => (2, 15),
        _ => (2, 16),
    };
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((code & 0x7f) >> fraction_bits);
    let fraction = f64::from(code & ((1 << fraction_bits) - 1)) / f64::from(1_u8 << fraction_bits);
    match element {
        Element::F8E4M3 if code & 0x7f == 0x7f => return f64::NAN,
        Element::F8E4M3Fnuz | Element::F8E5M2Fnuz if code == 0x80 => return f64::NAN,
        Element::F8E5M2 if exponent == 31 => {
            return if fraction > 0.0 { f64::NAN } else { sign * f64::INFINITY };
        }
        _ => {}
    }
    let scale = |exponent: i32| 2f64.powi(exponent - bias);
    sign * if exponent == 0 { fraction * scale(1) } else { (1.0 + fraction) * scale(exponent) }
}

/// Are two elements of these values, one of them a 64-bit integer, the same number? Their f64 values may be equal by rounding.
pub(super) fn same_whole(
    (left, l): (Element, &[u8]),
    (right, r): (Element, &[u8]),
    at: usize,
    value: f64,
) -> bool {
    let whole = |element: Element, bytes: &[u8]| -> Option<i128> {
        let stored = bytes.as_chunks::<8>().0.get(at);
        match element {
            Element::I64 => Some(i64::from_le_bytes(*stored?).into()),
            Element::U64 => Some(u64::from_le_bytes(*stored?).into()),
            // The f64 value is the element's own.
            #[expect(clippy::cast_possible_truncation, reason = "a 64-bit integer lies next to it")]
            _ => Some(value as i128),
        }
    };
    whole(left, l) == whole(right, r)
}

/// Ranks of a block: neighbouring values of the type differ by 1, +0 and -0 are one.
pub(super) fn ranks(element: Element, bytes: &[u8], out: &mut Vec<i64>) {
    /// Rank of a pattern of sign and magnitude in the low `width` bits.
    const fn signed(bits: u64, width: u32) -> i64 {
        let top = 1_u64 << (width - 1);
        let magnitude = (bits & (top - 1)).cast_signed();
        if bits & top == 0 { magnitude } else { -magnitude }
    }
    out.clear();
    match element {
        Element::F64 => fill(bytes, out, |b| signed(u64::from_le_bytes(b), 64)),
        Element::F32 => fill(bytes, out, |b| signed(u32::from_le_bytes(b).into(), 32)),
        Element::F16 | Element::Bf16 => {
            fill(bytes, out, |b| signed(u16::from_le_bytes(b).into(), 16));
        }
        Element::F8E4M3 | Element::F8E5M2 | Element::F8E4M3Fnuz | Element::F8E5M2Fnuz => {
            fill(bytes, out, |[b]| signed(b.into(), 8));
        }
        Element::I64 => fill(bytes, out, i64::from_le_bytes),
        // The order of unsigned numbers, moved into the signed range.
        Element::U64 => fill(bytes, out, |b| (u64::from_le_bytes(b) ^ 1 << 63).cast_signed()),
        Element::I32 => fill(bytes, out, |b| i32::from_le_bytes(b).into()),
        Element::U32 => fill(bytes, out, |b| u32::from_le_bytes(b).into()),
        Element::I16 => fill(bytes, out, |b| i16::from_le_bytes(b).into()),
        Element::U16 => fill(bytes, out, |b| u16::from_le_bytes(b).into()),
        Element::I8 => fill(bytes, out, |b| i8::from_le_bytes(b).into()),
        Element::U8 | Element::Bool => fill(bytes, out, |[b]| b.into()),
    }
}

/// NaN and infinities of a block.
pub(super) fn non_finite(element: Element, bytes: &[u8]) -> (u64, u64) {
    // Magnitudes are signed, since the widest vectors that every processor has compare only signed numbers.
    let long = |b| (u32::from_le_bytes(b) & 0x7fff_ffff).cast_signed();
    let short = |b| (u16::from_le_bytes(b) & 0x7fff).cast_signed();
    match element {
        Element::F32 => patterns::<4, i32>(bytes, long, 0x7f80_0000),
        Element::F16 => patterns::<2, i16>(bytes, short, 0x7c00),
        Element::Bf16 => patterns::<2, i16>(bytes, short, 0x7f80),
        Element::F64
        | Element::F8E4M3
        | Element::F8E5M2
        | Element::F8E4M3Fnuz
        | Element::F8E5M2Fnuz => {
            let mut decoded = Vec::new();
            values(element, bytes, &mut decoded);
            let count = |test: fn(&&f64) -> bool| decoded.iter().filter(test).count() as u64;
            (count(|value| value.is_nan()), count(|value| value.is_infinite()))
        }
        _ => (0, 0),
    }
}

/// Magnitudes above (NaN) and at (infinity) `infinity`. Chunks with none are passed by their largest magnitude alone.
fn patterns<const N: usize, T: Ord + Copy + Default>(
    bytes: &[u8],
    magnitude: impl Fn([u8; N]) -> T,
    infinity: T,
) -> (u64, u64) {
    let (mut nan, mut infinite) = (0, 0);
    for chunk in bytes.as_chunks::<N>().0.chunks(1024) {
        let largest = chunk.iter().fold(T::default(), |largest, b| magnitude(*b).max(largest));
        if largest >= infinity {
            nan += chunk.iter().filter(|b| magnitude(**b) > infinity).count() as u64;
            infinite += chunk.iter().filter(|b| magnitude(**b) == infinity).count() as u64;
        }
    }
    (nan, infinite)
}

/// All values of a view of integers.
pub(super) fn integers(view: &View<'_>) -> Option<Vec<i64>> {
    if view.element.is_float() {
        return None;
    }
    let (mut buffer, mut out) = (Vec::new(), Vec::new());
    ranks(view.element, view.block(0, view.elements(), &mut buffer), &mut out);
    Some(out)
}

/// All values of a tensor.
pub(crate) fn decoded(tensor: &PlainTensor) -> Vec<f64> {
    let view = View::of(tensor);
    let (mut buffer, mut out) = (Vec::new(), Vec::new());
    values(view.element, view.block(0, view.elements(), &mut buffer), &mut out);
    out
}

/// The value of one element.
pub(super) fn value_at(view: &View<'_>, index: &[usize]) -> f64 {
    let (mut bytes, mut out) = ([0; 8], Vec::with_capacity(1));
    view.element_at(index, &mut bytes);
    values(view.element, bytes.get(..view.element.size()).unwrap_or_default(), &mut out);
    out.first().copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn fp8_codes_have_the_values_of_the_specification() {
        let at = |element, code| eight(element, code);
        // Largest normal, smallest normal, smallest subnormal of OCP FP8.
        assert_eq!(
            (at(Element::F8E4M3, 0x7e), at(Element::F8E4M3, 0x08), at(Element::F8E4M3, 0x01)),
            (448.0, 2f64.powi(-6), 2f64.powi(-9))
        );
        assert_eq!(
            (at(Element::F8E5M2, 0x7b), at(Element::F8E5M2, 0x04), at(Element::F8E5M2, 0x01)),
            (57344.0, 2f64.powi(-14), 2f64.powi(-16))
        );
        assert!(
            at(Element::F8E4M3, 0xff).is_nan() && at(Element::F8E5M2, 0xfc) == f64::NEG_INFINITY
        );
        // FNUZ: half the magnitudes, the code of -0 is NaN.
        assert_eq!(
            (at(Element::F8E4M3Fnuz, 0x7f), at(Element::F8E5M2Fnuz, 0x7f)),
            (240.0, 57344.0)
        );
        assert!(at(Element::F8E4M3Fnuz, 0x80).is_nan());
        // E5M2 is the upper byte of binary16.
        for code in 0..=u8::MAX {
            let half = f16::from_bits(u16::from(code) << 8).to_f64();
            let found = at(Element::F8E5M2, code);
            assert!(
                found.to_bits() == half.to_bits() || (found.is_nan() && half.is_nan()),
                "{code:02x}"
            );
        }
    }

    #[test]
    fn bf16_widening_is_exact_and_non_finite_values_are_counted() {
        let bytes: Vec<u8> = [1.5_f32, f32::NAN, f32::INFINITY, -2.0]
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect();
        let mut out = Vec::new();
        values(Element::Bf16, &bytes, &mut out);
        assert_eq!((out[0], out[3]), (1.5, -2.0));
        assert_eq!(non_finite(Element::Bf16, &bytes), (1, 1));
        assert_eq!(non_finite(Element::F32, &f32::NEG_INFINITY.to_le_bytes()), (0, 1));
        assert_eq!(non_finite(Element::F64, &f64::NAN.to_le_bytes()), (1, 0));
    }
}
