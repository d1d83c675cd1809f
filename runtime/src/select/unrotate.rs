//! The un-rotate form of `hf`: a cached row turned back to position 0, and a head's polar form against it.

use super::kernel::fold;
use super::trig::{self, Block, LANES};
use super::weights::Head;

/// A head's statistics in blocks, padded with zeros.
pub(super) struct Padded {
    re: Vec<Block>,
    im: Vec<Block>,
    modulus: Vec<Block>,
    scale: Vec<Block>,
    energy: Vec<Block>,
}

impl Padded {
    pub(super) fn new(head: &Head) -> Self {
        Self {
            re: blocks(&head.re),
            im: blocks(&head.im),
            modulus: blocks(&head.modulus),
            scale: blocks(&head.scale),
            energy: blocks(&head.energy),
        }
    }

    /// E.
    pub(super) fn norm(&self, row: &Unrotated) -> f32 {
        let mut lanes = [0.0_f32; LANES];
        for (energy, modulus) in self.energy.iter().zip(&row.modulus) {
            for lane in 0..LANES {
                lanes[lane] += energy[lane] * modulus[lane];
            }
        }
        fold(&lanes)
    }

    /// Amplitude times s, and phase, of mu * conj(z) in one block of frequencies.
    pub(super) fn polar(&self, row: &Unrotated, block: usize) -> (Block, Block) {
        let (re, im) = (&self.re[block], &self.im[block]);
        let (x, y) = (&row.x[block], &row.y[block]);
        let along: Block = std::array::from_fn(|i| re[i] * x[i] + im[i] * y[i]);
        let across: Block = std::array::from_fn(|i| im[i] * x[i] - re[i] * y[i]);
        let amplitude = std::array::from_fn(|i| {
            self.modulus[block][i] * row.modulus[block][i] * self.scale[block][i]
        });
        (amplitude, trig::atan2(&across, &along))
    }
}

/// One key row turned back to position 0, in blocks of frequencies.
pub(super) struct Unrotated {
    x: Vec<Block>,
    y: Vec<Block>,
    modulus: Vec<Block>,
}

impl Unrotated {
    pub(super) fn new(blocks: usize) -> Self {
        let zero = vec![[0.0; LANES]; blocks];
        Self { x: zero.clone(), y: zero.clone(), modulus: zero }
    }

    pub(super) fn fill(&mut self, key: &[f32], w: &[Block], position: f32, scaling: f32) {
        let freqs = key.len() / 2;
        let (xs, ys) = key.split_at(freqs);
        for (block, w) in w.iter().enumerate() {
            let (x, y) = (padded(xs, block), padded(ys, block));
            let (sin, cos) = trig::sin_cos(&w.map(|w| position * w));
            // The model's tables carry the factor; they are divided by it again, as are the keys.
            let plain = |value: f32| value * scaling / scaling;
            for lane in 0..LANES {
                let (c, s) = (plain(cos[lane]), plain(sin[lane]));
                let (x, y) = (x[lane] / scaling, y[lane] / scaling);
                let (back_x, back_y) = (x * c + y * s, y * c - x * s);
                self.x[block][lane] = back_x;
                self.y[block][lane] = back_y;
                self.modulus[block][lane] = (back_x * back_x + back_y * back_y).sqrt();
            }
        }
    }
}

fn padded(values: &[f32], block: usize) -> Block {
    std::array::from_fn(|lane| values.get(block * LANES + lane).copied().unwrap_or(0.0))
}

pub(super) fn blocks(values: &[f32]) -> Vec<Block> {
    (0..values.len().div_ceil(LANES)).map(|block| padded(values, block)).collect()
}
