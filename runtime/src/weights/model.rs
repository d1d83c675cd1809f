//! The tensors of a Qwen3 or Llama model under their Hugging Face names.

use std::collections::BTreeSet;

use lockstep_traces::DType;

use super::{Tensor, WeightFiles};
use crate::{Hyper, RuntimeError};

/// Projection with an optional bias: weight `[out, in]`, bias `[out]`.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`, widened.
    pub bias: Option<Vec<f32>>,
}

/// Tensors of one layer.
#[derive(Debug)]
pub struct LayerWeights {
    /// `[hidden]`.
    pub input_norm: Vec<f32>,
    /// `[heads * head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[kv_heads * head_dim, hidden]`.
    pub k_proj: Linear,
    /// `[kv_heads * head_dim, hidden]`.
    pub v_proj: Linear,
    /// `[head_dim]`, with QK norm.
    pub q_norm: Option<Vec<f32>>,
    /// `[head_dim]`, with QK norm.
    pub k_norm: Option<Vec<f32>>,
    /// `[hidden, heads * head_dim]`.
    pub o_proj: Linear,
    /// `[hidden]`.
    pub post_norm: Vec<f32>,
    /// `[intermediate, hidden]`.
    pub gate_proj: Linear,
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
}

/// Where the output head comes from.
#[derive(Debug)]
pub enum Head {
    /// The embedding.
    Tied,
    /// `lm_head.weight`, `[vocab, hidden]`.
    Own(Tensor),
}

/// All tensors of a model, in the element type of its arithmetic or as stored where widening is exact.
#[derive(Debug)]
pub struct ModelWeights {
    /// `[vocab, hidden]`.
    pub embedding: Tensor,
    /// By layer.
    pub layers: Vec<LayerWeights>,
    /// `[hidden]`.
    pub final_norm: Vec<f32>,
    /// Output head.
    pub head: Head,
    /// What was read around, one line each.
    pub remarks: Vec<String>,
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";

/// Decides which matrix gives the logits. A model that is not tied must have `lm_head.weight`; a tied one that has
/// it too uses the embedding, with a remark where the two differ.
///
/// # Errors
/// [`RuntimeError::Tensor`] where the head is missing or of no supported element type.
pub fn output_head(
    files: &WeightFiles,
    tied: bool,
) -> Result<(Head, Option<String>), RuntimeError> {
    let present = files.entry(LM_HEAD).is_some();
    match (tied, present) {
        (false, true) => Ok((Head::Own(files.tensor(LM_HEAD)?), None)),
        (false, false) => {
            let what = "is in none of the weight files, and tie_word_embeddings is false; set it to true if the \
                        embedding is the head, or add the tensor";
            Err(RuntimeError::tensor(files.dir(), LM_HEAD, what))
        }
        (true, false) => Ok((Head::Tied, None)),
        (true, true) if files.bytes(LM_HEAD) == files.bytes(EMBEDDING) => Ok((Head::Tied, None)),
        (true, true) => {
            let remark = format!(
                "{LM_HEAD} is present and differs from {EMBEDDING} though tie_word_embeddings is true; the embedding \
                 is used, the other would give different logits"
            );
            Ok((Head::Tied, Some(remark)))
        }
    }
}

impl ModelWeights {
    /// Takes every tensor of the model out of `files`, for an arithmetic in `dtype`.
    ///
    /// # Errors
    /// [`RuntimeError::Tensor`] for a tensor that is missing, surplus, or of another shape or element type.
    pub fn take(files: &WeightFiles, hyper: &Hyper, dtype: DType) -> Result<Self, RuntimeError> {
        let mut taker = Taker { files, dtype, taken: BTreeSet::new() };
        let embedding = taker.matrix(EMBEDDING, hyper.vocab_size, hyper.hidden_size)?;
        let layers = (0..hyper.layers)
            .map(|layer| take_layer(&mut taker, hyper, layer))
            .collect::<Result<_, _>>()?;
        let final_norm = taker.vector("model.norm.weight", hyper.hidden_size)?;
        let (head, remark) = output_head(files, hyper.tie_word_embeddings)?;
        let head = match head {
            Head::Tied => {
                taker.taken.insert(LM_HEAD.to_owned());
                Head::Tied
            }
            Head::Own(_) => {
                Head::Own(taker.matrix(LM_HEAD, hyper.vocab_size, hyper.hidden_size)?)
            }
        };
        let mut remarks: Vec<String> = remark.into_iter().collect();
        taker.refuse_surplus(&mut remarks)?;
        Ok(Self { embedding, layers, final_norm, head, remarks })
    }

