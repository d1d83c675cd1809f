"""Makes the files of this folder with llama.cpp's own programs, and restates llama-perplexity's arithmetic beside them.

    python make.py BIN        BIN: folder with llama-perplexity, llama-results and llama-debug
    python make.py --check    holds the restatement against the files that are here

Made with llama.cpp as llama-cpp-python 0.3.36 carries it (0.5.0), CPU only, x86-64, without -march. One line was added to
`kl_divergence` of tools/perplexity/perplexity.cpp, before `process_logits`: it appends the rows `all_logits` to the file that
KLD_LOGITS names. Nothing else of it was touched; `kld.log` is what it printed.

The model is random: one layer, 19 tokens (an odd number), a vocabulary of letters; the target has weights with noise on them.
"""

import ctypes
import os
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

F = np.float32
CTX, CHUNKS = 16, 15
TOKENS = ["<s>", "</s>", "\u0120"] + [chr(ord("a") + i) for i in range(15)] + ["ab"]
LIBM = ctypes.CDLL("libm.so.6")
LIBM.expf.restype, LIBM.expf.argtypes = ctypes.c_float, [ctypes.c_float]
LIBM.log.restype, LIBM.log.argtypes = ctypes.c_double, [ctypes.c_double]
LIBM.exp.restype, LIBM.exp.argtypes = ctypes.c_double, [ctypes.c_double]


def expf(value):
    return F(LIBM.expf(float(value)))


# --- the restatement: every name and every width as in perplexity.cpp ---


def encode(logits):
    """A row of logits as its record: scale, min_log_prob, codes, a code of padding where their number is odd."""
    top, low = F(max(logits)), F(min(logits))
    low = F(max(low, F(top - F(16))))
    total = 0.0
    for value in logits:
        total += float(expf(F(value) - top))
    log_sum = F(LIBM.log(total))
    floor = F(F(low - top) - log_sum)
    scale = F(F(top - low) / F(65535))
    codes = [0] * len(logits)
    if scale != 0:
        inverse = F(F(1) / scale)
        for i, value in enumerate(logits):
            if F(value) > low:
                bits = struct.unpack("<I", struct.pack("<f", F(F(inverse * F(F(value) - low)) + F(12582912))))[0]
                codes[i] = (bits & 0x7FFFFF) - 0x400000
    if len(codes) % 2:
        codes.append(0)
    return struct.pack("<ff", scale, floor) + struct.pack(f"<{len(codes)}H", *codes)


def compare(record, logits, token):
    """(nll, nll of the base, KL, difference of p, same top) of one row."""
    scale, floor = (F(x) for x in struct.unpack_from("<ff", record))
    codes = struct.unpack_from(f"<{len(logits)}H", record, 8)
    top, total = F(max(logits)), 0.0
    for value in logits:
        total += float(expf(F(value) - top))
    log_sum = F(LIBM.log(total))
    nll = F(F(top + log_sum) - F(logits[token]))
    nll_base = F(-F(F(scale * F(codes[token])) + floor))
    top = F(top + log_sum)
    kl = 0.0
    base = [F(F(scale * F(code)) + floor) for code in codes]
    for p_log, value in zip(base, logits):
        if p_log > F(-16):
            kl += float(F(expf(p_log) * F(F(p_log - F(value)) + top)))
    difference = F(expf(F(-nll)) - expf(F(-nll_base)))
    return nll, nll_base, kl, difference, int(np.argmax(logits)) == base.index(max(base))


def percentile(values, fraction):
    p = F(F(fraction) * F(len(values) - 1))
    whole = int(p)
    p = F(p - F(whole))
    return F(F(F(1) - p) * values[whole]) + F(p * values[min(whole + 1, len(values) - 1)])


