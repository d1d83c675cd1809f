"""What a call of `generate` says: its settings, its stop tokens, and what of it cannot be recorded."""

from __future__ import annotations

import torch

from .errors import RecordError


class Generation:
    """One call of `model.generate`."""

    def __init__(self, model, args, kwargs):
        given = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
        base = given if given is not None else model.generation_config

        def value(name, default=None):
            found = kwargs.get(name, getattr(base, name, None))
            return default if found is None else found

        for name, usual in (("num_beams", 1), ("num_return_sequences", 1)):
            if value(name, usual) != usual:
                raise RecordError(f"generate with {name}={value(name)}: only one sequence a prompt, without beams, is recorded")
        if kwargs.get("assistant_model") is not None or value("prompt_lookup_num_tokens"):
            raise RecordError("assisted decoding feeds tokens that it takes back: not recorded")
        if value("use_cache", True) is False:
            raise RecordError("generate with use_cache=False feeds every sequence from its start at each step: not recorded")
        ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        self.width = ids.shape[1] if isinstance(ids, torch.Tensor) else None
        eos = value("eos_token_id", [])
        self._stop = set(eos.tolist() if isinstance(eos, torch.Tensor) else eos if isinstance(eos, (list, tuple)) else [eos])
        self._sampled = bool(value("do_sample", False))
        self._values = {
            "sampling.temperature": float(value("temperature", 1.0)) if self._sampled else 0.0,
            "sampling.sampler": "torch.multinomial" if self._sampled else "argmax",
            "stop.ids": sorted(self._stop),
            "engine.cache": value("cache_implementation", "dynamic"),
        }
        if value("max_new_tokens") is not None:
            self._values["stop.max_new_tokens"] = int(value("max_new_tokens"))
        if self._sampled:
            self._values["sampling.top_k"] = value("top_k", 0)
            self._values["sampling.top_p"] = value("top_p", 1.0)
            self._values["sampling.filters"] = "hf"
            self._values["sampling.torch_initial_seed"] = torch.initial_seed()

    def is_stop(self, token: int) -> bool:
        return token in self._stop

    def finish(self, token) -> str:
        """Why the sequence ended whose last token was `token`."""
        return "eos" if token is not None and self.is_stop(token) else "length"

    def settings(self) -> dict:
        """Effective values under the names of Lockstep's manifests."""
        return self._values
