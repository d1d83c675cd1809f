//! Rows of a compaction on their way to a dump: copied to pinned memory beside the running stream, handed to the sink once they are there.

use std::cell::Cell;

use lockstep_traces::{Dump, TensorRef, TraceSink};

use crate::RuntimeError;
use crate::cuda::gpu::{Gpu, GpuError, Pinned};
use crate::cuda::model::{DeviceCache, DeviceCacheShape};

/// Rows before or after the gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Before,
    After,
}

/// K and V of one side in pinned memory: `[layers][kv_heads][rows][head_dim]` each.
#[derive(Debug, Clone, Copy)]
struct Part {
    side: Side,
    shape: DeviceCacheShape,
    rows: usize,
    k: usize,
    v: usize,
}

/// Pinned memory between runs: to allocate it costs as much as several dumps.
#[derive(Default)]
pub(super) struct Shelf(Cell<Option<Pinned<u8>>>);

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shelf")
    }
}

/// Pinned memory of one compaction, and the dump that waits for it.
#[derive(Debug)]
pub(super) struct Staging<'m> {
    shelf: &'m Shelf,
    memory: Option<Pinned<u8>>,
    used: usize,
    parts: Vec<Part>,
    waiting: Option<Dump>,
}

impl Drop for Staging<'_> {
    /// Memory with no copy under way goes back; what a stopped run still copies to is freed by the driver, which waits.
    fn drop(&mut self) {
        if self.parts.is_empty() {
            self.shelf.0.set(self.memory.take());
        }
    }
}

impl<'m> Staging<'m> {
    /// With the memory that the last run left.
    pub(super) fn new(shelf: &'m Shelf) -> Self {
        Self { shelf, memory: shelf.0.take(), used: 0, parts: Vec::new(), waiting: None }
    }

    /// Queues the copy of every live row.
    pub(super) fn take(
        &mut self,
        gpu: &Gpu,
        cache: &DeviceCache,
        side: Side,
    ) -> Result<(), GpuError> {
        let (shape, rows) = (*cache.shape(), cache.rows());
        let bytes = rows * shape.row_bytes();
        if self.parts.is_empty() {
            self.used = 0;
        }
        // Both sides of a compaction: the second is never longer than the first.
        let wanted = self.used + 2 * bytes * if side == Side::Before { 2 } else { 1 };
        if self.memory.as_ref().is_none_or(|memory| memory.len() < wanted) {
            if !self.parts.is_empty() {
                return Err(GpuError::unsupported("a cache that grows while it is compacted"));
            }
            self.memory = None;
            self.memory = Some(gpu.pinned(wanted)?);
        }
        let Some(memory) = &mut self.memory else { return Ok(()) };
        let store = cache.store();
        let heads = shape.layers * shape.kv_heads;
        let width = bytes / heads;
        let pitch = store.capacity * shape.head_dim * shape.dtype.size();
        let (k, v) = (self.used, self.used + bytes);
        gpu.read_beside(store.k.view(), [width, heads, pitch], memory, k)?;
        gpu.read_beside(store.v.view(), [width, heads, pitch], memory, v)?;
        self.parts.push(Part { side, shape, rows, k, v });
        self.used += 2 * bytes;
        Ok(())
    }

    /// Keeps a dump until its rows are there; one without rows goes on at once.
    pub(super) fn hold(
        &mut self,
        dump: Dump,
        sink: &mut dyn TraceSink,
    ) -> Result<(), RuntimeError> {
        if self.parts.is_empty() {
            return Ok(sink.dump(dump)?);
        }
        self.waiting = Some(dump);
        Ok(())
    }

    /// Hands over the dump that waits, if one does.
    pub(super) fn deliver(
        &mut self,
        gpu: &Gpu,
        sink: &mut dyn TraceSink,
    ) -> Result<(), RuntimeError> {
        let Some(dump) = self.waiting.take() else { return Ok(()) };
        gpu.wait_beside()?;
        let parts = std::mem::take(&mut self.parts);
        let Some(memory) = &self.memory else { return Ok(sink.dump(dump)?) };
        let bytes = memory.slice();
        let layers = parts.iter().flat_map(|part| (0..part.shape.layers).map(move |l| (part, l)));
        let rows: Vec<TensorRef<'_>> = layers
            .flat_map(|(part, layer)| {
                [("k", part.k), ("v", part.v)].map(|which| tensor(part, bytes, layer, which))
            })
            .collect();
        Ok(sink.dump_with(dump, &rows)?)
    }
}

fn tensor<'a>(
    part: &Part,
    memory: &'a [u8],
    layer: usize,
    (name, start): (&str, usize),
) -> TensorRef<'a> {
    let when = if part.side == Side::Before { "pre" } else { "post" };
    let size = part.rows * part.shape.row_bytes() / part.shape.layers;
    let from = start + layer * size;
    TensorRef {
        name: format!("{when}.{name}.layer{layer:02}"),
        dtype: part.shape.dtype,
        shape: vec![part.shape.kv_heads, part.rows, part.shape.head_dim],
        data: &memory[from..from + size],
    }
}