def statistics(rows):
    """The lines that llama-perplexity prints, by name."""
    n = len(rows)
    sums = dict.fromkeys("q q2 b b2 qb k k2 d d2 d4 same".split(), 0.0)
    for nll, base, kl, diff, same in rows:
        sums["q"] += float(nll)
        sums["q2"] += float(F(nll * nll))
        sums["b"] += float(base)
        sums["b2"] += float(F(base * base))
        sums["qb"] += float(F(nll * base))
        sums["k"] += kl
        sums["k2"] += kl * kl
        sums["d"] += float(diff)
        square = float(F(diff * diff))
        sums["d2"] += square
        sums["d4"] += square * square
        sums["same"] += same

    def mean(a, b):
        f = sums[a] / n
        df = sums[b] / n - f * f
        return f, (df / (n - 1)) ** 0.5 if df > 0 and n > 10 else 0.0

    (lq, eq), (lb, eb) = mean("q", "q2"), mean("b", "b2")
    cov = (sums["qb"] / n - sums["q"] / n * (sums["b"] / n)) / (n - 1) if n >= 10 else 0.0
    ppl, base = LIBM.exp(lq), LIBM.exp(lb)
    ratio, ratio_error = lq - lb, (eq * eq + eb * eb - 2 * cov) ** 0.5
    out = {
        "Mean PPL(Q)": f"{ppl:10.6f} ± {ppl * eq:10.6f}",
        "Mean PPL(base)": f"{base:10.6f} ± {base * eb:10.6f}",
        "Cor(ln(PPL(Q)), ln(PPL(base)))": f"{100 * cov / (eq * eb):6.2f}%",
        "Mean ln(PPL(Q)/PPL(base))": f"{ratio:10.6f} ± {ratio_error:10.6f}",
        "Mean PPL(Q)/PPL(base)": f"{LIBM.exp(ratio):10.6f} ± {LIBM.exp(ratio) * ratio_error:10.6f}",
        "Mean PPL(Q)-PPL(base)": f"{ppl - base:10.6f} ± "
        f"{((ppl * eq) ** 2 + (base * eb) ** 2 - 2 * ppl * base * cov) ** 0.5:10.6f}",
        "Mean KLD": "{:10.6f} ± {:10.6f}".format(*mean("k", "k2")),
        "Mean Δp": "{:6.3f} ± {:5.3f} %".format(*(100 * x for x in mean("d", "d2"))),
    }
    kls = sorted(F(row[2]) for row in rows)
    diffs = sorted(row[3] for row in rows)
    for values, name, form in (kls, "KLD", lambda x: f"{x:10.6f}"), (diffs, "Δp", lambda x: f"{100 * float(x):6.3f}%"):
        half = F(0.5) * F(values[n // 2] + values[n // 2 - 1]) if n % 2 == 0 else values[n // 2]
        out |= {f"Maximum {name}": form(values[-1]), f"Median {name}": form(half), f"Minimum {name}": form(values[0])}
        for part in 99.9, 99, 95, 90, 75, 25, 10, 5, 1, 0.1:
            out[f"{part:.1f}% {name}"] = form(percentile(values, part / 100))
    square, error = mean("d2", "d4")
    out["RMS Δp"] = f"{100 * square**0.5:6.3f} ± {100 * 0.5 / square**0.5 * error:5.3f} %"
    same = sums["same"] / n
    out["Same top p"] = f"{100 * same:6.3f} ± {100 * (same * (1 - same) / (n - 1)) ** 0.5:5.3f} %"
    return out


# --- the files ---


def model(path, seed, noise):
    import gguf

    rng = np.random.default_rng(seed)
    other = np.random.default_rng(seed + 1)
    width, heads, inner, vocab = 32, 2, 32, len(TOKENS)

    def matrix(*shape, size=1.0):
        values = rng.standard_normal(shape) * size / np.sqrt(shape[-1])
        return (values + noise * np.std(values) * other.standard_normal(shape)).astype(F)

    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(1)
    out.add_context_length(256)
    out.add_embedding_length(width)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(width // heads)
    out.add_vocab_size(vocab)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(TOKENS)
    out.add_token_types([3, 3] + [1] * (vocab - 2))
    out.add_token_merges(["a b"])
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)
    out.add_add_bos_token(True)
    out.add_tensor("token_embd.weight", matrix(vocab, width, size=6))
    for name, shape in {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
                        "attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width),
                        "ffn_down": (width, inner)}.items():
        out.add_tensor(f"blk.0.{name}.weight", matrix(*shape, size=1.5))
    for name in "blk.0.attn_norm", "blk.0.ffn_norm", "output_norm":
        out.add_tensor(f"{name}.weight", np.ones(width, F))
    out.add_tensor("output.weight", matrix(vocab, width, size=3.5))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def make(tools):
    rng = np.random.default_rng(5)
    letters = [token for token in TOKENS[3:18]]
    text = "".join(letters[i] for i in rng.integers(0, 15, CTX * CHUNKS + 40))
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as work:
        def run(program, *args, **env):
            words = [os.path.join(tools, program), *args]
            done = subprocess.run(words, cwd=work, env=os.environ | env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            return done.stdout + done.stderr

        model(f"{work}/base.gguf", 1, 0.0)
        model(f"{work}/target.gguf", 1, 0.15)
        with open(f"{work}/text", "w", encoding="utf-8") as file:
            file.write(text)
        common = ["-c", str(CTX), "-b", str(CTX), "-ub", str(CTX), "-t", "1", "-fa", "off"]
        for name in "base", "target":
            run("llama-perplexity", "-m", f"{name}.gguf", "-f", "text", "--chunks", str(CHUNKS), *common,
                "--save-all-logits", f"{here}/{name}.kld")
        logs = {name: run("llama-perplexity", "-m", f"{name}.gguf", *common, "--kl-divergence",
                          "--kl-divergence-base", f"{here}/base.kld", KLD_LOGITS=f"{work}/{name}.f32")
                for name in ("base", "target")}
        start = logs["target"].index("====== Perplexity")
        lines = [line.rstrip() for line in logs["target"][start:].splitlines()]
        keep = [line for line in lines if re.match(r"(=|Mean|Cor|Max|Med|Min|RMS|Same|\s*\d+\.\d%)", line)]
        with open(f"{here}/kld.log", "w", encoding="utf-8") as file:
            file.write("\n".join(keep) + "\n")
        for name in "base", "target":
            rows = np.fromfile(f"{work}/{name}.f32", "<f4").reshape(-1, len(TOKENS))
            np.save(f"{here}/{name}.npy", rows)
        os.makedirs(f"{here}/results", exist_ok=True)
        run("llama-results", "-m", "base.gguf", "-p", "abcabcdefghij", "-t", "1", "-o", f"{here}/results/llama-results.gguf")
        run("llama-debug", "-m", "base.gguf", "-p", "abcabcdefghij", "-t", "1", "--save-logits", "--logits-output-dir", "data")
        for end in ".bin", "-tokens.bin":
            with open(f"{work}/data/llamacpp-base{end}", "rb") as source, \
                    open(f"{here}/results/llamacpp-base{end}", "wb") as file:
                file.write(source.read())


def by_package():
    """What llama-results writes with decode steps (its newer versions do), and a table whose dimensions stand the right way round."""
    import gguf

    here = os.path.dirname(os.path.abspath(__file__))
    for name, steps, turned in ("steps", 2, True), ("straight", 0, False):
        tokens, vocab = np.array([4, 0, 3], "<i4"), 5
        rows = len(tokens) if steps == 0 else 2 * len(tokens) + steps + 1
        logits = (np.arange(rows)[:, None] + np.array([0.5, 0.25, 0.75, 0.0, 0.125])).astype("<f4")
        out = gguf.GGUFWriter(f"{here}/results/{name}.gguf", "none")
        out.add_string("path_model", "model.gguf")
        out.add_uint32("decode_steps", steps)
        out.add_tensor("tokens", tokens)
        out.add_tensor("logits", logits.reshape(vocab, rows) if turned else logits)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()


def edges():
    """Rows that the model does not give: all equal, far below the range, minus infinity, huge offsets."""
    rows = [
        [1.5] * 5,
        [0.0, -20.0, -40.0, -15.9, 3.0],
        [float("-inf"), 2.0, 1.0, 0.0, -1.0],
        [1000.0, 999.0, 990.5, 984.0, 983.9],
        [-3.0, -3.0000002, -3.0, -3.0, -3.0000005],
    ]
    return np.array(rows, F)


def check():
    """Holds the restatement against llama-perplexity: equal bytes, equal printed digits."""
    here = os.path.dirname(os.path.abspath(__file__))
    data = open(f"{here}/base.kld", "rb").read()
    tokens = struct.unpack_from(f"<{CTX * CHUNKS}i", data, 20)
    size, at = 2 * (2 * ((len(TOKENS) + 1) // 2) + 4), 20 + 4 * CTX * CHUNKS
    records = [data[i:i + size] for i in range(at, len(data), size)]
    base, target = (np.load(f"{here}/{name}.npy") for name in ("base", "target"))
    assert [encode(row) for row in base] == records, "codes"
    scored = [chunk * CTX + CTX // 2 + i for chunk in range(CHUNKS) for i in range(CTX - 1 - CTX // 2)]
    rows = [compare(record, row, tokens[at + 1]) for record, row, at in zip(records, target, scored)]
    mine = statistics(rows)
    for line in open(f"{here}/kld.log", encoding="utf-8"):
        if line.startswith("="):
            continue
        name, value = re.match(r"\s*(.*?)\s*: *(.*?)\s*$", line).groups()
        name = re.sub(r"\s+", " ", name)
        assert mine[name].strip() == value, (name, mine[name], value)
    by_package()
    np.save(f"{here}/edges.npy", edges())
    with open(f"{here}/edges.records", "wb") as file:
        file.write(b"".join(encode(row) for row in edges()))
    print(f"{len(records)} records and {len(mine)} figures agree")


if __name__ == "__main__":
    if sys.argv[1] != "--check":
        make(sys.argv[1])
    check()
