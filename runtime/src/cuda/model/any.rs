//! A model and a session of whichever element type.

use std::collections::BTreeMap;

use lockstep_traces::DType;

use super::{DecodeRow, DeviceCache, Model, PrefillChunk, RowOut, Session, SessionSetup};
use crate::Hyper;
use crate::cpu::WantedRow;
use crate::cuda::gpu::{Gpu, GpuError};
use crate::weights::ModelWeights;

/// A model on a device: f32, or a 16-bit type.
#[derive(Debug)]
pub enum AnyModel {
    /// f32.
    Full(Model<f32>),
    /// f16 or bf16.
    Half(Model<u16>),
}

/// A run on a device.
#[derive(Debug)]
pub enum AnySession<'m> {
    /// f32.
    Full(Box<Session<'m, f32>>),
    /// f16 or bf16.
    Half(Box<Session<'m, u16>>),
}

macro_rules! each {
    ($value:expr, $name:ident => $body:expr) => {
        match $value {
            Self::Full($name) => $body,
            Self::Half($name) => $body,
        }
    };
}

impl AnyModel {
    /// Uploads a checkpoint.
    ///
    /// # Errors
    /// As [`Model::upload`].
    pub fn upload(
        gpu: &Gpu,
        hyper: &Hyper,
        weights: &ModelWeights,
        dtype: DType,
    ) -> Result<Self, GpuError> {
        Ok(match dtype {
            DType::F32 => Self::Full(Model::upload(gpu, hyper, weights, dtype)?),
            _ => Self::Half(Model::upload(gpu, hyper, weights, dtype)?),
        })
    }

    /// Random weights.
    ///
    /// # Errors
    /// As [`Model::random`].
    pub fn random(gpu: &Gpu, hyper: &Hyper, dtype: DType, seed: u64) -> Result<Self, GpuError> {
        Ok(match dtype {
            DType::F32 => Self::Full(Model::random(gpu, hyper, dtype, seed)?),
            _ => Self::Half(Model::random(gpu, hyper, dtype, seed)?),
        })
    }

    /// A session.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn session(&self, setup: &SessionSetup<'_>) -> Result<AnySession<'_>, GpuError> {
        Ok(match self {
            Self::Full(model) => AnySession::Full(Box::new(Session::new(model, setup)?)),
            Self::Half(model) => AnySession::Half(Box::new(Session::new(model, setup)?)),
        })
    }

    /// Bytes of weights that one decode pass reads.
    #[must_use]
    pub fn bytes_per_pass(&self) -> usize {
        each!(self, model => model.bytes_per_pass())
    }
}

impl AnySession<'_> {
    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        each!(self, session => session.gpu())
    }

    /// As [`Session::cache`].
    ///
    /// # Errors
    /// As there.
    pub fn cache(&self, rows: usize) -> Result<DeviceCache, GpuError> {
        each!(self, session => session.cache(rows))
    }

    /// As [`Session::start`].
    ///
    /// # Errors
    /// As there.
    pub fn start(&mut self, slot: usize, effective_seed: Option<u64>) -> Result<(), GpuError> {
        each!(self, session => session.start(slot, effective_seed))
    }

    /// As [`Session::decode`].
    ///
    /// # Errors
    /// As there.
    pub fn decode(
        &mut self,
        rows: &mut [DecodeRow<'_>],
        wanted: &BTreeMap<usize, WantedRow>,
        want_logits: &[bool],
    ) -> Result<Vec<RowOut>, GpuError> {
        each!(self, session => session.decode(rows, wanted, want_logits))
    }

    /// As [`Session::prefill`].
    ///
    /// # Errors
    /// As there.
    pub fn prefill(
        &mut self,
        chunk: &mut PrefillChunk<'_>,
        wanted: &BTreeMap<usize, WantedRow>,
        want_logits: &[bool],
    ) -> Result<Vec<RowOut>, GpuError> {
        each!(self, session => session.prefill(chunk, wanted, want_logits))
    }
}
