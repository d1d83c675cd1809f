//! The tensors of a model under their Hugging Face names.

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
            Err(RuntimeError::tensor(files.dir(), &files.stored_name(LM_HEAD), what))
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
    let (attention, output, mlp) = (hyper.attention_bias, hyper.output_bias, hyper.mlp_bias);
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
        o_proj: taker.linear(&name("self_attn.o_proj"), [hidden, wide], output)?,
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
            let source = self.source();
            let what = format!("shape is {:?}, {source} implies {shape:?}", tensor.shape());
            return Err(RuntimeError::tensor(path, &self.files.stored_name(name), what));
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

    /// What the model's values were read from.
    const fn source(&self) -> &'static str {
        if self.files.is_gguf() { "the file's metadata" } else { "config.json" }
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
            let source = self.source();
            let what = format!("belongs to no part of this architecture as {source} describes it");
            return Err(RuntimeError::tensor(path, &self.files.stored_name(name), what));
        }
        if buffers > 0 {
            remarks.push(format!(
                "{buffers} stored rotary_emb.inv_freq tables are not used; config.json determines them"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lockstep_testkit as kit;
    use lockstep_traces::ModelConfig;

    use super::*;
    use crate::weights::HeaderError;

    /// A one-layer Llama of width 2 whose tensors are all ones; `edit` changes names and shapes before it is written.
    fn load(
        tied: bool,
        edit: impl FnOnce(&mut Vec<(String, Vec<usize>)>),
    ) -> Result<ModelWeights, RuntimeError> {
        let dir = tempfile::tempdir().unwrap();
        let config: ModelConfig = serde_json::from_value(serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 3, "hidden_size": 2,
            "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
            "tie_word_embeddings": tied
        }))
        .unwrap();
        let hyper = Hyper::resolve(&config, Path::new("config.json")).unwrap();
        let layer = |part: &str| format!("model.layers.0.{part}.weight");
        let mut tensors = vec![
            (EMBEDDING.to_owned(), vec![3, 2]),
            (layer("input_layernorm"), vec![2]),
            (layer("self_attn.q_proj"), vec![2, 2]),
            (layer("self_attn.k_proj"), vec![2, 2]),
            (layer("self_attn.v_proj"), vec![2, 2]),
            (layer("self_attn.o_proj"), vec![2, 2]),
            (layer("post_attention_layernorm"), vec![2]),
            (layer("mlp.gate_proj"), vec![4, 2]),
            (layer("mlp.up_proj"), vec![4, 2]),
            (layer("mlp.down_proj"), vec![2, 4]),
            ("model.norm.weight".to_owned(), vec![2]),
        ];
        edit(&mut tensors);
        let data = vec![0_u8; 256];
        let views = tensors.iter().map(|(name, shape)| {
            let bytes = &data[..4 * shape.iter().product::<usize>()];
            let dtype = safetensors::Dtype::F32;
            let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes);
            (name.clone(), view.unwrap())
        });
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        let files = WeightFiles::open(dir.path()).unwrap();
        ModelWeights::take(&files, &hyper, DType::F32)
    }

    fn blamed(result: Result<ModelWeights, RuntimeError>) -> String {
        match result {
            Err(RuntimeError::Tensor { tensor, .. }) => tensor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_whole_model_is_taken_and_its_bytes_are_counted() {
        let weights = load(true, |_| {}).unwrap();
        assert!(matches!(weights.head, Head::Tied));
        assert_eq!(weights.head_matrix().shape(), [3, 2]);
        assert_eq!(weights.bytes_per_token(), 4 * (4 * 4 + 3 * 8 + 6));
        assert!(weights.remarks.is_empty());
    }

    #[test]
    fn missing_surplus_and_misshapen_tensors_are_named() {
        let missing = load(true, |tensors| drop(tensors.remove(7)));
        assert_eq!(blamed(missing), "model.layers.0.mlp.gate_proj.weight");
        let surplus = "model.layers.0.self_attn.q_norm.weight";
        let found = load(true, |tensors| tensors.push((surplus.to_owned(), vec![2])));
        assert_eq!(blamed(found), surplus);
        let next_layer = "model.layers.1.mlp.up_proj.weight";
        let found = load(true, |tensors| tensors.push((next_layer.to_owned(), vec![4, 2])));
        assert_eq!(blamed(found), next_layer);
        let turned = load(true, |tensors| tensors[9].1 = vec![4, 2]);
        assert_eq!(blamed(turned), "model.layers.0.mlp.down_proj.weight");
        let biased = load(true, |tensors| {
            tensors.push(("model.layers.0.self_attn.q_proj.bias".to_owned(), vec![2]));
        });
        assert_eq!(blamed(biased), "model.layers.0.self_attn.q_proj.bias");
    }

    #[test]
    fn a_stored_rotary_table_is_remarked_on_and_not_used() {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
        let weights = load(true, |tensors| tensors.push((name, vec![1]))).unwrap();
        assert_eq!(weights.remarks.len(), 1);
    }

    #[test]
    fn an_untied_model_has_its_own_head() {
        assert_eq!(blamed(load(false, |_| {})), LM_HEAD);
        let with_head = |tensors: &mut Vec<_>| tensors.push((LM_HEAD.to_owned(), vec![3, 2]));
        assert!(matches!(load(false, with_head).unwrap().head, Head::Own(_)));
        let equal = load(true, with_head).unwrap();
        assert!(matches!(equal.head, Head::Tied) && equal.remarks.is_empty());
    }

    #[test]
    fn case_56_the_head_that_is_absent_or_superfluous() {
        let open =
            |name: &str| WeightFiles::open(&kit::data().join("cases/56").join(name)).unwrap();
        let (head, remark) = output_head(&open("tied_ok"), true).unwrap();
        assert!(matches!(head, Head::Tied) && remark.is_none());
        let error = output_head(&open("untied_missing"), false).unwrap_err().to_string();
        assert!(error.contains(LM_HEAD) && error.contains("tie_word_embeddings is false"));
        let (head, remark) = output_head(&open("tied_but_both"), true).unwrap();
        assert!(matches!(head, Head::Tied));
        assert!(remark.unwrap().contains("different logits"));
    }

    #[test]
    fn case_54_files_that_are_broken_say_how() {
        let open = |name: &str| {
            let path = kit::data().join("cases/54").join(format!("{name}.safetensors"));
            WeightFiles::open_file(&path)
        };
        let files = open("ok").unwrap();
        assert_eq!(files.tensor("a").unwrap().elements().get(3), Some(3.0));
        assert_eq!(files.tensor("b").unwrap().elements().get(0), Some(4.0));
        let fault = |name: &str| match open(name) {
            Err(RuntimeError::Safetensors { source, .. }) => source,
            Err(other) => panic!("{name}: {other}"),
            Ok(_) => panic!("{name} was opened"),
        };
        assert!(matches!(
            fault("truncated"),
            HeaderError::Truncated { tensor, missing: 7, have: 25, want: 32 } if tensor == "b"
        ));
        assert_eq!(fault("trailing"), HeaderError::Trailing { bytes: 5 });
        assert!(matches!(fault("overlap"), HeaderError::Overlap { start: 0, end: 16, .. }));
        assert!(matches!(fault("hole"), HeaderError::Hole { start: 16, end: 24, .. }));
        assert!(matches!(fault("shape_mismatch"), HeaderError::Tensor { .. }));
        assert!(matches!(fault("header_huge"), HeaderError::Length { length: 132_095_296, .. }));
        assert!(matches!(fault("header_not_json"), HeaderError::Json(_)));
        assert_eq!(fault("dup_key"), HeaderError::Duplicate("a".to_owned()));
        assert_eq!(fault("seven_bytes"), HeaderError::TooShort(7));
        assert_eq!(fault("empty"), HeaderError::TooShort(0));
        assert_eq!(fault("lfs_pointer"), HeaderError::LfsPointer);
    }
}
