//! The score of a cached row for one attention head: rotated form (`TRIATTENTION.md` 3.1) and un-rotated form (3.2).

use half::{bf16, f16};
use lockstep_traces::{Aggregation, DType};

use super::error::same;
use super::heads::{HeadMeans, HeadStats, length};
use super::input::{Input, KeyView};
use super::phase::{self, Trig};
use super::real::{count, narrow};
use super::recipe::{Floor, KeyForm, Moduli, Pairing, Recipe};
use super::{Real, SelectError};

/// Scores of one layer: by head of the statistics, rows from the first scored one on; `None` where the head is not
/// sampled.
pub type LayerScores<R> = Vec<Option<Vec<R>>>;

/// What every row of a selection shares.
#[derive(Debug)]
pub struct Scorer<'a, R> {
    recipe: &'a Recipe,
    stats: &'a HeadStats,
    input: &'a Input<'a>,
    group: usize,
    first: usize,
    omega: Vec<f32>,
    offsets: Vec<usize>,
    trig: Trig<R>,
}

impl<'a, R: Real> Scorer<'a, R> {
    /// Prepares phases. `stats` are those the recipe scores with (averaged already where it says so); `group` is the
    /// number of their heads per KV head; rows before `first` are not scored.
    ///
    /// # Errors
    /// [`SelectError`] where the input contradicts itself.
    pub fn new(
        recipe: &'a Recipe,
        stats: &'a HeadStats,
        input: &'a Input<'a>,
        group: usize,
        first: usize,
    ) -> Result<Self, SelectError> {
        input.check(stats.freqs())?;
        same("layers of cached keys", input.layers.len(), input.keys.len())?;
        let omega = phase::omega(recipe, stats.omega());
        let offsets = phase::offsets(recipe.offset_max_length);
        let trig = match recipe.keys {
            KeyForm::Rotated => {
                phase::trig(recipe.phases, input.moment.round_start, &offsets, &omega)
            }
            KeyForm::Unrotated => Trig { cos: Vec::new(), sin: Vec::new() },
        };
        Ok(Self { recipe, stats, input, group, first, omega, offsets, trig })
    }

    /// Scores of one layer of the cache with the statistics of `stats_layer`.
    #[must_use]
    pub fn layer(&self, index: usize, stats_layer: u32) -> LayerScores<R> {
        let mut scores: LayerScores<R> = vec![None; self.stats.heads().len()];
        for kv in 0..self.input.heads.kv_heads {
            let members = self.members(stats_layer, kv);
            if members.is_empty() {
                continue;
            }
            let rows = self.kv_head(index, kv);
            for (slot, means) in members {
                let one = match self.recipe.keys {
                    KeyForm::Rotated => self.rotated(&means, &rows),
                    KeyForm::Unrotated => self.unrotated(&means, &rows),
                };
                if let Some(place) = scores.get_mut(slot) {
                    *place = Some(one);
                }
            }
        }
        scores
    }

    /// Sampled heads of one KV head, with their index among the heads of the statistics.
    fn members(&self, stats_layer: u32, kv: usize) -> Vec<(usize, HeadMeans<R>)> {
        let of_kv = |(slot, head): (usize, &u32)| {
            let own = usize::try_from(*head).is_ok_and(|head| head / self.group == kv);
            own.then(|| self.stats.head(stats_layer, *head)).flatten().map(|means| (slot, means))
        };
        self.stats.heads().iter().enumerate().filter_map(of_kv).collect()
    }

    fn kv_head(&self, index: usize, kv: usize) -> KvHead<R> {
        let Some(view) = self.input.keys.get(index) else { return KvHead::default() };
        let mut head = KvHead::read(view, kv, self.first, self.recipe.pairing);
        match self.recipe.keys {
            KeyForm::Rotated => head.measure(view.dtype(), self.recipe),
            KeyForm::Unrotated => {
                let positions = self.input.positions.of(index, kv);
                let alpha = R::of(self.alpha());
                head.unrotate(positions.get(self.first..).unwrap_or_default(), &self.omega, alpha);
            }
        }
        head
    }

    /// Attention scaling: its square is what the statistics hold.
    fn alpha(&self) -> f64 {
        self.stats.scale().first().copied().unwrap_or(1.0).sqrt()
    }

