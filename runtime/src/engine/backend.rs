//! The two backends behind the engine: a loaded model, and a run's state with it.

use lockstep_traces::{Dump, TraceSink};

use super::staging::{Shelf, Staging};
use crate::cache::{CacheShape, KvCache};
use crate::cpu::CpuModel;
use crate::cuda::gpu::{Gpu, GpuError};
use crate::cuda::model::{AnyModel, AnySession, DeviceCache, DeviceOptions};
use crate::cuda::ops::gather::GatherOps;
use crate::cuda::ops::select::SelectOps;
use crate::policy::Policy;
use crate::select::Dims;
use crate::{Hyper, RuntimeError};

/// A model where it was loaded.
#[derive(Debug)]
pub(super) enum Loaded {
    Cpu(Box<CpuModel>),
    Cuda(Box<CudaModel>),
}

/// A model on a device. The checkpoint's host memory is gone once it is there.
#[derive(Debug)]
pub(super) struct CudaModel {
    pub(super) gpu: Gpu,
    pub(super) hyper: Hyper,
    pub(super) remarks: Vec<String>,
    pub(super) model: AnyModel,
    pub(super) shelf: Shelf,
}

impl Loaded {
    pub(super) const fn hyper(&self) -> &Hyper {
        match self {
            Self::Cpu(model) => model.hyper(),
            Self::Cuda(model) => &model.hyper,
        }
    }

    pub(super) fn remarks(&self) -> &[String] {
        match self {
            Self::Cpu(model) => &model.weights().remarks,
            Self::Cuda(model) => &model.remarks,
        }
    }

    /// Bytes of weights that one decode pass reads.
    pub(super) fn bytes_per_pass(&self) -> usize {
        match self {
            Self::Cpu(model) => model.weights().bytes_per_token(),
            Self::Cuda(model) => model.model.bytes_per_pass(),
        }
    }
}

/// A run's state with a backend.
#[derive(Debug)]
pub(super) enum Device<'m> {
    Cpu(&'m CpuModel),
    Cuda(Box<CudaRun<'m>>),
}

/// A run on a device.
#[derive(Debug)]
pub(super) struct CudaRun<'m> {
    pub(super) session: AnySession<'m>,
    pub(super) options: DeviceOptions,
    pub(super) staging: Staging<'m>,
    dims: Dims,
    select: Option<(SelectOps, usize)>,
    gather: Option<GatherOps>,
}

impl<'m> CudaRun<'m> {
    pub(super) fn new(
        session: AnySession<'m>,
        options: DeviceOptions,
        dims: Dims,
        shelf: &'m Shelf,
    ) -> Self {
        Self { session, options, staging: Staging::new(shelf), dims, select: None, gather: None }
    }

    /// The selector on the device, with memory for the rows of `cache`.
    pub(super) fn select(
        &mut self,
        policy: &Policy,
        cache: &DeviceCache,
    ) -> Result<&SelectOps, RuntimeError> {
        let rows = cache.rows();
        if self.select.as_ref().is_none_or(|(_, most)| *most < rows) {
            let Some(selector) = policy.selector() else {
                unreachable!("asked for where the policy has one");
            };
            let most = rows.next_multiple_of(1024);
            let gpu = self.session.gpu();
            let ops = SelectOps::new(gpu, selector, cache.shape().dtype, most)?;
            self.select = Some((ops, most));
        }
        self.select.as_ref().map(|(ops, _)| ops).ok_or_else(|| unmade("selector"))
    }

    /// The kernels that move rows.
    pub(super) fn gather(&mut self, cache: &DeviceCache) -> Result<&GatherOps, RuntimeError> {
        if self.gather.is_none() {
            let dtype = cache.shape().dtype;
            self.gather = Some(GatherOps::new(self.session.gpu(), self.dims, dtype)?);
        }
        self.gather.as_ref().ok_or_else(|| unmade("gather"))
    }
}

fn unmade(what: &str) -> RuntimeError {
    GpuError::unsupported(format!("the {what} of the device was not made")).into()
}

/// One sequence's cache.
#[derive(Debug)]
pub(super) enum Cache {
    Cpu(KvCache),
    Cuda(DeviceCache),
}

impl Device<'_> {
    /// An empty cache. On a device memory is taken for `expected` rows at once and for more when they come.
    pub(super) fn cache(&self, shape: CacheShape, expected: usize) -> Result<Cache, RuntimeError> {
        Ok(match self {
            Self::Cpu(_) => Cache::Cpu(KvCache::new(shape)),
            Self::Cuda(run) => Cache::Cuda(run.session.cache(expected.min(shape.capacity))?),
        })
    }
}

impl Device<'_> {
    /// Hands over a dump; on a device it waits for rows that are still being copied.
    pub(super) fn dump(
        &mut self,
        dump: Dump,
        sink: &mut dyn TraceSink,
    ) -> Result<(), RuntimeError> {
        match self {
            Self::Cpu(_) => Ok(sink.dump(dump)?),
            Self::Cuda(run) => run.staging.hold(dump, sink),
        }
    }

    /// Hands over the dump that waits, if one does.
    pub(super) fn deliver(&mut self, sink: &mut dyn TraceSink) -> Result<(), RuntimeError> {
        match self {
            Self::Cpu(_) => Ok(()),
            Self::Cuda(run) => {
                let gpu = run.session.gpu().clone();
                run.staging.deliver(&gpu, sink)
            }
        }
    }
}

impl Cache {
    pub(super) const fn live_bytes(&self) -> usize {
        match self {
            Self::Cpu(cache) => cache.live_bytes(),
            Self::Cuda(cache) => cache.live_bytes(),
        }
    }
}
