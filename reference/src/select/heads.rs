//! Calibration statistics as the scorers read them.

use super::error::same;
use super::recipe::Floor;
use super::{Real, SelectError};

/// Statistics of attention heads, widened to f64. Arrays are `[layers, heads, freqs]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadStats {
    layers: Vec<u32>,
    heads: Vec<u32>,
    freqs: usize,
    mean_real: Vec<f64>,
    mean_imag: Vec<f64>,
    modulus: Vec<f64>,
    scale: Vec<f64>,
    omega: Vec<f32>,
    sampled: Vec<(u32, u32)>,
}

/// What [`HeadStats::new`] is made of; `[L, H, F]` arrays as stored.
#[derive(Debug, Clone, Copy)]
pub struct HeadArrays<'a> {
    /// Layer numbers, ascending.
    pub layers: &'a [u32],
    /// Attention head numbers, ascending.
    pub heads: &'a [u32],
    /// Real part of the mean query.
    pub mean_real: &'a [f32],
    /// Imaginary part of the mean query.
    pub mean_imag: &'a [f32],
    /// Mean modulus of the query.
    pub modulus: &'a [f32],
    /// Inverse frequencies `[F]`, f32 as every program holds them.
    pub omega: &'a [f32],
    /// Square of the attention scaling `[F]`; `None`: ones.
    pub scale: Option<&'a [f32]>,
    /// Sampled (layer, head) pairs in file order; `None`: all, layer-major.
    pub sampled: Option<&'a [(u32, u32)]>,
}

impl HeadStats {
    /// Checks the shapes and widens.
    ///
    /// # Errors
    /// [`SelectError::Shape`] or [`SelectError::Input`].
    pub fn new(arrays: HeadArrays<'_>) -> Result<Self, SelectError> {
        let freqs = arrays.omega.len();
        let cells = arrays
            .layers
            .len()
            .checked_mul(arrays.heads.len())
            .and_then(|n| n.checked_mul(freqs))
            .filter(|cells| *cells > 0)
            .ok_or_else(|| SelectError::Input { what: "statistics are empty".to_owned() })?;
        same("statistics q_mean_real", cells, arrays.mean_real.len())?;
        same("statistics q_mean_imag", cells, arrays.mean_imag.len())?;
        same("statistics q_abs_mean", cells, arrays.modulus.len())?;
        let scale = match arrays.scale {
            Some(scale) => {
                same("statistics freq_scale_sq", freqs, scale.len())?;
                wide(scale)
            }
            None => vec![1.0; freqs],
        };
        let all = || {
            let pairs =
                |layer: &u32| arrays.heads.iter().map(|head| (*layer, *head)).collect::<Vec<_>>();
            arrays.layers.iter().flat_map(pairs).collect()
        };
        let sampled = arrays.sampled.map_or_else(all, <[_]>::to_vec);
        for (layer, head) in &sampled {
            if !arrays.layers.contains(layer) || !arrays.heads.contains(head) {
                return Err(SelectError::Input {
                    what: format!(
                        "statistics sample layer {layer} head {head}, which they do not hold"
                    ),
                });
            }
        }
        Ok(Self {
            layers: arrays.layers.to_vec(),
            heads: arrays.heads.to_vec(),
            freqs,
            mean_real: wide(arrays.mean_real),
            mean_imag: wide(arrays.mean_imag),
            modulus: wide(arrays.modulus),
            scale,
            omega: arrays.omega.to_vec(),
            sampled,
        })
    }

    /// Layer numbers.
    #[must_use]
    pub fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// Head numbers.
    #[must_use]
    pub fn heads(&self) -> &[u32] {
        &self.heads
    }

    /// Frequencies (half the head width).
    #[must_use]
    pub const fn freqs(&self) -> usize {
        self.freqs
    }

    /// Inverse frequencies.
    #[must_use]
    pub fn omega(&self) -> &[f32] {
        &self.omega
    }

    /// Square of the attention scaling by frequency.
    #[must_use]
    pub fn scale(&self) -> &[f64] {
        &self.scale
    }

    /// Sampled (layer, head) pairs in file order: the rows of hf's head matrix.
    #[must_use]
    pub fn sampled(&self) -> &[(u32, u32)] {
        &self.sampled
    }

    /// The same statistics with other inverse frequencies.
    ///
    /// # Errors
    /// [`SelectError::Shape`] where the length differs.
    pub fn with_omega(&self, omega: &[f32]) -> Result<Self, SelectError> {
        same("inverse frequencies", self.freqs, omega.len())?;
        Ok(Self { omega: omega.to_vec(), ..self.clone() })
    }

    /// Inverse frequencies and their scale set to those of a model.
    ///
    /// # Errors
    /// [`SelectError::Shape`] where the length differs.
    pub fn with_scale(&self, scale: f64) -> Self {
        Self { scale: vec![scale; self.freqs], ..self.clone() }
    }

