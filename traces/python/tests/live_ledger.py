"""Records the ledger model with transformers, for tests/it/python.rs: `live_ledger.py MODEL PROMPT_IDS TOKENS CACHE_POSITION OUT`.

Folders in OUT: `f32`, `bf16`, `static` (f32, static cache), `plain` (f32, as `generate` computes: no logits of prompt rows but the last),
`loop` (f32, a loop of forward passes), `batch` (f32, beside a shorter prompt, padded on the left), `theta` (f32, rope_theta changed).
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep_trace import record

HIDDEN = [0, 1, 20, 51, 60]


def load(folder, dtype, theta=None):
    config = AutoConfig.from_pretrained(folder)
    if theta:
        config.rope_parameters["rope_theta"] = theta
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype).eval()


def loop(model, ids, tokens, recorder):
    output = model(ids, use_cache=True)
    for _ in range(tokens - 1):
        chosen = output.logits[:, -1].argmax(-1, keepdim=True)
        output = model(chosen, past_key_values=output.past_key_values, use_cache=True)
    recorder.end(output.logits[:, -1].argmax(-1), "length")


def main(folder, ids_file, tokens, cache_position, out):
    out = Path(out)
    prompt = json.loads(Path(ids_file).read_text())
    ids, tokens = torch.tensor([prompt]), int(tokens)
    greedy = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    dumps = {"hidden": HIDDEN, "logits": [20, 60], "caches": [int(cache_position)]}
    model = load(folder, torch.float32)

    def recorded(name, call, model=model, names="ledger_01", **more):
        with record(model, out / name, sample_id=names, **more) as recorder, torch.no_grad():
            call(recorder)

    recorded("f32", lambda _: model.generate(ids, **greedy), prompt_logits=True, **dumps)
    recorded("plain", lambda _: model.generate(ids, **greedy))
    recorded("static", lambda _: model.generate(ids, cache_implementation="static", **greedy), prompt_logits=True, caches="end")
    recorded("loop", lambda recorder: loop(model, ids, tokens, recorder))
    short = prompt[:11]
    both = torch.tensor([prompt, [0] * (len(prompt) - len(short)) + short])
    mask = (both != 0).long()
    recorded(
        "batch", lambda _: model.generate(both, attention_mask=mask, **greedy), names=["ledger_01", "short"], prompt_logits=True, **dumps
    )
    half = load(folder, torch.bfloat16)
    recorded("bf16", lambda _: half.generate(ids, **greedy), half, prompt_logits=True, **dumps)
    turned = load(folder, torch.float32, theta=12000.0)
    recorded("theta", lambda _: turned.generate(ids, **greedy), turned, prompt_logits=True, **dumps)


if __name__ == "__main__":
    main(*sys.argv[1:])
