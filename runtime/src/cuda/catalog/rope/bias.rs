//! `bias_add` under test.

use std::ops::Range;

use bytemuck::Pod;
use lockstep_traces::DType;

use super::super::{Case, Cell, Guarded, Output};
use super::{Allowed, compare};
use crate::cuda::gpu::{Buffer, Gpu, GpuError, View};
use crate::cuda::ops::attention::Heads;
use crate::cuda::ops::rope::Rope;
use crate::cuda::testing::{Values, decode, encode, rounded};

/// `bias_add` of one cell.
pub(super) struct Bias<E> {
    dtype: DType,
    rows: usize,
    width: usize,
    rope: Rope,
    x: Guarded<u8>,
    bias: Buffer<f32>,
    zeros: Buffer<f32>,
    host: (Vec<f32>, Vec<f32>),
    kind: std::marker::PhantomData<E>,
}

impl<E: Pod> Bias<E> {
    pub(super) fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[rows, width] = cell.sizes else {
            return Err(GpuError::unsupported("a cell has rows and width"));
        };
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 2 };
        Ok(Self {
            dtype: cell.elem,
            rows,
            width,
            rope: Rope::new(gpu, (cell.elem, cell.cache), heads)?,
            x: Guarded::new(gpu, rows * width * size_of::<E>())?,
            bias: gpu.alloc(width)?,
            zeros: gpu.zeros(width)?,
            host: Default::default(),
            kind: std::marker::PhantomData,
        })
    }

    fn upload(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.write(self.x.view(), &encode(self.dtype, &self.host.0))?;
        gpu.write(self.bias.view(), &self.host.1)
    }

    fn add(&self, gpu: &Gpu, bias: View<f32>) -> Result<(), GpuError> {
        self.rope.add_bias::<E>(gpu, (self.x.cast()?, self.rows), (bias, self.width))
    }
}

impl<E: Pod> Case for Bias<E> {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut values = Values::new(seed);
        let x = values.many(self.rows * self.width, 3.0);
        let x = x.into_iter().map(|x| rounded(self.dtype, x)).collect();
        self.host = (x, values.many(self.width, 2.0));
        self.upload(gpu)
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.add(gpu, self.bias.view())
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.add(gpu, self.zeros.view())
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "x", bytes: &self.x }]
    }

    fn updates_in_place(&self) -> bool {
        true
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = decode(self.dtype, &gpu.read(self.x.view())?);
        let (x, bias) = &self.host;
        let wanted: Allowed = x
            .iter()
            .zip(bias.iter().cycle())
            .map(|(x, bias)| (f64::from(rounded(self.dtype, x + bias)), 0.0))
            .collect();
        Ok(compare(&found, &wanted))
    }

    fn disturb(&mut self, gpu: &Gpu) -> Result<Option<Vec<Vec<Range<usize>>>>, GpuError> {
        if self.rows == 1 {
            return Ok(None);
        }
        let start = (self.rows - 1) * self.width;
        self.host.0[start..].iter_mut().for_each(|x| *x = rounded(self.dtype, 1.0 - *x));
        self.upload(gpu)?;
        Ok(Some(vec![vec![0..start * self.dtype.size()]]))
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(x) = self.x.cast::<E>() else { return Vec::new() };
        let (bias, rows, width) = (self.bias.view(), self.rows, self.width);
        let add = |rows, width| self.rope.add_bias(gpu, (x, rows), (bias, width));
        vec![
            ("no rows", add(0, width)),
            ("no width", add(rows, 0)),
            ("one row more than x holds", add(rows + 1, width)),
            ("one column more than the bias holds", add(rows, width + 1)),
            ("bytes for elements", self.rope.add_bias(gpu, (self.x.view(), rows), (bias, width))),
        ]
    }
}
