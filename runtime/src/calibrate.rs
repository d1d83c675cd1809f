//! Calibration statistics of a dense run (`TRIATTENTION.md` section 2): means over queries after QK norm, before RoPE.

/// Sums over the queries of the rows that count, in f64.
#[derive(Debug, Clone, PartialEq)]
pub struct QuerySums {
    heads: usize,
    head_dim: usize,
    /// By layer, head and frequency: sum of the first half, of the second half, of the modulus.
    real: Vec<f64>,
    imag: Vec<f64>,
    modulus: Vec<f64>,
    tokens: u64,
    /// Which rows of the next batch count.
    pub counted: Vec<bool>,
}

impl QuerySums {
    /// Zero sums.
    #[must_use]
    pub fn new(layers: usize, heads: usize, head_dim: usize) -> Self {
        let zero = vec![0.0; layers * heads * head_dim / 2];
        Self {
            heads,
            head_dim,
            real: zero.clone(),
            imag: zero.clone(),
            modulus: zero,
            tokens: 0,
            counted: Vec::new(),
        }
    }

    /// Adds the queries of one layer, `[rows, heads, head_dim]`.
    pub(crate) fn add(&mut self, layer: usize, queries: &[f32], rows: usize) {
        let freqs = self.head_dim / 2;
        let width = self.heads * self.head_dim;
        for (row, counted) in (0..rows).zip(&self.counted) {
            if !counted {
                continue;
            }
            let queries = &queries[row * width..(row + 1) * width];
            for (head, query) in queries.chunks_exact(self.head_dim).enumerate() {
                let base = (layer * self.heads + head) * freqs;
                let (low, high) = query.split_at(freqs);
                for (freq, (x, y)) in low.iter().zip(high).enumerate() {
                    let (x, y) = (f64::from(*x), f64::from(*y));
                    self.real[base + freq] += x;
                    self.imag[base + freq] += y;
                    self.modulus[base + freq] += (x * x + y * y).sqrt();
                }
            }
            self.tokens += u64::from(layer == 0);
        }
    }
}
