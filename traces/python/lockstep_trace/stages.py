"""Hidden states by stage: forward hooks on the module names that the Llama, Mistral, Qwen2 and Qwen3 families share.

Names and shapes are those of Lockstep's step dumps (`hidden.embed`, `hidden.layerNN.q_proj`, ...), one f32 vector a
stage and fed token. A module that a family does not have (`q_norm` outside Qwen3) leaves its stage out. `q_rope` and
`k_rope` are no module's output: the family's `apply_rotary_pos_emb` is wrapped while a recording goes on.
"""

from __future__ import annotations

import sys

import torch

from .errors import RecordError

# Stage name, module below a decoder layer.
OUTPUTS = (
    ("input_norm", "input_layernorm"),
    ("q_proj", "self_attn.q_proj"),
    ("k_proj", "self_attn.k_proj"),
    ("v_proj", "self_attn.v_proj"),
    ("q_norm", "self_attn.q_norm"),
    ("k_norm", "self_attn.k_norm"),
    ("attn_out", "self_attn.o_proj"),
    ("post_norm", "post_attention_layernorm"),
    ("mlp_out", "mlp"),
    ("out", ""),
)
# Without these it is another architecture, and names would lie.
REQUIRED = ("input_norm", "q_proj", "k_proj", "v_proj", "attn_out", "post_norm", "mlp_out", "out")


class Stages:
    """Takes the wanted columns of each stage while a forward pass runs."""

    def __init__(self, model):
        self._handles = []
        self._columns = None
        self._taken = {}
        self._layer = None
        self._rotary = None
        base = getattr(model, model.base_model_prefix, None)
        layers = getattr(base, "layers", None)
        if layers is None or not hasattr(base, "embed_tokens") or not hasattr(base, "norm"):
            raise RecordError(
                f"{type(model).__name__}: no `embed_tokens`, `layers` and `norm` below `{model.base_model_prefix}`; hidden states "
                "of this architecture are not known here (hidden=None records the rest)"
            )
        self._output(base.embed_tokens, "hidden.embed")
        self._output(base.norm, "hidden.final_norm")
        for number, layer in enumerate(layers):
            self._of_layer(number, layer)
        self._wrap_rotary(layers[0].self_attn)

    def _of_layer(self, number: int, layer) -> None:
        prefix = f"hidden.layer{number:02d}."
        for stage, path in OUTPUTS:
            try:
                module = layer.get_submodule(path)
            except AttributeError:
                if stage in REQUIRED:
                    raise RecordError(f"{type(layer).__name__} has no `{path}`; hidden=None records the rest") from None
                continue
            self._output(module, prefix + stage)
        attention = layer.self_attn

        def enter(_module, _args):
            self._layer = number

        def heads(_module, args):
            self._take(prefix + "attn_heads", args[0])

        self._handles.append(attention.register_forward_pre_hook(enter))
        self._handles.append(attention.o_proj.register_forward_pre_hook(heads))

    def _output(self, module, name: str) -> None:
        def hook(_module, _args, output):
            self._take(name, output[0] if isinstance(output, tuple) else output)

        self._handles.append(module.register_forward_hook(hook))

    def _wrap_rotary(self, attention) -> None:
        module = sys.modules[type(attention).__module__]
        original = getattr(module, "apply_rotary_pos_emb", None)
        if original is None:
            return

        def wrapped(*args, **kwargs):
            query, key = original(*args, **kwargs)
            # [batch, heads, rows, head_dim]
            self._take(f"hidden.layer{self._layer:02d}.q_rope", query.transpose(1, 2))
            self._take(f"hidden.layer{self._layer:02d}.k_rope", key.transpose(1, 2))
            return query, key

        self._rotary = (module, original)
        module.apply_rotary_pos_emb = wrapped

    def _take(self, name: str, values: torch.Tensor) -> None:
        if self._columns:
            taken = values.detach()[:, self._columns].flatten(2)
            self._taken[name] = taken.to("cpu", torch.float32)

    def want(self, columns: list) -> None:
        """Columns of the next forward pass whose states are wanted."""
        self._columns = columns
        self._taken = {}

    def row(self, batch: int, column: int) -> dict:
        """The stages of one fed token, f32, 1-D."""
        at = self._columns.index(column)
        return {name: values[batch, at].clone() for name, values in self._taken.items()}

    def remove(self) -> None:
        """Takes every hook off again."""
        for handle in self._handles:
            handle.remove()
        if self._rotary:
            module, original = self._rotary
            module.apply_rotary_pos_emb = original
