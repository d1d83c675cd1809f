//! The noise of rule set `hf` against the generator as published.

use crate::cuda::catalog::select_score::Random;
use crate::cuda::catalog::{Case, Cell, Guarded, Output};
use crate::cuda::gpu::{Buffer, Gpu, GpuError};
use crate::cuda::ops::select::{DeviceNoise, ReduceOps};
use crate::select::NoiseGenerator;

pub(super) struct Noise {
    ops: ReduceOps,
    columns: usize,
    skip: usize,
    seed: u32,
    values: Vec<f32>,
    rows: Vec<u32>,
    before: Buffer<f32>,
    start: DeviceNoise,
    state: DeviceNoise,
    order: Buffer<u32>,
    z: Guarded<u8>,
    after: Guarded<u8>,
}

impl Noise {
    pub(super) fn new(gpu: &Gpu, cell: &Cell) -> Result<Self, GpuError> {
        let &[rows, columns, skip] = cell.sizes else {
            return Err(GpuError::unsupported("a noise cell of other sizes than three"));
        };
        let seed = NoiseGenerator::new(0);
        Ok(Self {
            ops: ReduceOps::new(gpu)?,
            columns,
            skip,
            seed: 0,
            values: Vec::new(),
            rows: Vec::new(),
            before: gpu.alloc(rows * columns)?,
            start: DeviceNoise::new(gpu, &seed)?,
            state: DeviceNoise::new(gpu, &seed)?,
            order: gpu.alloc(rows)?,
            z: Guarded::new(gpu, rows * columns * 4)?,
            after: Guarded::new(gpu, DeviceNoise::WORDS * 4)?,
        })
    }

    fn call(&self, gpu: &Gpu, skip: usize) -> Result<(), GpuError> {
        let z = self.z.cast::<f32>()?;
        gpu.copy(self.before.view(), z)?;
        gpu.copy(self.start.state(), self.state.state())?;
        self.ops.noise(gpu, &self.state, (z, self.columns), self.order.view(), skip)?;
        gpu.copy(self.state.state(), self.after.cast()?)
    }
}

/// MT19937 word by word, as its authors publish it.
fn twister(seed: u32, draws: usize) -> (Vec<u32>, Vec<u32>) {
    let mut words = vec![seed];
    for index in 1..624_u32 {
        let last = words[index as usize - 1];
        words.push((last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(index));
    }
    let mut next = 624;
    let mut out = Vec::with_capacity(draws);
    while out.len() < draws {
        if next == 624 {
            for i in 0..624 {
                let y = (words[i] & 0x8000_0000) | (words[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if y % 2 == 1 { 0x9908_b0df } else { 0 };
                words[i] = words[(i + 397) % 624] ^ (y >> 1) ^ odd;
            }
            next = 0;
        }
        let mut y = words[next];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        out.push(y ^ (y >> 18));
        next += 1;
    }
    words.push(next as u32);
    (out, words)
}

impl Case for Noise {
    fn fill(&mut self, gpu: &Gpu, seed: u64) -> Result<(), GpuError> {
        let mut random = Random(seed);
        self.seed = random.word() as u32;
        self.values = random.values(self.before.len());
        self.rows = (0..self.order.len() as u32).rev().collect();
        gpu.write(self.before.view(), &self.values)?;
        gpu.write(self.order.view(), &self.rows)?;
        self.start.reset(gpu, &NoiseGenerator::new(self.seed))
    }

    fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.skip)
    }

    fn run_wrong(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.call(gpu, self.skip + 1)
    }

    fn outputs(&self) -> Vec<Output<'_>> {
        vec![Output { name: "z", bytes: &self.z }, Output { name: "state", bytes: &self.after }]
    }

    fn error(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let found = gpu.read(self.z.cast::<u32>()?)?;
        let (draws, words) = twister(self.seed, self.skip + self.values.len());
        let mut wrong = 0;
        for (draw, word) in draws[self.skip..].iter().enumerate() {
            let row = self.rows[draw / self.columns] as usize;
            let index = row * self.columns + draw % self.columns;
            let uniform = f64::from(word & 0x00ff_ffff) * 2.0_f64.powi(-24);
            let noise = (uniform * f64::from(1e-6_f32)) as f32;
            let wanted = (f64::from(self.values[index]) + f64::from(noise)) as f32;
            wrong += usize::from(found[index] != wanted.to_bits());
        }
        let after = gpu.read(self.after.cast::<u32>()?)?;
        wrong += after.iter().zip(&words).filter(|(a, b)| a != b).count();
        Ok(wrong as f64)
    }

    fn disturb(&mut self, _: &Gpu) -> Result<Option<Vec<Vec<std::ops::Range<usize>>>>, GpuError> {
        // One stream over all rows.
        Ok(None)
    }

    fn misuse(&self, gpu: &Gpu) -> Vec<(&'static str, Result<(), GpuError>)> {
        let Ok(z) = self.z.cast::<f32>() else { return Vec::new() };
        let order = self.order.view();
        let none = order.part(0..0).unwrap_or(order);
        let call = |z, columns, order| self.ops.noise(gpu, &self.state, (z, columns), order, 0);
        vec![
            ("no column", call(z, 0, order)),
            ("no row", call(z, self.columns, none)),
            ("a column too many", call(z, self.columns + 1, order)),
        ]
    }
}
