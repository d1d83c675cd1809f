"""What a step row says about a vector of logits: the same numbers, ties and hash as Lockstep's own recorder."""

from __future__ import annotations

import math

import numpy
import torch

from .files import f32, f64

# First 64 fractional bits of the square roots of 2 and of 3.
HASH_SEEDS = (0x6A09E667F3BCC908, 0xBB67AE8584CAA73B)
# Rows widened to f64 at a time.
BLOCK = 32


def summaries(logits: torch.Tensor, top_k: int):
    """Yields one dictionary for each row of `logits` `[rows, vocab]`, of any float dtype, in order."""
    for start in range(0, logits.shape[0], BLOCK):
        block = logits[start : start + BLOCK].detach().to("cpu", torch.float32)
        tops = _tops(block, top_k)
        finite = torch.isfinite(block).all(-1).tolist()
        sums = torch.logsumexp(block.double(), -1).tolist()
        for row, top in enumerate(tops):
            values = block[row]
            yield {
                "argmax": top[0],
                "top_ids": top[:top_k],
                "top_logits": [f32(values[index].item()) for index in top[:top_k]],
                "logsumexp": None if math.isnan(sums[row]) else f64(sums[row]),
                "finite": finite[row],
                "hash": [f"{part:016x}" for part in logits_hash(values.numpy())],
            }


def _tops(block: torch.Tensor, top_k: int) -> list:
    """Ids by falling logit, the lower id first on ties, NaN last. `torch.topk` promises no order of ties, so its
    k-th value is a threshold and the ids at or above it are put in order here."""
    count = min(max(top_k, 1), block.shape[-1])
    if block.isnan().any():
        return [_ordered(row, torch.arange(row.numel()))[:count] for row in block]
    least = torch.topk(block, count).values[:, -1:]
    return [_ordered(row, torch.nonzero(mask)[:, 0])[:count] for row, mask in zip(block, block >= least)]


def _ordered(row: torch.Tensor, ids: torch.Tensor) -> list:
    values = row[ids]
    # Stable sorts, the last key first: ids rise already.
    order = torch.argsort(values.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf), descending=True, stable=True)
    order = order[torch.argsort(values[order].isnan().to(torch.uint8), stable=True)]
    return ids[order].tolist()


def _splitmix64(state: numpy.ndarray) -> numpy.ndarray:
    z = state + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def logits_hash(values: numpy.ndarray) -> tuple:
    """Order-free hash of f32 `values` `[vocab]`: for each seed the wrapping sum over all elements of
    `splitmix64(seed ^ (index << 32 | bits))`, -0.0 as +0.0 and every NaN as one."""
    values = numpy.where(values == 0, numpy.float32(0), values.astype(numpy.float32))
    bits = values.view(numpy.uint32).astype(numpy.uint64)
    bits[numpy.isnan(values)] = 0x7FC00000
    words = (numpy.arange(values.size, dtype=numpy.uint64) << numpy.uint64(32)) | bits
    with numpy.errstate(over="ignore"):
        return tuple(int(_splitmix64(words ^ numpy.uint64(seed)).sum(dtype=numpy.uint64)) for seed in HASH_SEEDS)
