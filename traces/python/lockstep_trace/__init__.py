"""Recorders for live engines; `lockstep import lockstep-trace DIR --out RUN` reads what they write.

`record` hooks a transformers model and needs torch, transformers, safetensors and numpy; importing this package needs
nothing beyond the standard library.
"""

from __future__ import annotations

from .errors import RecordError
from .files import TraceWriter

__version__ = "0.1.0"
__all__ = ["RecordError", "TraceWriter", "record"]


def __getattr__(name: str):
    if name == "record":
        from .recorder import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
