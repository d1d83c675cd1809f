"""The header: which model, which files, which effective settings, which versions."""

from __future__ import annotations

import datetime
import hashlib
import platform
from pathlib import Path

import torch

from .rows import HASH_SEEDS

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
# Keys of config.json that Lockstep's manifests name as they are.
PLAIN = (
    "attention_bias",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "vocab_size",
)


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def header(model, *, top_k: int, weights, tokenizer_file, hash_weights: bool) -> dict:
    """The first line of a trace."""
    import transformers

    dtype = DTYPES.get(model.dtype)
    device = model.device
    name = f"cuda: {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
    remarks = []
    if not hash_weights:
        remarks.append("weight files were not hashed, as asked for")
    return {
        "producer": {"name": "transformers", "version": transformers.__version__},
        "recorder": "lockstep_trace 0.1.0",
        "created_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "model": _model(model, weights, tokenizer_file, hash_weights),
        "dtype": dtype,
        # transformers caches keys and values as the projections give them.
        "cache_dtype": dtype,
        "device": name,
        "top_k": top_k,
        "hash_seeds": [f"{seed:016x}" for seed in HASH_SEEDS],
        "settings": _settings(model, dtype),
        "remarks": remarks,
    }


def _model(model, weights, tokenizer_file, hash_weights: bool) -> dict:
    folder = Path(str(model.config._name_or_path or ""))
    known = folder if str(folder) not in ("", ".") and folder.is_dir() else None
    files = [Path(path) for path in weights] if weights else sorted(known.glob("*.safetensors")) if known else []
    tokenizer = Path(tokenizer_file) if tokenizer_file else known / "tokenizer.json" if known else None
    config = known / "config.json" if known else None
    gguf = any(path.suffix == ".gguf" for path in files)
    return {
        "path": str(files[0] if gguf else folder) if files or known else None,
        "architecture": (getattr(model.config, "architectures", None) or [type(model).__name__])[0],
        # A GGUF file is configuration, weights and tokenizer at once.
        "config_sha256": sha256_file(config) if config and config.is_file() and not gguf else None,
        "weights_sha256": {path.name: sha256_file(path) for path in files} if hash_weights else {},
        "tokenizer_sha256": sha256_file(tokenizer) if tokenizer and tokenizer.is_file() and not gguf else None,
    }


def _settings(model, dtype) -> dict:
    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    values = {f"model.{key}": getattr(text, key) for key in PLAIN if getattr(text, key, None) is not None}
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    theta = rope.get("rope_theta", getattr(text, "rope_theta", None))
    if theta is not None:
        values["model.rope_theta"] = float(theta)
    values["model.rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    if "model.head_dim" not in values and "model.hidden_size" in values:
        values["model.head_dim"] = values["model.hidden_size"] // values["model.num_attention_heads"]
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    eos = eos if eos is not None else getattr(text, "eos_token_id", None)
    if eos is not None:
        values["model.eos_token_id"] = eos if isinstance(eos, list) else [eos]
    values["model.dtype"] = dtype or str(model.dtype)
    values["model.cache_dtype"] = dtype or str(model.dtype)
    settings = {key: {"value": value, "source": "transformers config"} for key, value in values.items()}
    engine = {
        "engine.attn_implementation": getattr(text, "_attn_implementation", None),
        "engine.torch": torch.__version__,
        "engine.python": platform.python_version(),
        "engine.threads": torch.get_num_threads(),
        "engine.float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    settings.update({key: {"value": value, "source": "engine"} for key, value in engine.items()})
    settings["policy.kind"] = {"value": "dense", "source": "engine"}
    return settings
