//! Single stages of a single row in f64, for hypotheses about a recording.
//!
//! These repeat what the chunked pass computes, written the plain way, so that a recorded stage can be re-executed from
//! its recorded inputs under a variation: another epsilon, another base, another set of visible rows.

use super::CacheRows;

/// `weight * x / sqrt(mean(x^2) + eps)` over consecutive pieces of `weight.len()` elements.
#[must_use]
pub fn norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let width = weight.len().max(1);
    x.chunks(width)
        .flat_map(|piece| {
            let square = piece.iter().map(|v| v * v).sum::<f64>() / piece.len() as f64;
            let scale = 1.0 / (square + eps).sqrt();
            piece.iter().zip(weight).map(move |(v, w)| w * v * scale)
        })
        .collect()
}

/// Rotates consecutive heads of `2 * freqs.len()` elements by `index * freqs`, times `scaling`; halves are paired.
#[must_use]
pub fn rotate(x: &[f64], freqs: &[f32], index: f64, scaling: f64) -> Vec<f64> {
    let half = freqs.len().max(1);
    let mut out = vec![0.0; x.len()];
    for (head, turned) in x.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
        for (i, freq) in freqs.iter().enumerate() {
            let (sin, cos) = (index * f64::from(*freq)).sin_cos();
            turned[i] = (head[i] * cos - head[half + i] * sin) * scaling;
            turned[half + i] = (head[half + i] * cos + head[i] * sin) * scaling;
        }
    }
    out
}

/// One attention row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Rotated queries, `[heads * head_dim]`.
    pub q: &'a [f64],
    /// Query heads.
    pub heads: usize,
    /// KV head of each query head.
    pub kv_head: fn(head: usize, heads: usize, kv_heads: usize) -> usize,
}

/// Query head `h` reads KV head `h / (heads / kv_heads)`.
#[must_use]
pub fn repeated(head: usize, heads: usize, kv_heads: usize) -> usize {
    head / (heads / kv_heads.max(1)).max(1)
}

/// Query head `h` reads KV head `h % kv_heads`: a known mistake.
#[must_use]
pub fn tiled(head: usize, _heads: usize, kv_heads: usize) -> usize {
    head % kv_heads.max(1)
}

/// Attends over the rows of `cache` that `visible` admits. Returns `[heads * head_dim]`; all zero where nothing is visible.
#[must_use]
pub fn attend(row: &Row<'_>, cache: &CacheRows, visible: impl Fn(usize) -> bool) -> Vec<f64> {
    let width = cache.head_dim;
    let scale = 1.0 / (width as f64).sqrt();
    let mut out = vec![0.0; row.heads * width];
    let pieces = row.q.chunks_exact(width).zip(out.chunks_exact_mut(width));
    for (head, (q, out)) in pieces.enumerate() {
        let kv = (row.kv_head)(head, row.heads, cache.heads);
        let scores: Vec<(usize, f64)> = (0..cache.rows)
            .filter(|key| visible(*key))
            .map(|key| {
                let k = cache.k_row(kv, key);
                (key, q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * scale)
            })
            .collect();
        let highest = scores.iter().fold(f64::NEG_INFINITY, |top, (_, score)| top.max(*score));
        let total: f64 = scores.iter().map(|(_, score)| (score - highest).exp()).sum();
        for (key, score) in scores {
            let share = (score - highest).exp() / total;
            for (sum, v) in out.iter_mut().zip(cache.v_row(kv, key)) {
                *sum += share * v;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_map_by_repetition_or_by_tiling() {
        let map =
            |f: fn(usize, usize, usize) -> usize| (0..4).map(|h| f(h, 4, 2)).collect::<Vec<_>>();
        assert_eq!(map(repeated), [0, 0, 1, 1]);
        assert_eq!(map(tiled), [0, 1, 0, 1]);
    }

    #[test]
    fn one_visible_row_is_copied() {
        let cache = CacheRows {
            heads: 1,
            rows: 2,
            head_dim: 2,
            k: vec![1.0, 0.0, 0.0, 1.0],
            v: vec![3.0, 4.0, 5.0, 6.0],
        };
        let row = Row { q: &[1.0, 1.0], heads: 1, kv_head: repeated };
        assert_eq!(attend(&row, &cache, |key| key == 1), [5.0, 6.0]);
        assert_eq!(attend(&row, &cache, |_| true), [4.0, 5.0]);
        assert_eq!(attend(&row, &cache, |_| false), [0.0, 0.0]);
    }

    #[test]
    fn a_quarter_turn_swaps_the_halves() {
        let turned = rotate(&[1.0, 2.0], &[1.0], std::f64::consts::FRAC_PI_2, 1.0);
        assert!((turned[0] + 2.0).abs() < 1e-12 && (turned[1] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn norm_runs_over_pieces_of_the_weight() {
        let out = norm(&[3.0, 4.0, 6.0, 8.0], &[1.0, 1.0], 0.0);
        assert!((out[0] - out[2]).abs() < 1e-12 && (out[0] - 3.0 / 12.5f64.sqrt()).abs() < 1e-12);
    }
}