    /// Statistics averaged over each GQA group: one "head" per KV head (`TRIATTENTION.md` 4.2, `legacy_layer_local`).
    ///
    /// # Errors
    /// [`SelectError::Input`] unless every head of every group is there.
    pub fn averaged(&self, group: usize) -> Result<Self, SelectError> {
        let heads = self.heads.len();
        let complete = self.heads.iter().zip(0u32..).all(|(head, index)| *head == index)
            && self.sampled.len() == self.layers.len() * heads;
        if group == 0 || !heads.is_multiple_of(group) || !complete {
            return Err(SelectError::Input {
                what: format!(
                    "statistics of {heads} heads cannot be averaged over groups of {group}: every head must be there"
                ),
            });
        }
        let kv_heads = heads / group;
        let mean = |values: &[f64]| -> Vec<f64> {
            let block = group * self.freqs;
            let one = |chunk: &[f64]| -> Vec<f64> {
                (0..self.freqs)
                    .map(|f| {
                        chunk.iter().skip(f).step_by(self.freqs).sum::<f64>()
                            / super::real::count(group)
                    })
                    .collect()
            };
            values.chunks_exact(block).flat_map(one).collect()
        };
        let heads: Vec<u32> = (0u32..).take(kv_heads).collect();
        let sampled =
            self.layers.iter().flat_map(|layer| heads.iter().map(|head| (*layer, *head))).collect();
        Ok(Self {
            mean_real: mean(&self.mean_real),
            mean_imag: mean(&self.mean_imag),
            modulus: mean(&self.modulus),
            heads,
            sampled,
            ..self.clone()
        })
    }

    /// Coefficients of one head, in precision `R`; `None` where the head is not sampled.
    pub(crate) fn head<R: Real>(&self, layer: u32, head: u32) -> Option<HeadMeans<R>> {
        if !self.sampled.contains(&(layer, head)) {
            return None;
        }
        let layer = self.layers.iter().position(|number| *number == layer)?;
        let head = self.heads.iter().position(|number| *number == head)?;
        let start = (layer * self.heads.len() + head) * self.freqs;
        let part = |values: &[f64]| -> Vec<R> {
            values.iter().skip(start).take(self.freqs).map(|value| R::of(*value)).collect()
        };
        Some(HeadMeans {
            real: part(&self.mean_real),
            imag: part(&self.mean_imag),
            modulus: part(&self.modulus),
        })
    }
}

/// Mean query of one head by frequency.
#[derive(Debug, Clone)]
pub(crate) struct HeadMeans<R> {
    pub(crate) real: Vec<R>,
    pub(crate) imag: Vec<R>,
    pub(crate) modulus: Vec<R>,
}

impl<R: Real> HeadMeans<R> {
    /// `|mean|` by frequency under a floor.
    pub(crate) fn length(&self, floor: Floor) -> Vec<R> {
        self.real.iter().zip(&self.imag).map(|(a, b)| length(*a, *b, floor)).collect()
    }

    /// `c = m - |mean|`, or `m` without the modulus correction.
    pub(crate) fn extra(&self, floor: Floor, no_mlr: bool) -> Vec<R> {
        if no_mlr {
            return self.modulus.clone();
        }
        self.modulus.iter().zip(self.length(floor)).map(|(m, length)| *m - length).collect()
    }
}

/// Modulus of (x, y) under a floor (`TRIATTENTION.md` 3.3).
pub(crate) fn length<R: Real>(x: R, y: R, floor: Floor) -> R {
    const BOUND: f64 = 1e-8;
    match floor {
        Floor::None => x.hypot(y),
        Floor::Added => (x * x + y * y + R::of(BOUND)).sqrt(),
        Floor::Clamped => (x * x + y * y).larger(R::of(BOUND)).sqrt(),
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_heads() -> HeadStats {
        HeadStats::new(HeadArrays {
            layers: &[0],
            heads: &[0, 1],
            mean_real: &[3.0, 0.0, 1.0, 2.0],
            mean_imag: &[4.0, 0.0, 0.0, -2.0],
            modulus: &[6.0, 1.0, 2.0, 4.0],
            omega: &[1.0, 0.1],
            scale: None,
            sampled: None,
        })
        .unwrap()
    }

    #[test]
    fn the_correction_is_modulus_minus_length_of_the_mean() {
        let head = two_heads().head::<f64>(0, 0).unwrap();
        assert_eq!(head.extra(Floor::None, false), vec![1.0, 1.0]);
        assert_eq!(head.extra(Floor::None, true), vec![6.0, 1.0]);
        assert_eq!(head.extra(Floor::Clamped, false), vec![1.0, 1.0 - 1e-4]);
    }

    #[test]
    fn averaging_takes_the_mean_of_each_part_and_not_of_the_correction() {
        let one = two_heads().averaged(2).unwrap();
        let head = one.head::<f64>(0, 0).unwrap();
        assert_eq!(head.real, vec![2.0, 1.0]);
        assert_eq!(head.imag, vec![2.0, -1.0]);
        assert_eq!(head.modulus, vec![4.0, 2.5]);
        assert!((head.extra(Floor::None, false)[0] - (4.0 - 8f64.sqrt())).abs() < 1e-15);
    }

    #[test]
    fn a_head_outside_the_sample_has_no_means() {
        let stats = HeadStats::new(HeadArrays {
            layers: &[0],
            heads: &[0, 1],
            mean_real: &[0.0; 2],
            mean_imag: &[0.0; 2],
            modulus: &[0.0; 2],
            omega: &[1.0],
            scale: None,
            sampled: Some(&[(0, 1)]),
        })
        .unwrap();
        assert!(stats.head::<f64>(0, 0).is_none());
        assert!(stats.head::<f64>(0, 1).is_some());
        assert!(stats.averaged(2).is_err());
    }
}
