"""Requests: which fields ask which server for log-probabilities.

Sources: the OpenAI API reference (completions, chat); vLLM's extra parameters of its OpenAI-compatible server
(`prompt_logprobs`, `return_tokens_as_token_ids`, `add_special_tokens`); SGLang's native `/generate`
(`return_logprob`, `logprob_start_len`, `top_logprobs_num`); llama-server's `/completion` (`n_probs`, `post_sampling_probs`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from .errors import RecordError, UsageError

# Name on the command line to path.
APIS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "sglang": "/generate",
    "llama": "/completion",
}
SERVERS = ("openai", "vllm", "sglang", "llama")


@dataclass(frozen=True)
class Options:
    """What every request of a recording has."""

    api: str
    server: str
    model: str
    max_tokens: int
    temperature: float
    seed: int | None
    top_logprobs: int
    prompt_logprobs: int | None
    extra: dict

    @classmethod
    def of(cls, args, server: str) -> Options:
        try:
            extra = json.loads(args.extra)
        except ValueError as error:
            raise UsageError(f"--extra: not valid JSON: {error}") from None
        if not isinstance(extra, dict):
            raise UsageError("--extra: a JSON object is wanted")
        options = cls(
            args.api, server, args.model, args.max_tokens, args.temperature, args.seed, args.top_logprobs, args.prompt_logprobs, extra
        )
        if options.prompt_logprobs is not None and not (server == "vllm" and args.api in ("completions", "chat") or args.api == "sglang"):
            raise UsageError(
                f"--prompt-logprobs: --api {args.api} of a {server} server gives none; vLLM does on its OpenAI API, SGLang on --api sglang"
            )
        return options

    @property
    def path(self) -> str:
        return APIS[self.api]


def build(row: dict, options: Options) -> dict:
    """The body for one prompt."""
    seed = row.get("seed", options.seed)
    body = _BODIES[options.api](row, options, seed)
    if options.server == "vllm" and options.api in ("completions", "chat"):
        body["return_tokens_as_token_ids"] = True
        if options.prompt_logprobs is not None:
            body["prompt_logprobs"] = options.prompt_logprobs
    body.update(options.extra)
    return body


def _openai(options: Options, seed) -> dict:
    body = {"model": options.model, "max_tokens": options.max_tokens, "temperature": options.temperature, "stream": False}
    if seed is not None:
        body["seed"] = seed
    return body


def _completions(row, options, seed) -> dict:
    prompt = row.get("prompt_ids", row.get("prompt"))
    if prompt is None:
        raise RecordError(f"sample `{row['id']}` has messages only: use --api chat")
    body = {**_openai(options, seed), "prompt": prompt, "logprobs": options.top_logprobs}
    if options.server == "vllm" and "prompt_ids" in row:
        # The ids are whole; a second start token would be another prompt.
        body["add_special_tokens"] = False
    return body


def _chat(row, options, seed) -> dict:
    messages = row.get("messages")
    if messages is None:
        if "prompt" not in row:
            raise RecordError(f"sample `{row['id']}` has ids only: a chat template cannot be applied to them; use --api completions")
        messages = [{"role": "user", "content": row["prompt"]}]
    return {**_openai(options, seed), "messages": messages, "logprobs": True, "top_logprobs": options.top_logprobs}


def _sglang(row, options, seed) -> dict:
    sampling = {"temperature": options.temperature, "max_new_tokens": options.max_tokens}
    if seed is not None:
        sampling["sampling_seed"] = seed
    body = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": options.top_logprobs, "stream": False}
    if options.prompt_logprobs is not None:
        body["logprob_start_len"] = 0
    if "prompt_ids" in row:
        body["input_ids"] = row["prompt_ids"]
    elif "prompt" in row:
        body["text"] = row["prompt"]
    else:
        raise RecordError(f"sample `{row['id']}` has messages only: use --api chat")
    return body


def _llama(row, options, seed) -> dict:
    prompt = row.get("prompt_ids", row.get("prompt"))
    if prompt is None:
        raise RecordError(f"sample `{row['id']}` has messages only: use --api chat")
    body = {
        "prompt": prompt,
        "n_predict": options.max_tokens,
        "temperature": options.temperature,
        "n_probs": options.top_logprobs,
        # Log-probabilities before the samplers; rows of an earlier request would come from another batch.
        "post_sampling_probs": False,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": False,
    }
    if seed is not None:
        body["seed"] = seed
    return body


_BODIES = {"completions": _completions, "chat": _chat, "sglang": _sglang, "llama": _llama}
