//! One transformer layer: its weights, widened, and its computation.

use candle_core::Tensor;

use super::watch::Collector;
use super::{Cache, Precision, Rounding, attention, ops};
use crate::weights::Weights;
use crate::{Hyper, ReferenceError};

/// A projection `[out, in]` and its bias.
#[derive(Debug, Clone)]
struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn apply(&self, x: &Tensor, rounding: Rounding) -> candle_core::Result<Tensor> {
        ops::linear(x, &self.weight, self.bias.as_ref(), rounding)
    }
}

/// Weights of one layer in the arithmetic of the replay.
#[derive(Debug, Clone)]
pub(super) struct LayerWeights {
    input_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    qk_norm: Option<(Tensor, Tensor)>,
    post_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Name and shape of every tensor of layer `index`.
pub(super) fn tensors(hyper: &Hyper, index: usize) -> Vec<(String, Vec<usize>)> {
    let (hidden, wide) = (hyper.hidden, hyper.intermediate);
    let (q, kv) = (hyper.heads * hyper.head_dim, hyper.kv_heads * hyper.head_dim);
    let mut list = vec![
        ("input_layernorm.weight", vec![hidden]),
        ("self_attn.q_proj.weight", vec![q, hidden]),
        ("self_attn.k_proj.weight", vec![kv, hidden]),
        ("self_attn.v_proj.weight", vec![kv, hidden]),
        ("self_attn.o_proj.weight", vec![hidden, q]),
        ("post_attention_layernorm.weight", vec![hidden]),
        ("mlp.gate_proj.weight", vec![wide, hidden]),
        ("mlp.up_proj.weight", vec![wide, hidden]),
        ("mlp.down_proj.weight", vec![hidden, wide]),
    ];
    if hyper.qk_norm() {
        list.push(("self_attn.q_norm.weight", vec![hyper.head_dim]));
        list.push(("self_attn.k_norm.weight", vec![hyper.head_dim]));
    }
    if hyper.attention_bias {
        list.push(("self_attn.q_proj.bias", vec![q]));
        list.push(("self_attn.k_proj.bias", vec![kv]));
        list.push(("self_attn.v_proj.bias", vec![kv]));
    }
    if hyper.output_bias() {
        list.push(("self_attn.o_proj.bias", vec![hidden]));
    }
    if hyper.mlp_bias {
        list.push(("mlp.gate_proj.bias", vec![wide]));
        list.push(("mlp.up_proj.bias", vec![wide]));
        list.push(("mlp.down_proj.bias", vec![hidden]));
    }
    list.into_iter().map(|(name, shape)| (format!("model.layers.{index}.{name}"), shape)).collect()
}

impl LayerWeights {
    /// Widens layer `index`.
    pub(super) fn load(
        weights: &Weights,
        hyper: &Hyper,
        index: usize,
        precision: Precision,
    ) -> Result<Self, ReferenceError> {
        let shapes = tensors(hyper, index);
        let optional = |name: &str| -> Result<Option<Tensor>, ReferenceError> {
            let full = format!("model.layers.{index}.{name}");
            shapes
                .iter()
                .find(|(listed, _)| *listed == full)
                .map(|(_, shape)| weights.widen(&full, shape, precision))
                .transpose()
        };
        let required = |name: &str| {
            optional(name)?.ok_or_else(|| {
                weights
                    .error(&format!("model.layers.{index}.{name}"), "is no tensor of this family")
            })
        };
        let linear = |name: &str| -> Result<Linear, ReferenceError> {
            Ok(Linear {
                weight: required(&format!("{name}.weight"))?,
                bias: optional(&format!("{name}.bias"))?,
            })
        };
        let q_norm = optional("self_attn.q_norm.weight")?;
        let k_norm = optional("self_attn.k_norm.weight")?;
        Ok(Self {
            input_norm: required("input_layernorm.weight")?,
            q: linear("self_attn.q_proj")?,
            k: linear("self_attn.k_proj")?,
            v: linear("self_attn.v_proj")?,
            o: linear("self_attn.o_proj")?,
            qk_norm: q_norm.zip(k_norm),
            post_norm: required("post_attention_layernorm.weight")?,
            gate: linear("mlp.gate_proj")?,
            up: linear("mlp.up_proj")?,
            down: linear("mlp.down_proj")?,
        })
    }
}

/// What a layer needs besides its weights and its input.
pub(super) struct Context<'a> {
    pub(super) hyper: &'a Hyper,
    pub(super) cache: &'a Cache,
    /// `[rows, head_dim / 2]`.
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
    pub(super) rounding: Rounding,
}

/// Runs layer `index` over the chunk `x` `[rows, hidden]`, writes its K and V behind the live rows, returns the new `x`.
pub(super) fn run(
    context: &Context<'_>,
    weights: &LayerWeights,
    index: usize,
    x: &Tensor,
    watch: &mut Collector<'_>,
) -> Result<Tensor, ReferenceError> {
    let Context { hyper, cache, rounding, .. } = context;
    let (rounding, layer) = (*rounding, Some(index));
    let normed = ops::rms_norm(x, &weights.input_norm, hyper.norm_eps, rounding)?;
    watch.take(layer, "input_norm", &normed, 0)?;
    let q = weights.q.apply(&normed, rounding)?;
    let k = weights.k.apply(&normed, rounding)?;
    let v = weights.v.apply(&normed, rounding)?;
    watch.take(layer, "q_proj", &q, 0)?;
    watch.take(layer, "k_proj", &k, 0)?;
    watch.take(layer, "v_proj", &v, 0)?;

    let rows = x.dim(0)?;
    let q = q.reshape((rows, hyper.heads, hyper.head_dim))?;
    let k = k.reshape((rows, hyper.kv_heads, hyper.head_dim))?;
    let v = v.reshape((rows, hyper.kv_heads, hyper.head_dim))?.transpose(0, 1)?.contiguous()?;
    let (q, k) = match &weights.qk_norm {
        Some((q_norm, k_norm)) => {
            let q = ops::rms_norm(&q, q_norm, hyper.norm_eps, rounding)?;
            let k = ops::rms_norm(&k, k_norm, hyper.norm_eps, rounding)?;
            watch.take(layer, "q_norm", &q, 0)?;
            watch.take(layer, "k_norm", &k, 0)?;
            (q, k)
        }
        None => (q, k),
    };
    let q = ops::rotate(&q, &context.cos, &context.sin, rounding)?;
    let k = ops::rotate(&k, &context.cos, &context.sin, rounding)?;
    watch.take(layer, "q_rope", &q, 1)?;
    watch.take(layer, "k_rope", &k, 1)?;

    cache.write(index, &k, &v)?;
    let mixed = attention::attend(hyper, cache, index, &q, rounding)?;
    watch.take(layer, "attn_heads", &mixed, 0)?;
    let attended = weights.o.apply(&mixed, rounding)?;
    watch.take(layer, "attn_out", &attended, 0)?;
    let x = ops::add(x, &attended, rounding)?;

    let normed = ops::rms_norm(&x, &weights.post_norm, hyper.norm_eps, rounding)?;
    watch.take(layer, "post_norm", &normed, 0)?;
    let gate = weights.gate.apply(&normed, rounding)?;
    ops::silu_mul(&gate, &weights.up.apply(&normed, rounding)?, rounding)?;
    let mlp = weights.down.apply(&gate, rounding)?;
    watch.take(layer, "mlp_out", &mlp, 0)?;
    let x = ops::add(&x, &mlp, rounding)?;
    watch.take(layer, "out", &x, 0)?;
    Ok(x)
}
