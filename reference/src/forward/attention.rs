//! Attention of a chunk against the cache, one KV head at a time.

use candle_core::Tensor;

use super::{Cache, Rounding, ops};
use crate::{Hyper, ReferenceError};

/// Scores held at once, in elements: 32 MB in f32.
const SCORES: usize = 8 << 20;

/// Attends `q` `[heads, rows, head_dim]` over the live rows of `layer` and, causally, over the chunk's own rows, which
/// stand behind them already. Returns `[rows, heads * head_dim]`.
///
/// Query head `h` reads KV head `h / group`. A layer with a window sees the last rows of that only. Physical order decides what a row sees: everything live before the chunk,
/// and inside the chunk what precedes it; after a compaction the live rows need not be in order of position.
pub(super) fn attend(
    hyper: &Hyper,
    cache: &Cache,
    layer: usize,
    q: &Tensor,
    rounding: Rounding,
) -> Result<Tensor, ReferenceError> {
    let (_, rows, head_dim) = q.dims3()?;
    let group = hyper.group();
    let scale = 1.0 / (head_dim as f64).sqrt();
    let (k, v) = cache.views(layer, cache.rows() + rows)?;
    let mut heads = Vec::with_capacity(hyper.kv_heads);
    for head in 0..hyper.kv_heads {
        let (k, v) = (k.get(head)?, v.get(head)?);
        let q = q.narrow(0, head * group, group)?;
        let mut blocks = Vec::new();
        let mut start = 0;
        while start < rows {
            let visible = cache.rows() + start + 1;
            let block = (SCORES / (group * visible)).clamp(16, rows.max(16)).min(rows - start);
            let keys = visible + block - 1;
            let q = q.narrow(1, start, block)?.contiguous()?.reshape((group * block, head_dim))?;
            let span = ops::Span { queries: block, visible, window: hyper.window(layer) };
            let scores = q.matmul(&k.narrow(0, 0, keys)?.t()?)?;
            ops::causal_softmax(&scores, span, scale, rounding)?;
            let mixed = scores.matmul(&v.narrow(0, 0, keys)?)?;
            blocks.push(ops::rounded(mixed, rounding)?.reshape((group, block, head_dim))?);
            start += block;
        }
        heads.push(Tensor::cat(&blocks, 1)?);
    }
    let mixed = Tensor::cat(&heads, 0)?;
    Ok(mixed.transpose(0, 1)?.contiguous()?.reshape((rows, hyper.heads * head_dim))?)
}
