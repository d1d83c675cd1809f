//! Quantised blocks of ggml turned into f32.
//!
//! Every format stores scales as binary16 (`d`, and `m` or `dmin` for the offset) and small integers `q`. Widening a scale and turning an
//! integer into f32 are exact; each product and each difference below is one f32 operation, rounded to nearest even, in the order written,
//! as in ggml's own `dequantize_row_*`. Formulas by format, `32` or `256` elements to a block:
//!
//! | format | element |
//! |---|---|
//! | Q8_0 | `d * q`, q in -128..127 |
//! | Q4_0 | `d * (q - 8)`, q in 0..15 |
//! | Q4_1 | `d * q + m` |
//! | Q4_K, Q5_K | `(d * scale) * q - (dmin * min)`, 6-bit scale and min for each 32 elements |
//! | Q6_K | `(d * scale) * (q - 32)`, 8-bit signed scale for each 16 elements |

use half::f16;

/// A quantised element type that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quant {
    Q8_0,
    Q4_0,
    Q4_1,
    Q4K,
    Q5K,
    Q6K,
}

/// The binary16 at `at`, widened.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

impl Quant {
    /// The type of this name, where it is one that is read.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "Q8_0" => Self::Q8_0,
            "Q4_0" => Self::Q4_0,
            "Q4_1" => Self::Q4_1,
            "Q4_K" => Self::Q4K,
            "Q5_K" => Self::Q5K,
            "Q6_K" => Self::Q6K,
            _ => return None,
        })
    }

    /// Elements and bytes of a block.
    const fn block(self) -> (usize, usize) {
        match self {
            Self::Q8_0 => (32, 2 + 32),
            Self::Q4_0 => (32, 2 + 16),
            Self::Q4_1 => (32, 2 + 2 + 16),
            Self::Q4K => (256, 2 + 2 + 12 + 128),
            Self::Q5K => (256, 2 + 2 + 12 + 32 + 128),
            Self::Q6K => (256, 128 + 64 + 16 + 2),
        }
    }

    /// Bytes of `elements`; `None` where they are no whole blocks.
    pub(super) fn bytes_of(self, elements: usize) -> Option<usize> {
        let (block, bytes) = self.block();
        if elements.is_multiple_of(block) { (elements / block).checked_mul(bytes) } else { None }
    }

    /// Whole blocks into as many elements.
    pub(super) fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        let (elements, size) = self.block();
        for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements)) {
            match self {
                Self::Q8_0 => q8_0(block, out),
                Self::Q4_0 => nibbles(&block[2..], out, |q| half(block, 0) * (q - 8.0)),
                Self::Q4_1 => nibbles(&block[4..], out, |q| half(block, 0) * q + half(block, 2)),
                Self::Q4K => q4_k(block, out),
                Self::Q5K => q5_k(block, out),
                Self::Q6K => q6_k(block, out),
            }
        }
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (out, q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q.cast_signed());
    }
}

/// Low nibbles are the first half of the block, high nibbles the second.
fn nibbles(qs: &[u8], out: &mut [f32], value: impl Fn(f32) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(qs) {
        *low = value(f32::from(q & 0xF));
        *high = value(f32::from(q >> 4));
    }
}

/// Scale and minimum of sub-block `j`: eight of each, six bits wide, in twelve bytes. The first four lie in the low six bits of bytes
/// `j` and `j + 4`; of the others the low four bits share byte `j + 4` and the high two stand above the first four.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        ((low & 0xF) | ((packed[j - 4] >> 6) << 4), (low >> 4) | ((packed[j] >> 6) << 4))
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (scales, qs) = (&block[4..16], &block[16..]);
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(scales, j);
        let (scale, min) = (d * scale, dmin * min);
        let shift = 4 * (j % 2);
        for (out, q) in out.iter_mut().zip(&qs[32 * (j / 2)..]) {
            *out = scale * f32::from((q >> shift) & 0xF) - min;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (scales, high, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(scales, j);
        let (scale, min) = (d * scale, dmin * min);
        let shift = 4 * (j % 2);
        for ((out, q), high) in out.iter_mut().zip(&qs[32 * (j / 2)..]).zip(high) {
            let q = ((q >> shift) & 0xF) | (((high >> j) & 1) << 4);
            *out = scale * f32::from(q) - min;
        }
    }
}

/// Two halves of 128 elements. In each, four runs of 32 share the bytes of `high`, two bits each; the first two runs are the low nibbles
/// of `low`, the others the high ones.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = (&rest[..16], half(rest, 16));
    for (place, out) in out.iter_mut().enumerate() {
        let (side, run, within) = (place / 128, place % 128 / 32, place % 32);
        let nibble = low[64 * side + 32 * (run % 2) + within] >> (4 * (run / 2)) & 0xF;
        let top = high[32 * side + within] >> (2 * run) & 3;
        let q = f32::from(nibble | (top << 4)) - 32.0;
        *out = d * f32::from(scales[place / 16].cast_signed()) * q;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random blocks of every format against the values that the `gguf` Python package makes of them, bit for bit.
    #[test]
    fn every_format_has_the_bits_of_the_golden_values() {
        let path = lockstep_testkit::data().join("golden/gguf/quants.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let names = ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"];
        for name in names {
            let quant = Quant::from_name(name).unwrap();
            let raw = file.tensor(&format!("{name}.raw")).unwrap();
            let wanted = file.tensor(&format!("{name}.values")).unwrap();
            let wanted: Vec<u32> =
                wanted.data().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            assert_eq!(wanted.len(), 2048);
            let mut out = vec![f32::NAN; wanted.len()];
            assert_eq!(quant.bytes_of(out.len()), Some(raw.data().len()));
            quant.dequantise(raw.data(), &mut out);
            let bad = out.iter().zip(&wanted).filter(|(a, b)| a.to_bits() != **b).count();
            // -0 and +0 are one value; nothing else may differ.
            let zero = |(a, b): (&f32, &u32)| a.to_bits() << 1 == 0 && b << 1 == 0;
            let excused =
                out.iter().zip(&wanted).filter(|p| p.0.to_bits() != *p.1 && zero((p.0, p.1)));
            assert_eq!(bad, excused.count(), "{name}");
        }
    }

    #[test]
    fn halves_of_blocks_are_refused() {
        assert_eq!(Quant::Q4_1.bytes_of(33), None);
        assert_eq!(Quant::Q6K.bytes_of(512), Some(420));
    }

    #[test]
    fn a_block_by_hand() {
        // d = 2, m = -1; the first byte holds 3 (low) and 15 (high).
        let mut block = vec![0_u8; 20];
        block[..2].copy_from_slice(&0x4000_u16.to_le_bytes());
        block[2..4].copy_from_slice(&0xBC00_u16.to_le_bytes());
        block[4] = 0xF3;
        let mut out = [0.0; 32];
        Quant::Q4_1.dequantise(&block, &mut out);
        assert_eq!((out[0], out[16], out[1]), (5.0, 29.0, -1.0));
    }
}
