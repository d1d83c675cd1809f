"""What a transformers cache holds, whatever its class."""

from __future__ import annotations

from .errors import RecordError


#: What transformers calls a cache: the newer name first, since the older one then only warns.
NAMES = ("cache", "past_key_values")


def fed(arguments: dict):
    """The cache among the arguments of a forward pass."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)


def returned(output):
    """The cache of a model's output."""
    return next((held for held in (getattr(output, name, None) for name in NAMES) if held is not None), None)


def length(cache) -> int:
    """Rows that the cache says it holds, padding included; read at once, since a static cache counts in place."""
    if cache is None:
        return 0
    if hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    if isinstance(cache, (tuple, list)):
        return int(cache[0][0].shape[-2]) if cache else 0
    raise RecordError(f"{type(cache).__name__} does not say how many rows it holds; use a cache class of transformers")


def layers(cache) -> list:
    """Keys and values of each layer, `[batch, kv_heads, rows or capacity, head_dim]`.

    Sliding and quantised layers do not hold what was fed and are refused.
    """
    if isinstance(cache, (tuple, list)):
        return [(layer[0], layer[1]) for layer in cache]
    if hasattr(cache, "layers"):
        for number, layer in enumerate(cache.layers):
            kind = type(layer).__name__
            if getattr(layer, "is_sliding", False) or "Quantized" in kind or not hasattr(layer, "keys"):
                raise RecordError(f"layer {number} of the cache is a {kind}: its rows are not those fed; caches=None records the rest")
        return [(layer.keys, layer.values) for layer in cache.layers]
    if hasattr(cache, "key_cache"):
        return list(zip(cache.key_cache, cache.value_cache))
    raise RecordError(f"{type(cache).__name__}: keys and values of this cache class are not known here; caches=None records the rest")


def tensors(cache, batch: int, first: int, last: int) -> dict:
    """Rows `first..last` of one sequence in its own element type, as `cache.k.layerNN` `[kv_heads, rows, head_dim]`."""
    out = {}
    for number, (keys, values) in enumerate(layers(cache)):
        for letter, held in (("k", keys), ("v", values)):
            if held.shape[-2] < last:
                raise RecordError(f"layer {number} of the cache holds {held.shape[-2]} rows, not {last}; caches=None records the rest")
            out[f"cache.{letter}.layer{number:02d}"] = held[batch, :, first:last].detach().cpu().clone().contiguous()
    return out
