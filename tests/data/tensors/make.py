"""Makes the files of this folder with the writers themselves.

python make.py numpy    numpy 2, ml_dtypes, safetensors, polygraphy: .npy, .npz, .safetensors, polygraphy.json
python make.py torch    torch 1.13: .pt files and the dump folders

Floating-point arrays hold (i - 5) / 4 for i = 0..11 as [3, 4], integers i - 5 (unsigned: i), booleans i % 2: exact in every type.
"""

import json
import os
import sys

import numpy as np

FLOATS = ((np.arange(12) - 5) / 4).reshape(3, 4)
INTS = (np.arange(12) - 5).reshape(3, 4)


def made_by_numpy():
    import ml_dtypes
    from numpy.lib import format as fmt
    from safetensors.numpy import save_file

    os.makedirs("npy", exist_ok=True)
    np.save("npy/f32.npy", FLOATS.astype("<f4"))
    np.save("npy/f32_fortran.npy", np.asfortranarray(FLOATS.astype("<f4")))
    np.save("npy/f32_big.npy", FLOATS.astype(">f4"))
    np.save("npy/f64.npy", FLOATS)
    np.save("npy/f16.npy", FLOATS.astype("<f2"))
    np.save("npy/bf16_as_void.npy", FLOATS.astype(ml_dtypes.bfloat16))
    np.save("npy/bf16_as_u16.npy", FLOATS.astype(ml_dtypes.bfloat16).view("<u2"))
    np.save("npy/f8_as_u8.npy", FLOATS.astype(ml_dtypes.float8_e4m3fn).view("u1"))
    np.save("npy/i16_big.npy", INTS.astype(">i2"))
    np.save("npy/i64.npy", INTS)
    np.save("npy/bool.npy", (np.arange(12) % 2 == 1).reshape(3, 4))
    for version in (2, 3):
        with open(f"npy/f32_v{version}.npy", "wb") as file:
            fmt.write_array(file, FLOATS.astype("<f4"), version=(version, 0))
    np.save("npy/objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.save("npy/records.npy", np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]))
    np.savez("stored.npz", second=FLOATS.astype("<f4"), first=INTS)
    np.savez_compressed("deflated.npz", second=FLOATS.astype("<f4"), first=INTS)
    save_file({"layer.10.w": FLOATS.astype("<f4"), "layer.2.w": FLOATS.astype("<f2"), "ids": INTS}, "plain.safetensors")
    os.makedirs("sharded", exist_ok=True)
    save_file({"a": FLOATS.astype("<f4")}, "sharded/model-00001-of-00002.safetensors")
    save_file({"b": INTS}, "sharded/model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 144}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    json.dump(index, open("sharded/model.safetensors.index.json", "w"))
    from polygraphy.comparator import IterationResult, RunResults

    results = RunResults()
    outputs = {"logits": FLOATS.astype("<f4"), "hidden": FLOATS.astype("<f2")}
    results.append(("onnxrt", [IterationResult(outputs, runtime=0.25, runner_name="onnxrt")]))
    results.save("polygraphy.json")


def made_by_torch():
    import torch

    def tensor(dtype):
        if dtype == torch.bool:
            return (torch.arange(12) % 2 == 1).reshape(3, 4)
        source = torch.tensor(FLOATS) if dtype.is_floating_point else torch.tensor(INTS if dtype != torch.uint8 else INTS + 5)
        return source.to(dtype)

    kinds = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
             "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
    state = {name: tensor(dtype) for name, dtype in kinds.items()}
    state["transposed"] = tensor(torch.float32).t()
    state["tail"] = state["f32"][1:]
    state["parameter"] = torch.nn.Parameter(tensor(torch.float32))
    state["expanded"] = torch.tensor([2.5]).expand(3, 4)
    os.makedirs("pt", exist_ok=True)
    torch.save(state, "pt/state.pt")
    torch.save(state, "pt/state_bare.pt", _use_new_zipfile_serialization=False)
    torch.save(state, "pt/state_protocol4.pt", pickle_protocol=4)
    torch.save(tensor(torch.float32), "pt/lone.pt")
    nested = {"past": [(tensor(torch.float32), tensor(torch.float16)), [tensor(torch.int64)]], "n": 3, "size": torch.Size([3, 4]),
              "device": torch.device("cpu"), "dtype": torch.float32}
    torch.save(nested, "pt/nested.pt")

    os.makedirs("sglang/dump_20250101_120000_000000", exist_ok=True)
    for at, (name, layer) in enumerate([("embed", None), ("attn", 0), ("attn", 10), ("attn", 2), ("logits", None)]):
        keys = {"step": 0, "rank": 0, "dump_index": at + 7, "name": name}
        if layer is not None:
            keys["layer_id"] = layer
        stem = "___".join(f"{key}={value}" for key, value in keys.items())
        meta = dict(keys, world_rank=0, world_size=1, dims="b s h", sglang_parallel_info={"tp_rank": 0, "tp_size": 1})
        torch.save({"value": tensor(torch.bfloat16), "meta": meta}, f"sglang/dump_20250101_120000_000000/{stem}.pt")

    root = "msprobe/step0/rank0"
    os.makedirs(f"{root}/dump_tensor_data", exist_ok=True)
    data = {}

    def entry(stem):
        torch.save(tensor(torch.float32), f"{root}/dump_tensor_data/{stem}.pt")
        return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3, 4], "Max": 1.5, "Min": -1.25, "Mean": 0.125,
                "Norm": 3.0, "requires_grad": False, "data_name": f"{stem}.pt"}

    for call in ("Module.norm.RMSNorm.forward.0", "Functional.linear.0.forward", "Module.act.SiLU.forward.0"):
        data[call] = {"output": [entry(f"{call}.output.0")], "input_args": [entry(f"{call}.input.0")], "input_kwargs": {}}
    dump = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "dump_tensor_data", "data": data}
    json.dump(dump, open(f"{root}/dump.json", "w"), indent=1)
    json.dump({}, open(f"{root}/stack.json", "w"))

    for iteration in (1, 2, 10):
        folder = f"trtllm/PP_0/TP_0/iteration_{iteration}"
        os.makedirs(folder, exist_ok=True)
        np.save(f"{folder}/layers.0.attention.npy", FLOATS.astype("<f4"))
        np.save(f"{folder}/logits.npy", FLOATS.astype("<f4"))


{"numpy": made_by_numpy, "torch": made_by_torch}[sys.argv[1]]()
