//! Writes small GGUF files, whole or with planted contradictions.

use std::path::Path;

/// A value of the metadata.
#[derive(Debug, Clone)]
pub enum Value {
    /// u32.
    U32(u32),
    /// f32.
    F32(f32),
    /// Truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// i32 numbers.
    I32s(Vec<i32>),
    /// The value type and the bytes behind it, as they are.
    Raw(u32, Vec<u8>),
}

/// A tensor.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Dimensions, fastest first.
    pub ne: Vec<u64>,
    /// Number of the element type.
    pub element: u32,
    /// Data as they lie in the file.
    pub data: Vec<u8>,
    /// Offset to claim instead of the true one.
    pub offset: Option<u64>,
}

/// A file to be written.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// Version to claim; lengths are u32 in version 1.
    pub version: u32,
    /// Alignment of the data (a key `general.alignment` is the caller's to add).
    pub alignment: usize,
    /// Metadata in order.
    pub values: Vec<(String, Value)>,
    /// Tensors in order.
    pub tensors: Vec<Tensor>,
    /// Number of tensors to claim instead of the true one.
    pub count: Option<u64>,
}

impl Default for Gguf {
    fn default() -> Self {
        Self { version: 3, alignment: 32, values: Vec::new(), tensors: Vec::new(), count: None }
    }
}

impl Gguf {
    /// Adds a value.
    pub fn value(&mut self, key: &str, value: Value) -> &mut Self {
        self.values.push((key.to_owned(), value));
        self
    }

    /// Adds a tensor of bytes.
    pub fn tensor(&mut self, name: &str, ne: &[u64], element: u32, data: Vec<u8>) -> &mut Self {
        let name = name.to_owned();
        self.tensors.push(Tensor { name, ne: ne.to_vec(), element, data, offset: None });
        self
    }

