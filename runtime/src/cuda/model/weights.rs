//! A model's tensors on the device: projections that read the same input lie together, in the element type of the arithmetic.

use bytemuck::Pod;
use half::{bf16, f16};
use lockstep_traces::DType;

use crate::Hyper;
use crate::cuda::gpu::{Buffer, Gpu, GpuError};
use crate::cuda::ops::embed::Embed;
use crate::cuda::ops::linear::Weight;
use crate::weights::{Elements, Head, LayerWeights, Linear, ModelWeights};

/// One projection, or several with one input, `[rows, k]`.
#[derive(Debug)]
pub(super) struct Matrix<E> {
    pub(super) matrix: Buffer<E>,
    pub(super) bias: Option<Buffer<f32>>,
    pub(super) rows: usize,
    pub(super) k: usize,
}

impl<E: Pod> Matrix<E> {
    /// As the decode kernels take it.
    pub(super) fn weight(&self) -> Weight<E> {
        let bias = self.bias.as_ref().map(Buffer::view);
        Weight { matrix: self.matrix.view(), bias, rows: self.rows, k: self.k }
    }

    /// Gate and up as one SwiGLU weight.
    pub(super) fn halves(&self) -> Weight<E> {
        Weight { rows: self.rows / 2, ..self.weight() }
    }
}

/// Tensors of one layer.
#[derive(Debug)]
pub(super) struct Layer<E> {
    pub(super) input_norm: Buffer<f32>,
    /// q, k, v rows.
    pub(super) qkv: Matrix<E>,
    pub(super) norms: Option<(Buffer<f32>, Buffer<f32>)>,
    pub(super) o: Matrix<E>,
    pub(super) post_norm: Buffer<f32>,
    /// Gate rows, then up rows.
    pub(super) gate_up: Matrix<E>,
    pub(super) down: Matrix<E>,
}

/// All tensors.
#[derive(Debug)]
pub(super) struct DeviceWeights<E> {
    pub(super) embedding: Buffer<E>,
    pub(super) layers: Vec<Layer<E>>,
    pub(super) final_norm: Buffer<f32>,
    /// `None`: the embedding.
    pub(super) head: Option<Buffer<E>>,
}

impl<E: Pod> DeviceWeights<E> {
    /// Uploads a checkpoint, rounded to `dtype` where it is stored wider.
    pub(super) fn upload(
        gpu: &Gpu,
        weights: &ModelWeights,
        dtype: DType,
    ) -> Result<Self, GpuError> {
        let up = Upload { gpu, dtype };
        Ok(Self {
            embedding: up.elements(&[weights.embedding.elements()])?,
            layers: weights.layers.iter().map(|layer| up.layer(layer)).collect::<Result<_, _>>()?,
            final_norm: gpu.upload(&weights.final_norm)?,
            head: match &weights.head {
                Head::Tied => None,
                Head::Own(tensor) => Some(up.elements(&[tensor.elements()])?),
            },
        })
    }

    /// Random weights of a shape, made on the device: norms of one, everything else uniform with a deviation that keeps activations near
    /// one (`1 / sqrt(k)`), so that logits are finite and differ. Tensor `t` is stream `seed + t`.
    pub(super) fn random(
        gpu: &Gpu,
        hyper: &Hyper,
        dtype: DType,
        seed: u64,
    ) -> Result<Self, GpuError> {
        let embed = Embed::new(gpu, dtype)?;
        let mut stream = seed;
        let mut fill = |rows: usize, k: usize| -> Result<Buffer<E>, GpuError> {
            let buffer = gpu.alloc::<E>(rows * k)?;
            #[expect(clippy::cast_possible_truncation, reason = "a scale")]
            let scale = (3.0 / k as f64).sqrt() as f32;
            embed.random_fill(gpu, buffer.view(), stream, scale)?;
            stream = stream.wrapping_add(1);
            Ok(buffer)
        };
        let mut matrix = |rows: usize, k: usize| -> Result<Matrix<E>, GpuError> {
            Ok(Matrix { matrix: fill(rows, k)?, bias: None, rows, k })
        };
        let ones = |count: usize| gpu.upload(&vec![1.0_f32; count]);
        let (hidden, dim) = (hyper.hidden_size, hyper.head_dim);
        let mut layers = Vec::with_capacity(hyper.layers);
        for _ in 0..hyper.layers {
            let norms = if hyper.qk_norm { Some((ones(dim)?, ones(dim)?)) } else { None };
            layers.push(Layer {
                input_norm: ones(hidden)?,
                qkv: matrix((hyper.heads + 2 * hyper.kv_heads) * dim, hidden)?,
                norms,
                o: matrix(hidden, hyper.heads * dim)?,
                post_norm: ones(hidden)?,
                gate_up: matrix(2 * hyper.intermediate_size, hidden)?,
                down: matrix(hidden, hyper.intermediate_size)?,
            });
        }
        let head = if hyper.tie_word_embeddings {
            None
        } else {
            Some(matrix(hyper.vocab_size, hidden)?.matrix)
        };
        Ok(Self {
            embedding: matrix(hyper.vocab_size, hidden)?.matrix,
            layers,
            final_norm: ones(hidden)?,
            head,
        })
    }

