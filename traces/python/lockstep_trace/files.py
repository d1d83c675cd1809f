"""The folder that Lockstep reads: `trace.jsonl` and `tensors/<sample>/step_<position>.safetensors`.

The layout is described in README.md. Only the standard library is used; tensors are written by their callers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from .errors import RecordError

SCHEMA = "1.0"


def f32(value: float):
    """An f32 value for JSON: nine significant digits give its bits back; words where it is not finite."""
    if math.isfinite(value):
        return float(f"{value:.9g}")
    return _word(value)


def f64(value: float):
    """An f64 value for JSON: the shortest digits that give its bits back; words where it is not finite."""
    return value if math.isfinite(value) else _word(value)


def _word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def folder_of(sample_id: str) -> str:
    """The sample's folder: bytes outside `[A-Za-z0-9._-]`, and a leading dot, are percent-encoded."""
    name = ""
    for byte in sample_id.encode():
        character = chr(byte)
        plain = (character.isascii() and character.isalnum()) or character in "_-" or (character == "." and name)
        name += character if plain else f"%{byte:02X}"
    return name or "%"


class TraceWriter:
    """Writes one trace. Without `finish` it stays incomplete, and the importer says so."""

    def __init__(self, out, header: dict):
        self.out = Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        if any(self.out.iterdir()):
            raise RecordError(f"{self.out}: already holds files; choose another folder")
        self.steps = 0
        self.samples = 0
        self._file = open(self.out / "trace.jsonl", "x", encoding="utf-8", newline="\n")
        self._line({"lockstep_trace": SCHEMA, **header})
        self.flush()

    def _line(self, line: dict) -> None:
        if self._file.closed:
            raise RecordError(f"{self.out}: the trace has ended")
        self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")

    def setting(self, key: str, value, source: str) -> None:
        """An effective value that became known after the header was written."""
        self._line({"t": "setting", "key": key, "value": value, "source": source})

    def step(self, row: dict) -> None:
        """One fed token."""
        self._line({"t": "step", **row})
        self.steps += 1

    def sample(self, row: dict) -> None:
        """A sample has ended."""
        self._line({"t": "sample", **row})
        self.samples += 1

    def tensor_path(self, sample_id: str, position: int) -> Path:
        """Where the tensors of this fed token go; its folder exists."""
        folder = self.out / "tensors" / folder_of(sample_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"step_{position:07d}.safetensors"

    def flush(self) -> None:
        """Everything so far is on disk, in the sense of a killed process."""
        self._file.flush()

    def finish(self) -> None:
        """Declares the trace complete."""
        self._line({"t": "end", "steps": self.steps, "samples": self.samples})
        self._file.close()

    def abandon(self) -> None:
        """Closes the file and leaves the trace incomplete."""
        self._file.close()