    fn rotated(&self, means: &HeadMeans<R>, head: &KvHead<R>) -> Vec<R> {
        let scale: Vec<R> = self.stats.scale().iter().map(|s| R::of(*s)).collect();
        let extra = means.extra(self.recipe.mean_floor, self.recipe.no_mlr);
        let mut scores = Vec::with_capacity(head.rows());
        // The mean over offsets is linear, so that it may be taken over the phases once for all rows.
        let waves = match self.recipe.offsets {
            Aggregation::Mean => vec![mean_wave(&self.trig)],
            Aggregation::Max => {
                self.trig.cos.iter().cloned().zip(self.trig.sin.iter().cloned()).collect()
            }
        };
        for (row, (x, y)) in head.pairs().enumerate() {
            let modulus = head.modulus_row(row);
            let own = dot3(&extra, modulus, &scale);
            if self.recipe.no_trig {
                scores.push(own);
                continue;
            }
            let series = |(cos, sin): &(Vec<R>, Vec<R>)| {
                let mut sum = R::ZERO;
                for f in 0..scale.len() {
                    let along = means.real[f] * x[f] + means.imag[f] * y[f];
                    let across = means.imag[f] * x[f] - means.real[f] * y[f];
                    sum += scale[f] * (along * cos[f] - across * sin[f]);
                }
                sum
            };
            let best = waves.iter().map(series).reduce(R::larger).unwrap_or(R::ZERO);
            scores.push(best + own);
        }
        scores
    }

    fn unrotated(&self, means: &HeadMeans<R>, head: &KvHead<R>) -> Vec<R> {
        let scale: Vec<R> = self.stats.scale().iter().map(|s| R::of(*s)).collect();
        let extra = means.extra(Floor::None, self.recipe.no_mlr);
        let lengths = means.length(Floor::None);
        let freqs = scale.len();
        let f32s = |values: &[R]| values.iter().map(|value| narrow(value.wide())).collect();
        let (real, imag): (Vec<f32>, Vec<f32>) = (f32s(&means.real), f32s(&means.imag));
        let mut scores = Vec::with_capacity(head.rows());
        for row in 0..head.rows() {
            let modulus = head.modulus_row(row);
            let own = dot3(&extra, modulus, &scale);
            if self.recipe.no_trig {
                scores.push(own);
                continue;
            }
            let amplitude: Vec<R> =
                (0..freqs).map(|f| lengths[f] * modulus[f] * scale[f]).collect();
            let angle = head.angles(row, &real, &imag);
            // Distance, distance + offset, its product with w and the sum with the angle are each rounded to f32.
            let distance = narrow(count(self.input.moment.round_start))
                - head.positions.get(row).copied().unwrap_or_default();
            let series = |offset: &usize| {
                let t = distance + narrow(count(*offset));
                let mut sum = R::ZERO;
                for f in 0..freqs {
                    let (_, cos) = R::sin_cos_of(t * self.omega[f] + angle[f]);
                    sum += amplitude[f] * cos;
                }
                sum + own
            };
            let each = self.offsets.iter().map(series);
            scores.push(match self.recipe.offsets {
                Aggregation::Mean => each.sum::<R>() / R::of(count(self.offsets.len())),
                Aggregation::Max => each.reduce(R::larger).unwrap_or(own),
            });
        }
        scores
    }
}

fn mean_wave<R: Real>(trig: &Trig<R>) -> (Vec<R>, Vec<R>) {
    let n = R::of(count(trig.cos.len().max(1)));
    let mean = |rows: &[Vec<R>]| -> Vec<R> {
        let freqs = rows.first().map_or(0, Vec::len);
        (0..freqs).map(|f| rows.iter().map(|row| row[f]).sum::<R>() / n).collect()
    };
    (mean(&trig.cos), mean(&trig.sin))
}

fn dot3<R: Real>(a: &[R], b: &[R], c: &[R]) -> R {
    a.iter().zip(b).zip(c).map(|((a, b), c)| *a * *b * *c).sum()
}

/// One KV head of one layer, halves split: `x`, `y` and moduli are `[rows, freqs]`; positions as f32.
#[derive(Debug, Default)]
struct KvHead<R> {
    freqs: usize,
    x: Vec<R>,
    y: Vec<R>,
    modulus: Vec<R>,
    positions: Vec<f32>,
    /// Un-rotated pairs in f32: what an angle is taken from is an f32 in the programs, and so is the angle.
    pairs32: Vec<(f32, f32)>,
}

