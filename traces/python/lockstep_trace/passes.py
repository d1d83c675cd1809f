"""One forward pass: which column of which sequence is which position."""

from __future__ import annotations

import torch

from .errors import RecordError


def padding(mask, ids, rows: int) -> list:
    """Padded columns on the left of each sequence, from the mask as the forward pass gets it: 2-D ones and zeros, or 4-D
    (`generate` with a static cache), bool or additive, or one of these by kind of layer."""
    batch, width = ids.shape
    if isinstance(mask, dict):
        mask = mask.get("full_attention", next(iter(mask.values()), None))
    if mask is None:
        return [0] * batch
    if not isinstance(mask, torch.Tensor) or mask.ndim not in (2, 4):
        raise RecordError("an attention mask that is neither 2-D nor 4-D: left padding cannot be told; pass a 2-D mask")
    if mask.ndim == 4:
        # What the last column may attend to.
        row = mask[:, 0, -1, : rows + width]
        real = row if row.dtype == torch.bool else row > -1
        real = real.expand(batch, -1)
    else:
        real = mask[:, : rows + width] != 0
    real = real.cpu()
    pads = [int((~row).int().cumprod(0).sum()) for row in real]
    for number, (row, pad) in enumerate(zip(real, pads)):
        if not bool(row[pad:].all()) or pad == row.numel():
            raise RecordError(f"sequence {number} of the batch is padded on the right or within: only left padding is recorded")
    return pads


def columns_with_values(keep, width: int, given: int) -> list:
    """Columns whose logits the model returned (`logits_to_keep`), in their order."""
    if isinstance(keep, torch.Tensor) and keep.ndim == 1:
        return [int(column) % width for column in keep]
    if given > width:
        raise RecordError(f"{given} rows of logits for {width} tokens fed; this output is not known here")
    return list(range(width - given, width))


class Pass:
    """What is known before a forward pass, and the cache's length after it."""

    def __init__(self, ids, rows: int, first: bool, position_ids, keep, started: float):
        self.ids = ids
        self.rows = rows
        self.first = first
        self.keep = keep
        self.started = started
        self.rows_after = rows
        self.places = []
        self._rope = None if position_ids is None else position_ids.detach().cpu()

    def place(self, sequences: list) -> None:
        """Gives each column that is no padding its position: the count of tokens fed before it."""
        for batch, sequence in enumerate(sequences):
            skip = sequence.padding if self.first else 0
            places = [(column, sequence.fed + column - skip) for column in range(skip, self.ids.shape[1])]
            self.places.append(places)
            fed = sequence.fed + sequence.padding
            if not sequence.ended and self.rows > fed:
                raise RecordError(f"the cache holds {self.rows} rows and {fed} tokens were fed while recording: record from the first token on")
            rope = self.rope(batch, places[0][0])
            if not self.first and rope is not None and rope <= sequence.last_rope:
                raise RecordError(
                    f"position {rope} is fed after {sequence.last_rope}: assisted decoding and cut caches go back, which is not recorded"
                )

    def rope(self, batch: int, column: int):
        """Index of the rotary embedding, as passed or as the model takes it without: the cache's length goes on."""
        if self._rope is None:
            return self.rows + column
        if self._rope.ndim != 2:
            return None
        return int(self._rope[batch % self._rope.shape[0], column])

    def columns(self, wanted) -> list:
        """Columns that hold a wanted position in any sequence."""
        if wanted is None:
            return []
        found = {column for places in self.places for column, position in places if wanted == "all" or position in wanted}
        return sorted(found)

    def held_before(self, sequence, column: int):
        """Rows before this pass, for the row that came last: a cache that was cut between two passes shows here."""
        skip = sequence.padding if self.first else 0
        return self.rows - sequence.padding if column == skip else None

    def held(self, sequence, column: int) -> list:
        """Rows of this sequence before and after the token of `column`."""
        before = self.rows + column - sequence.padding
        last = column == self.ids.shape[1] - 1
        return [before, self.rows_after - sequence.padding if last else before + 1]