    /// The matrix that gives the logits.
    pub(super) fn head(&self) -> &Buffer<E> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes that the weights of one decode pass take: every projection and the head.
    pub(super) fn bytes_per_pass(&self) -> usize {
        let layers = self.layers.iter().map(|layer| {
            [&layer.qkv, &layer.o, &layer.gate_up, &layer.down]
                .iter()
                .map(|matrix| matrix.rows * matrix.k)
                .sum::<usize>()
        });
        (layers.sum::<usize>() + self.head().len()) * size_of::<E>()
    }
}

struct Upload<'a> {
    gpu: &'a Gpu,
    dtype: DType,
}

impl Upload<'_> {
    fn layer<E: Pod>(&self, layer: &LayerWeights) -> Result<Layer<E>, GpuError> {
        let gpu = self.gpu;
        let norms = match (&layer.q_norm, &layer.k_norm) {
            (Some(q), Some(k)) => Some((gpu.upload(q)?, gpu.upload(k)?)),
            _ => None,
        };
        Ok(Layer {
            input_norm: gpu.upload(&layer.input_norm)?,
            qkv: self.matrix(&[&layer.q_proj, &layer.k_proj, &layer.v_proj])?,
            norms,
            o: self.matrix(&[&layer.o_proj])?,
            post_norm: gpu.upload(&layer.post_norm)?,
            gate_up: self.matrix(&[&layer.gate_proj, &layer.up_proj])?,
            down: self.matrix(&[&layer.down_proj])?,
        })
    }

    /// Projections of one input, one below the other. Where one has a bias, the others count as zero.
    fn matrix<E: Pod>(&self, parts: &[&Linear]) -> Result<Matrix<E>, GpuError> {
        let sides = |linear: &Linear| match linear.weight.shape() {
            &[rows, k] => (rows, k),
            _ => (0, 0),
        };
        let elements: Vec<Elements<'_>> = parts.iter().map(|part| part.weight.elements()).collect();
        let bias = if parts.iter().any(|part| part.bias.is_some()) {
            let rows = parts.iter().flat_map(|part| match &part.bias {
                Some(bias) => bias.clone(),
                None => vec![0.0; sides(part).0],
            });
            Some(self.gpu.upload(&rows.collect::<Vec<f32>>())?)
        } else {
            None
        };
        let rows = parts.iter().map(|part| sides(part).0).sum();
        let k = parts.first().map_or(0, |part| sides(part).1);
        Ok(Matrix { matrix: self.elements(&elements)?, bias, rows, k })
    }

    fn elements<E: Pod>(&self, parts: &[Elements<'_>]) -> Result<Buffer<E>, GpuError> {
        let buffer = self.gpu.alloc::<E>(parts.iter().map(Elements::len).sum())?;
        let mut at = 0;
        for part in parts {
            let to = buffer.part(at..at + part.len())?;
            at += part.len();
            let same = |bytes: &[u8]| self.gpu.write(to.cast()?, bytes);
            match (part, self.dtype) {
                (Elements::F32(values), DType::F32) => same(bytemuck::cast_slice(values))?,
                (Elements::F16(values), DType::F16) => same(bytemuck::cast_slice(values))?,
                (Elements::Bf16(values), DType::Bf16) => same(bytemuck::cast_slice(values))?,
                _ => same(&self.converted(part))?,
            }
        }
        Ok(buffer)
    }

    fn converted(&self, part: &Elements<'_>) -> Vec<u8> {
        let mut wide = vec![0.0; part.len()];
        part.widen(0..part.len(), &mut wide);
        match self.dtype {
            DType::F16 => {
                let narrow: Vec<f16> = wide.iter().map(|&v| f16::from_f32(v)).collect();
                bytemuck::cast_slice(&narrow).to_vec()
            }
            DType::Bf16 => {
                let narrow: Vec<bf16> = wide.iter().map(|&v| bf16::from_f32(v)).collect();
                bytemuck::cast_slice(&narrow).to_vec()
            }
            _ => bytemuck::cast_slice(&wide).to_vec(),
        }
    }
}
