"""One sample while it is fed. Its last row is held back: what it chose is known when the next token is fed."""

from __future__ import annotations

import hashlib
import struct


class Sequence:
    """`padding` columns on the left are no part of it; `fed` tokens have been fed."""

    def __init__(self, sample_id: str, padding: int, prompt_len: int):
        self.sample_id = sample_id
        self.padding = padding
        self.prompt_len = prompt_len
        self.fed = 0
        self.last_rope = -1
        self.pending = None
        self.tensors = {}
        self.ended = False
        self._ids = []
        self._prefill = self._decode = 0.0

    def took(self, seconds: float, first: bool) -> None:
        """A pass ended. Recording is not counted in."""
        if first:
            self._prefill += seconds
        else:
            self._decode += seconds

    def feed(self, token: int, position: int, rows: list, rope, summary) -> None:
        """Holds the row of this token; `rows` are those before and after it."""
        self.pending = {
            "sample": self.sample_id,
            "position": position,
            "phase": "prompt" if position < self.prompt_len else "decode",
            "token": token,
            "rows": rows,
            "rope": rope,
            **(summary or {}),
        }
        self.last_rope = self.last_rope if rope is None else rope
        self.fed = position + 1
        self._ids.append(token)

    def settle(self, token, rows_after) -> dict:
        """The row held back, with the token that came next (`None`: unknown)."""
        row, self.pending = self.pending, None
        if rows_after is not None:
            row["rows"][1] = rows_after
        # A prompt row before the last chooses nothing.
        row["next"] = token if row["position"] + 1 >= self.prompt_len else None
        return row

    def row(self, token, finish: str, tokenizer) -> dict:
        """The sample's own line."""
        prompt = self._ids[: self.prompt_len]
        generated = self._ids[self.prompt_len :] + ([] if token is None else [token])
        return {
            "sample": self.sample_id,
            "prompt_ids": prompt,
            "prompt_ids_sha256": hashlib.sha256(struct.pack(f"<{len(prompt)}I", *prompt)).hexdigest(),
            "generated_ids": generated,
            "text": tokenizer.decode(generated, skip_special_tokens=False) if tokenizer else None,
            "finish": finish,
            "prefill_seconds": self._prefill,
            "decode_seconds": self._decode,
        }
