#!/usr/bin/env python3
"""Decode and prefill rates of Hugging Face transformers with random weights of Qwen3-8B's shape, as one JSON object.

Needs torch with CUDA and transformers; loads nothing from anywhere. Lockstep's own figures for the same shape:
`lockstep bench --self --device cuda --random qwen3-8b --only decode,prefill`.
"""

import argparse
import json
import time

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

SHAPE = dict(
    hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
    head_dim=128, vocab_size=151936, rms_norm_eps=1e-6, max_position_embeddings=40960, tie_word_embeddings=False,
    attention_bias=False, rope_theta=1_000_000.0,
)


def timed(call, rounds):
    """Median seconds of `rounds` calls."""
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPE)).eval()
    answer = {"torch": torch.__version__, "transformers": transformers.__version__, "gpu": torch.cuda.get_device_name()}
    prompt = torch.randint(0, SHAPE["vocab_size"], (1, args.context), device="cuda")
    with torch.inference_mode():
        # The plain loop: a growing cache, one call a token.
        state = model(prompt, use_cache=True, logits_to_keep=1)
        cache, token = state.past_key_values, state.logits[:, -1:].argmax(-1)

        def eager():
            nonlocal token
            for _ in range(args.steps):
                token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

        eager()
        answer["eager_tokens_per_second"] = args.steps / timed(eager, 3)

        long = torch.randint(0, SHAPE["vocab_size"], (1, args.prefill), device="cuda")

        def prefill():
            model(long, use_cache=True, logits_to_keep=1)

        prefill()
        answer["prefill_tokens_per_second"] = args.prefill / timed(prefill, 3)

        if not args.no_compile:
            del state, cache

            def generated(count):
                model.generate(
                    prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False, cache_implementation="static",
                    pad_token_id=0, eos_token_id=None,
                )

            # transformers compiles the decode step of a static cache by itself; prefill and set-up fall out of the difference.
            few, many = args.steps // 2, args.steps // 2 + 2 * args.steps
            generated(many)
            generated(few)
            seconds = timed(lambda: generated(many), 3) - timed(lambda: generated(few), 3)
            answer["static_compiled_tokens_per_second"] = (many - few) / seconds
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