    /// Adds an f32 tensor.
    pub fn f32s(&mut self, name: &str, ne: &[u64], values: &[f32]) -> &mut Self {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, ne, 0, data)
    }

    fn length(&self, out: &mut Vec<u8>, length: u64) {
        if self.version == 1 {
            out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        } else {
            out.extend(length.to_le_bytes());
        }
    }

    fn text(&self, out: &mut Vec<u8>, text: &str) {
        self.length(out, text.len() as u64);
        out.extend(text.as_bytes());
    }

    fn write_value(&self, out: &mut Vec<u8>, value: &Value) {
        let kind = |out: &mut Vec<u8>, kind: u32| out.extend(kind.to_le_bytes());
        match value {
            Value::U32(value) => {
                kind(out, 4);
                out.extend(value.to_le_bytes());
            }
            Value::F32(value) => {
                kind(out, 6);
                out.extend(value.to_le_bytes());
            }
            Value::Bool(value) => {
                kind(out, 7);
                out.push(u8::from(*value));
            }
            Value::Text(text) => {
                kind(out, 8);
                self.text(out, text);
            }
            Value::Texts(texts) => {
                kind(out, 9);
                kind(out, 8);
                self.length(out, texts.len() as u64);
                for text in texts {
                    self.text(out, text);
                }
            }
            Value::I32s(values) => {
                kind(out, 9);
                kind(out, 5);
                self.length(out, values.len() as u64);
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Value::Raw(number, bytes) => {
                kind(out, *number);
                out.extend(bytes);
            }
        }
    }

    /// The file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        self.length(&mut out, self.count.unwrap_or(self.tensors.len() as u64));
        self.length(&mut out, self.values.len() as u64);
        for (key, value) in &self.values {
            self.text(&mut out, key);
            self.write_value(&mut out, value);
        }
        let mut at = 0_usize;
        for tensor in &self.tensors {
            self.text(&mut out, &tensor.name);
            out.extend(u32::try_from(tensor.ne.len()).unwrap_or(u32::MAX).to_le_bytes());
            for size in &tensor.ne {
                self.length(&mut out, *size);
            }
            out.extend(tensor.element.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(at as u64).to_le_bytes());
            at = (at + tensor.data.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }

    /// Writes the file.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// A Hugging Face folder with safetensors as llama.cpp's converter would write it, every tensor in f32: names and keys are its own, the q and
/// k rows of Llama models lie pair by pair. Frequencies of the llama3 scaling go into `rope_freqs.weight`, as divisors worked out from the
/// `inv_freq` of the folder's `golden.safetensors`.
///
/// # Panics
/// Where the folder is not one of the tiny models of `tests/data/models`.
#[must_use]
pub fn convert(dir: &Path) -> Gguf {
    let text = std::fs::read_to_string(dir.join("config.json")).expect("config.json");
    let config: serde_json::Value = serde_json::from_str(&text).expect("config.json");
    let family = config["model_type"].as_str().expect("model_type").to_owned();
    let number = |key: &str| config[key].as_f64();
    let size = |key: &str| number(key).unwrap_or_else(|| panic!("{key}")) as u32;
    let rope =
        [&config["rope_parameters"], &config["rope_scaling"]].into_iter().find(|v| v.is_object());
    let heads = [size("num_attention_heads"), size("num_key_value_heads")];
    let mut file = Gguf::default();
    file.value("general.architecture", Value::Text(family.clone()));
    for (key, field) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ] {
        file.value(&format!("{family}.{key}"), Value::U32(size(field)));
    }
    if let Some(width) = number("head_dim") {
        file.value(&format!("{family}.attention.key_length"), Value::U32(width as u32));
    }
    let epsilon = number("rms_norm_eps").expect("rms_norm_eps") as f32;
    file.value(&format!("{family}.attention.layer_norm_rms_epsilon"), Value::F32(epsilon));
    let nested = rope.and_then(|rope| rope["rope_theta"].as_f64());
    let theta = number("rope_theta").or(nested).unwrap_or(10_000.0);
    file.value(&format!("{family}.rope.freq_base"), Value::F32(theta as f32));
    let kind = rope.and_then(|rope| rope["rope_type"].as_str()).unwrap_or("default");
    match kind {
        "linear" => {
            let factor = rope.and_then(|rope| rope["factor"].as_f64()).expect("factor") as f32;
            file.value(&format!("{family}.rope.scaling.type"), Value::Text("linear".into()));
            file.value(&format!("{family}.rope.scaling.factor"), Value::F32(factor));
        }
        "llama3" => {
            let golden = std::fs::read(dir.join("golden.safetensors")).expect("golden");
            let golden = safetensors::SafeTensors::deserialize(&golden).expect("golden");
            let freqs = widened(&golden.tensor("inv_freq").expect("inv_freq"));
            let pairs = freqs.len() as f64;
            let plain = |i: usize| theta.powf(-(i as f64) / pairs);
            let divisors: Vec<f32> =
                freqs.iter().enumerate().map(|(i, f)| (plain(i) / f64::from(*f)) as f32).collect();
            file.f32s("rope_freqs.weight", &[divisors.len() as u64], &divisors);
        }
        _ => {}
    }
    tensors(dir, &family, heads, &mut file);
    file
}

fn tensors(dir: &Path, family: &str, heads: [u32; 2], file: &mut Gguf) {
    let files = std::fs::read_dir(dir).expect("the folder");
    let mut paths: Vec<_> =
        files.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.retain(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("model") && name.ends_with(".safetensors"))
    });
    paths.sort();
    for path in paths {
        let bytes = std::fs::read(&path).expect("weights");
        let stored = safetensors::SafeTensors::deserialize(&bytes).expect("weights");
        for (name, view) in stored.tensors() {
            let mut values = widened(&view);
            let heads = match () {
                () if family != "llama" => None,
                () if name.contains("q_proj") => Some(heads[0]),
                () if name.contains("k_proj") => Some(heads[1]),
                () => None,
            };
            if let Some(heads) = heads {
                values = paired(&values, heads as usize, view.shape()[0]);
            }
            let ne: Vec<u64> = view.shape().iter().rev().map(|size| *size as u64).collect();
            file.f32s(&renamed(&name), &ne, &values);
        }
    }
}

/// `[heads, 2, dim / 2, in]` turned into `[heads, dim / 2, 2, in]`.
fn paired(values: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let (inner, half) = (values.len() / rows, rows / heads / 2);
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(2 * half * inner) {
        for pair in 0..half {
            for side in 0..2 {
                let start = (side * half + pair) * inner;
                out.extend_from_slice(&head[start..start + inner]);
            }
        }
    }
    out
}

fn renamed(name: &str) -> String {
    let mut name = name.replace("model.layers.", "blk.").replace("self_attn.o_proj", "attn_output");
    for (from, to) in [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ] {
        name = name.replace(from, to);
    }
    name
}

fn widened(view: &safetensors::tensor::TensorView<'_>) -> Vec<f32> {
    let narrow = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes);
    let pairs = view.data().as_chunks().0.iter();
    match view.dtype() {
        safetensors::Dtype::F16 => {
            pairs.map(|b| half::f16::from_bits(narrow(b)).to_f32()).collect()
        }
        safetensors::Dtype::BF16 => {
            pairs.map(|b| half::bf16::from_bits(narrow(b)).to_f32()).collect()
        }
        _ => view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}
