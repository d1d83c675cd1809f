# Adds the tiny Qwen2 and Mistral models of tests/data/models. Usage: python make_tiny_windows.py OUT
import json, os, sys, torch, transformers
from safetensors.torch import save_file
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM
torch.set_num_threads(2)
out = sys.argv[1]
V = 96
def base(**k):
    d = dict(vocab_size=V, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, rms_norm_eps=1e-6, initializer_range=0.15)
    d.update(k)
    return d
cases = {
    # q, k and v have a bias, o has none; the second layer slides, since max_window_layers counts the full ones in front.
    "qwen2_sliding": (Qwen2Config, Qwen2ForCausalLM, base(tie_word_embeddings=False, use_sliding_window=True, sliding_window=16, max_window_layers=1)),
    "mistral_window": (MistralConfig, MistralForCausalLM, base(rms_norm_eps=1e-5, tie_word_embeddings=False, head_dim=16, sliding_window=24)),
}
for i, (name, (C, M, cfg)) in enumerate(cases.items(), start=1):
    torch.manual_seed(200 + i)
    c = C(**cfg)
    c._attn_implementation = "eager"
    m = M(c).eval()
    with torch.no_grad():
        for n, p in m.named_parameters():
            if "norm" in n: p.copy_(1 + 0.2 * torch.randn_like(p))
            elif n.endswith("bias"): p.copy_(0.3 * torch.randn_like(p))
    d = f"{out}/{name}"
    m.save_pretrained(d)
    mf = M.from_pretrained(d, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(0, V, (1, 160), generator=torch.Generator().manual_seed(17 + i))
    with torch.no_grad(): o = mf(ids, use_cache=False, output_hidden_states=True)
    rot = mf.model.rotary_emb
    save_file({"input_ids": ids[0].to(torch.int32), "logits": o.logits[0].contiguous(), "last_hidden": o.hidden_states[-1][0].contiguous(),
               "inv_freq": rot.inv_freq.float().clone()}, f"{d}/golden.safetensors", metadata={"attention_scaling": repr(float(rot.attention_scaling))})
    print(name, os.listdir(d), o.logits.abs().max(), sum(os.path.getsize(f"{d}/{f}") for f in os.listdir(d)), open(d+"/config.json").read())
