#!/usr/bin/env python3
"""Draws of torch.multinomial on a CUDA device in the layout of tests/data/golden/sampler.

    python3 scripts/draws_torch_cuda.py OUT          # 10 seeds x 100 draws of a vocabulary of 151,936
    lockstep conformance OUT                         # runtime and reference, draw for draw

Each case has probabilities of its own: a softmax over the whole vocabulary (`dense_*`), and the same cut to a top-p of 0.95 and scattered into a
vector of zeros (`sparse_*`, with the draws over the kept slice beside them). One call draws one token, after one `manual_seed` per case, as a
sampled decode does. `index.json` names the device; `lockstep conformance` reads its multiprocessors there.

Needs torch with numpy; the safetensors file is written here.
"""

import argparse
import json
import struct
from pathlib import Path

NAMES = {"torch.int64": "I64", "torch.float32": "F32"}


def write_safetensors(path, tensors):
    """8-byte header length, JSON header, data; 8-byte types first so that every tensor is aligned."""
    header, blobs, at = {}, [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        blob = tensor.contiguous().cpu().numpy().tobytes()
        header[name] = {
            "dtype": NAMES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(blob)],
        }
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def draw(torch, probs, seed, count):
    torch.cuda.manual_seed(seed)
    return torch.cat([torch.multinomial(probs, 1) for _ in range(count)]).cpu()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=100, help="draws of each seed")
    parser.add_argument("--first-seed", type=int, default=1234)
    args = parser.parse_args()

    import torch

    device = torch.device("cuda")
    properties = torch.cuda.get_device_properties(device)
    threads = getattr(properties, "max_threads_per_multi_processor", 2048)
    if threads != 2048 and properties.multi_processor_count * threads < args.vocab:
        raise SystemExit(f"{properties.name}: {threads} threads a multiprocessor; the index can only say parts with 2048")
    tensors, cases = {}, []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        source = torch.Generator().manual_seed(seed)
        logits = torch.randn(args.vocab, generator=source) * 3.0
        probs = torch.softmax(logits.to(device), dim=-1)
        name = f"dense_s{seed}"
        tensors[f"{name}.probs"] = probs.cpu()
        tensors[f"{name}.draws"] = draw(torch, probs, seed, args.draws)
        cases.append({"name": name, "kind": "cuda_multinomial", "vocab": args.vocab, "seed": seed, "draws": args.draws})

        ranked, order = torch.sort(probs, descending=True)
        kept = int((torch.cumsum(ranked, 0) < 0.95).sum()) + 1
        ids = torch.sort(order[:kept]).values
        masses = probs[ids] / probs[ids].sum()
        scattered = torch.zeros_like(probs).scatter_(0, ids, masses)
        name = f"sparse_s{seed}"
        tensors[f"{name}.ids"] = ids.cpu()
        tensors[f"{name}.probs"] = masses.cpu()
        tensors[f"{name}.draws"] = draw(torch, scattered, seed, args.draws)
        slice_draws = draw(torch, masses, seed, args.draws)
        tensors[f"{name}.kept_slice_draws"] = ids.cpu()[slice_draws]
        cases.append({"name": name, "kind": "cuda_multinomial_sparse", "vocab": args.vocab, "seed": seed, "draws": args.draws})

    args.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(args.out / "draws.safetensors", tensors)
    index = {
        "made_with": f"torch {torch.__version__}, {properties.name}",
        "file": "draws.safetensors",
        "sm_count": properties.multi_processor_count,
        "cases": cases,
    }
    (args.out / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    print(f"{len(cases)} cases, {2 * args.seeds * args.draws} draws over {args.vocab} ids on {properties.name}")


if __name__ == "__main__":
    main()