    /// The matrix that gives the logits, `[vocab, hidden]`.
    #[must_use]
    pub fn head_matrix(&self) -> &Tensor {
        match &self.head {
            Head::Tied => &self.embedding,
            Head::Own(tensor) => tensor,
        }
    }

    /// Bytes that the weights of one decoded token take: every projection and the head, without the embedding's row.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        let linear = |linear: &Linear| linear.weight.byte_len();
        let layers = self.layers.iter().map(|layer| {
            let attention = [&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj];
            let mlp = [&layer.gate_proj, &layer.up_proj, &layer.down_proj];
            attention.into_iter().chain(mlp).map(linear).sum::<usize>()
        });
        layers.sum::<usize>() + self.head_matrix().byte_len()
    }
}

fn take_layer(
    taker: &mut Taker<'_>,
    hyper: &Hyper,
    layer: usize,
) -> Result<LayerWeights, RuntimeError> {
    let (hidden, inner) = (hyper.hidden_size, hyper.intermediate_size);
    let (wide, narrow) = (hyper.heads * hyper.head_dim, hyper.kv_heads * hyper.head_dim);
    let (attention, mlp) = (hyper.attention_bias, hyper.mlp_bias);
    let name = |part: &str| format!("model.layers.{layer}.{part}");
    let (q_norm, k_norm) = if hyper.qk_norm {
        let q_norm = taker.vector(&name("self_attn.q_norm.weight"), hyper.head_dim)?;
        (Some(q_norm), Some(taker.vector(&name("self_attn.k_norm.weight"), hyper.head_dim)?))
    } else {
        (None, None)
    };
    Ok(LayerWeights {
        input_norm: taker.vector(&name("input_layernorm.weight"), hidden)?,
        q_proj: taker.linear(&name("self_attn.q_proj"), [wide, hidden], attention)?,
        k_proj: taker.linear(&name("self_attn.k_proj"), [narrow, hidden], attention)?,
        v_proj: taker.linear(&name("self_attn.v_proj"), [narrow, hidden], attention)?,
        q_norm,
        k_norm,
        o_proj: taker.linear(&name("self_attn.o_proj"), [hidden, wide], attention)?,
        post_norm: taker.vector(&name("post_attention_layernorm.weight"), hidden)?,
        gate_proj: taker.linear(&name("mlp.gate_proj"), [inner, hidden], mlp)?,
        up_proj: taker.linear(&name("mlp.up_proj"), [inner, hidden], mlp)?,
        down_proj: taker.linear(&name("mlp.down_proj"), [hidden, inner], mlp)?,
    })
}

/// Takes tensors by name, checks their shapes, and remembers which were taken.
struct Taker<'a> {
    files: &'a WeightFiles,
    dtype: DType,
    taken: BTreeSet<String>,
}

impl Taker<'_> {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, RuntimeError> {
        let tensor = self.files.tensor(name)?;
        if tensor.shape() != shape {
            let path = self.files.entry(name).map_or(self.files.dir(), |(path, _)| path);
            let what = format!("shape is {:?}, config.json implies {shape:?}", tensor.shape());
            return Err(RuntimeError::tensor(path, name, what));
        }
        self.taken.insert(name.to_owned());
        Ok(tensor.cast(self.dtype))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Tensor, RuntimeError> {
        self.take(name, &[rows, cols])
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, RuntimeError> {
        let tensor = self.take(name, &[length])?;
        let mut values = vec![0.0; tensor.elements().len()];
        tensor.elements().widen(0..values.len(), &mut values);
        Ok(values)
    }

    fn linear(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        bias: bool,
    ) -> Result<Linear, RuntimeError> {
        let weight = self.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias = if bias { Some(self.vector(&format!("{name}.bias"), rows)?) } else { None };
        Ok(Linear { weight, bias })
    }

    fn refuse_surplus(&self, remarks: &mut Vec<String>) -> Result<(), RuntimeError> {
        let mut buffers = 0;
        for name in self.files.names().filter(|name| !self.taken.contains(*name)) {
            // Old Llama checkpoints store a table that the config determines.
            if name.ends_with("rotary_emb.inv_freq") {
                buffers += 1;
                continue;
            }
            let path = self.files.entry(name).map_or(self.files.dir(), |(path, _)| path);
            let what = "belongs to no part of this architecture as config.json describes it";
            return Err(RuntimeError::tensor(path, name, what));
        }
        if buffers > 0 {
            remarks.push(format!(
                "{buffers} stored rotary_emb.inv_freq tables are not used; config.json determines them"
            ));
        }
        Ok(())
    }
}