impl<R: Real> KvHead<R> {
    fn read(view: &KeyView<'_>, kv: usize, first: usize, pairing: Pairing) -> Self {
        let (width, freqs) = (view.head_dim(), view.head_dim() / 2);
        let values = view.head::<R>(kv);
        let mut head = Self { freqs, ..Self::default() };
        for row in values.chunks_exact(width).skip(first) {
            match pairing {
                Pairing::Half => {
                    let (x, y) = row.split_at(freqs);
                    head.x.extend_from_slice(x);
                    head.y.extend_from_slice(y);
                }
                Pairing::Interleaved => {
                    head.x.extend(row.iter().step_by(2));
                    head.y.extend(row.iter().skip(1).step_by(2));
                }
            }
        }
        head
    }

    fn rows(&self) -> usize {
        self.x.len() / self.freqs.max(1)
    }

    fn pairs(&self) -> impl Iterator<Item = (&[R], &[R])> {
        let freqs = self.freqs.max(1);
        self.x.chunks_exact(freqs).zip(self.y.chunks_exact(freqs))
    }

    fn modulus_row(&self, row: usize) -> &[R] {
        self.modulus.get(row * self.freqs..(row + 1) * self.freqs).unwrap_or_default()
    }

    fn measure(&mut self, dtype: DType, recipe: &Recipe) {
        let one = |(x, y): (&R, &R)| match recipe.moduli {
            Moduli::Full => length(*x, *y, recipe.key_floor),
            Moduli::CacheDtype => R::of(rounded_length(x.wide(), y.wide(), dtype)),
        };
        self.modulus = self.x.iter().zip(&self.y).map(one).collect();
    }

    /// Undoes the rotation of each row by its own position and the attention scaling.
    fn unrotate(&mut self, positions: &[i32], omega: &[f32], alpha: R) {
        let f32s = |values: &[R]| -> Vec<f32> { values.iter().map(|v| narrow(v.wide())).collect() };
        let (mut x32, mut y32) = (f32s(&self.x), f32s(&self.y));
        turn_back(&mut x32, &mut y32, positions, omega, narrow(alpha.wide()));
        self.pairs32 = x32.into_iter().zip(y32).collect();
        turn_back(&mut self.x, &mut self.y, positions, omega, alpha);
        self.modulus = self.x.iter().zip(&self.y).map(|(x, y)| x.hypot(*y)).collect();
        self.positions = positions.iter().map(|position| narrow(f64::from(*position))).collect();
    }

    /// Angles of `mean * conj(key)` of one row, in f32.
    fn angles(&self, row: usize, real: &[f32], imag: &[f32]) -> Vec<f32> {
        let pairs = self.pairs32.iter().skip(row * self.freqs);
        let one =
            |((a, b), (x, y)): ((&f32, &f32), &(f32, f32))| (b * x - a * y).atan2(a * x + b * y);
        real.iter().zip(imag).zip(pairs).map(one).collect()
    }
}

/// Multiplies each pair by `e^{-i p w} / alpha`.
fn turn_back<R: Real>(x: &mut [R], y: &mut [R], positions: &[i32], omega: &[f32], alpha: R) {
    let freqs = omega.len().max(1);
    let rows = x.chunks_exact_mut(freqs).zip(y.chunks_exact_mut(freqs));
    for ((x, y), position) in rows.zip(positions) {
        for ((x, y), w) in x.iter_mut().zip(y.iter_mut()).zip(omega) {
            let (sin, cos) = R::sin_cos_of(phase::product(i64::from(*position), *w));
            let (re, im) = (*x * cos + *y * sin, *y * cos - *x * sin);
            (*x, *y) = (re / alpha, im / alpha);
        }
    }
}

/// `sqrt(x² + y²)` where every operation is rounded to the cache dtype (3.4).
fn rounded_length(x: f64, y: f64, dtype: DType) -> f64 {
    let round = |value: f64| match dtype {
        DType::Bf16 => bf16::from_f32(narrow(value)).to_f64(),
        DType::F16 => f16::from_f32(narrow(value)).to_f64(),
        _ => value,
    };
    round(round(round(x * x) + round(y * y)).sqrt())
}
