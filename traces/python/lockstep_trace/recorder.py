"""`record`: each token that a transformers model is fed becomes a step row."""

from __future__ import annotations

import inspect
import os
import time
import types

import torch

from . import cache as caches_of
from .errors import RecordError
from .files import TraceWriter
from .generation import Generation
from .identity import header
from .passes import Pass, columns_with_values, padding
from .rows import summaries
from .sequence import Sequence
from .stages import Stages


def record(model, out, **options) -> Recorder:
    """Records what `model` is fed, into the folder `out`, as a context manager.

    Options: `tokenizer` (texts of samples), `top_k` (8), `hidden`, `logits`, `caches` (positions: an iterable of ints,
    "all", or None; `caches` also "end"), `sample_id` (a name, or a list of names in the order of the samples),
    `prompt_len` (where a prompt is fed in several passes without `generate`), `prompt_logits` (True: the logits of every
    prompt row, which `generate` otherwise does not compute), `weights` and `tokenizer_file` (files to be named by their
    hash, where the model was not loaded from a folder), `hash_weights` (True).
    """
    return Recorder(model, out, **options)


class Recorder:
    """See `record`."""

    def __init__(
        self,
        model,
        out,
        *,
        tokenizer=None,
        top_k=8,
        hidden=None,
        caches=None,
        logits=None,
        sample_id=None,
        prompt_len=None,
        prompt_logits=False,
        weights=None,
        tokenizer_file=None,
        hash_weights=True,
    ):
        if top_k < 1:
            raise RecordError("top_k must be 1 or more")
        self.model = model
        self.tokenizer = tokenizer
        self.top_k = top_k
        self.hidden, self.logits = _positions(hidden), _positions(logits)
        self.cache_at_end = caches == "end"
        self.caches = _positions(None if self.cache_at_end else caches)
        self.prompt_len = prompt_len
        self.prompt_logits = prompt_logits
        self._names = iter([sample_id] if isinstance(sample_id, str) else sample_id or ())
        self._named = sample_id is not None
        self._begun = 0
        self._open = []
        self._cache = None
        self._pass = None
        self._generation = None
        self._signature = inspect.signature(model.forward)
        self._head = header(model, top_k=top_k, weights=weights, tokenizer_file=tokenizer_file, hash_weights=hash_weights)
        self._out = out
        self._writer = self._stages = None
        self._handles = []

    def __enter__(self):
        if "generate" in vars(self.model):
            raise RecordError("this model is being recorded already")
        self._stages = Stages(self.model) if self.hidden is not None else None
        self._writer = TraceWriter(self._out, self._head)
        self._handles = [
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after, with_kwargs=True),
        ]
        original = self.model.generate
        self.model.generate = types.MethodType(lambda _model, *args, **kwargs: self._generate(original, args, kwargs), self.model)
        return self

    def __exit__(self, kind, _error, _trace):
        del self.model.generate
        for handle in self._handles:
            handle.remove()
        if self._stages:
            self._stages.remove()
        if kind is not None:
            self._writer.abandon()
            return
        try:
            self.end()
            if self._writer.steps == 0:
                raise RecordError(
                    "no forward pass was seen: a compiled forward bypasses hooks (generation_config.disable_compile = True), and so does "
                    "calling a submodule"
                )
            self._writer.finish()
        finally:
            self._writer.abandon()

    def end(self, next_tokens=None, finish="unknown") -> None:
        """Ends the open samples. `next_tokens` are the tokens chosen last, which were never fed, one a sequence."""
        for index, sequence in enumerate(self._open):
            if sequence.ended:
                continue
            token = None if next_tokens is None else int(next_tokens[index])
            self._end(sequence, token, finish)
        self._open = []
        self._cache = None
        self._writer.flush()

    # -- hooks

    def _generate(self, original, args, kwargs):
        self._generation = Generation(self.model, args, kwargs)
        try:
            self.end()
            output = original(*args, **kwargs)
            self._finish_generation(output)
            return output
        finally:
            self._generation = None

    def _finish_generation(self, output) -> None:
        generation = self._generation
        rows = output if isinstance(output, torch.Tensor) else output.sequences
        if rows.shape[0] != len(self._open):
            raise RecordError(f"generate gave {rows.shape[0]} sequences of {len(self._open)} fed: beams are not recorded")
        for key, value in generation.settings().items():
            self._writer.setting(key, value, "generate")
        for batch, sequence in enumerate(self._open):
            if sequence.ended:
                continue
            at = sequence.padding + sequence.fed
            token = int(rows[batch, at]) if at < rows.shape[1] else None
            self._end(sequence, token, generation.finish(token))
        self._open = []
        self._cache = None
        self._writer.flush()

    def _before(self, _model, args, kwargs):
        given = self._signature.bind_partial(*args, **kwargs).arguments
        given = {**given, **given.pop("kwargs", {})}
        ids = given.get("input_ids")
        if ids is None:
            raise RecordError("a forward pass without input_ids: fed embeddings have no token ids and are not recorded")
        cache = caches_of.fed(given)
        rows = caches_of.length(cache)
        mask = given.get("attention_mask")
        first = rows == 0
        if first:
            if self._generation and self._open:
                raise RecordError("generate feeds its sequences from the start again (use_cache=False?): not recorded, use a cache")
            if self._open and self.cache_at_end and self._cache is cache and cache is not None:
                raise RecordError("the cache was reset before its sample ended: call end() on the recorder before that")
            self.end()
            self._begin(ids, padding(mask, ids, rows))
        elif len(self._open) != ids.shape[0]:
            raise RecordError(
                f"a pass of {ids.shape[0]} sequences on a cache of {rows} rows, and {len(self._open)} are being recorded: record from the "
                "first token on, without beams"
            )
        self._pass = Pass(ids.detach().cpu(), rows, first, given.get("position_ids"), given.get("logits_to_keep"), time.perf_counter())
        self._pass.place(self._open)
        if self._stages:
            self._stages.want(self._pass.columns(self.hidden))
        if self.prompt_logits and isinstance(self._pass.keep, int) and self._pass.keep != 0:
            self._pass.keep = 0
            return args, {**kwargs, "logits_to_keep": 0}
        return None

    def _after(self, _model, args, kwargs, output):
        done, self._pass = self._pass, None
        logits = getattr(output, "logits", None)
        if logits is None:
            raise RecordError("the model's output has no logits; record a model with a language-model head")
        given = self._signature.bind_partial(*args, **kwargs).arguments
        cache = caches_of.returned(output)
        cache = cache if cache is not None else caches_of.fed(given)
        width = done.ids.shape[1]
        done.rows_after = caches_of.length(cache) if cache is not None else done.rows + width
        self._cache = cache
        if self.prompt_logits and logits.shape[1] < width:
            raise RecordError(f"prompt_logits: the model gave logits of {logits.shape[1]} rows of {width}; leave the option out to record these")
        if logits.is_cuda:
            # Its rows are copied to the host next, which waits all the same.
            torch.cuda.synchronize(logits.device)
        seconds = time.perf_counter() - done.started
        columns = columns_with_values(done.keep, width, logits.shape[1])
        for batch, sequence in enumerate(self._open):
            if not sequence.ended:
                sequence.took(seconds, done.first)
                self._rows_of(done, batch, sequence, logits[batch], columns, cache)
        self._writer.flush()

    # -- rows

    def _rows_of(self, done, batch, sequence, logits, columns, cache) -> None:
        """`columns[j]` is the column whose logits are row `j` of `logits`."""
        places = done.places[batch]
        wanted = {column: row for row, column in enumerate(columns)}
        kept = [wanted[column] for column, _ in places if column in wanted]
        values = summaries(logits[kept], self.top_k) if kept else iter(())
        for column, position in places:
            token = int(done.ids[batch, column])
            if self._ends_here(sequence, position, token):
                # A batch goes on until its last sequence ends; what is fed after the end is padding.
                self._end(sequence, token, "eos")
                return
            if sequence.pending is not None:
                self._writer.step(sequence.settle(token, done.held_before(sequence, column)))
            summary = next(values) if column in wanted else None
            sequence.feed(token, position, done.held(sequence, column), done.rope(batch, column), summary)
            self._dump(done, batch, sequence, column, position, logits[wanted[column]] if column in wanted else None, cache)

    def _ends_here(self, sequence, position: int, token: int) -> bool:
        return self._generation is not None and position >= sequence.prompt_len and self._generation.is_stop(token)

    def _dump(self, done, batch, sequence, column, position, logits, cache) -> None:
        tensors = {}
        if logits is not None and _has(self.logits, position):
            tensors["logits"] = logits.detach().to("cpu", torch.float32).clone()
        if self._stages and _has(self.hidden, position):
            tensors.update(self._stages.row(batch, column))
        if _has(self.caches, position):
            tensors.update(self._cached(done, batch, sequence, column, cache))
        sequence.tensors = tensors
        self._save(sequence, position)

    def _cached(self, done, batch, sequence, column, cache) -> dict:
        if cache is None:
            raise RecordError("caches were asked for and this pass has none (use_cache=True)")
        width = done.ids.shape[1]
        if done.rows_after != done.rows + width and column != width - 1:
            raise RecordError("rows were dropped within a pass: only the cache after its last token is known")
        last = done.rows_after - (width - 1 - column)
        return caches_of.tensors(cache, batch, sequence.padding, last)

    def _save(self, sequence, position) -> None:
        if sequence.tensors:
            from safetensors.torch import save_file

            metadata = {"sample_id": sequence.sample_id, "position": str(position)}
            path = self._writer.tensor_path(sequence.sample_id, position)
            # Readers pass over names with a leading dot: a recording that is killed leaves no half of a dump.
            being_written = path.with_name(f".{path.name}")
            save_file(sequence.tensors, being_written, metadata=metadata)
            os.replace(being_written, path)

    # -- samples

    def _begin(self, ids, pads) -> None:
        self._open = []
        for batch in range(ids.shape[0]):
            name = next(self._names, None)
            if name is None and self._named:
                raise RecordError("more samples than names in sample_id; give a list with a name for each")
            name = name if name is not None else f"sample_{self._begun}"
            self._begun += 1
            width = self._generation.width if self._generation else None
            length = self.prompt_len or (width or ids.shape[1]) - pads[batch]
            self._open.append(Sequence(name, pads[batch], length))

    def _end(self, sequence, token, finish) -> None:
        if self.cache_at_end and self._cache is not None and sequence.pending is not None:
            position = sequence.pending["position"]
            batch = self._open.index(sequence)
            held = sequence.padding + sequence.pending["rows"][1]
            sequence.tensors = {**sequence.tensors, **caches_of.tensors(self._cache, batch, sequence.padding, held)}
            self._save(sequence, position)
        if sequence.pending is not None:
            self._writer.step(sequence.settle(token, None))
        self._writer.sample(sequence.row(token, finish, self.tokenizer))
        sequence.ended = True


def _positions(given):
    """None, "all", or a set of positions."""
    if given is None or given == "all":
        return given
    if isinstance(given, str):
        raise RecordError(f'`{given}` names no positions; give an iterable of ints, "all" or None')
    return frozenset([given] if isinstance(given, int) else given)


def _has(positions, position: int) -> bool:
    return positions == "all" or (positions is not None and position in positions)
