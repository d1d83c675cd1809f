# Makes the tiny random models and the calibration figures of tests/data with transformers.
# Usage: python make_tiny.py OUT, with the ledger model in ./ledger and tasks.jsonl beside it.
import json, os, sys, torch, transformers, numpy as np
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM, AutoModelForCausalLM
torch.set_num_threads(4)
out=sys.argv[1]; os.makedirs(out,exist_ok=True)
V=96
def base(**k):
    d=dict(vocab_size=V,hidden_size=64,intermediate_size=112,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=16,max_position_embeddings=256,rms_norm_eps=1e-5,initializer_range=0.15)
    d.update(k); return d
cases={
 "llama_default_sharded":(LlamaConfig,LlamaForCausalLM,base(tie_word_embeddings=False),torch.float32,True),
 "llama_linear":(LlamaConfig,LlamaForCausalLM,base(tie_word_embeddings=True,rope_parameters={"rope_type":"linear","factor":4.0,"rope_theta":10000.0}),torch.bfloat16,False),
 "llama_llama3":(LlamaConfig,LlamaForCausalLM,base(tie_word_embeddings=False,rope_parameters={"rope_type":"llama3","rope_theta":500000.0,"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}),torch.float16,False),
 "qwen3_yarn":(Qwen3Config,Qwen3ForCausalLM,base(tie_word_embeddings=True,rms_norm_eps=1e-6,max_position_embeddings=512,rope_parameters={"rope_type":"yarn","rope_theta":1000000.0,"factor":4.0,"original_max_position_embeddings":64}),torch.float32,False),
 "qwen3_theta_sharded":(Qwen3Config,Qwen3ForCausalLM,base(tie_word_embeddings=False,rms_norm_eps=1e-6,rope_parameters={"rope_type":"default","rope_theta":1000000.0}),torch.bfloat16,True),
 "llama_bias_mha":(LlamaConfig,LlamaForCausalLM,base(num_key_value_heads=4,attention_bias=True,mlp_bias=True,tie_word_embeddings=False),torch.float32,False),
}
meta={"torch":torch.__version__,"transformers":transformers.__version__,"cases":{}}
for i,(name,(C,M,cfg,dt,shard)) in enumerate(cases.items()):
    torch.manual_seed(100+i)
    c=C(**cfg); c._attn_implementation="eager"
    m=M(c).eval()
    with torch.no_grad():
        for n,p in m.named_parameters():
            if "norm" in n: p.copy_(1+0.2*torch.randn_like(p))
            elif n.endswith("bias"): p.copy_(0.1*torch.randn_like(p))
    m=m.to(dt)
    d=f"{out}/{name}"; m.save_pretrained(d, max_shard_size="60KB" if shard else "50MB")
    # Loaded again, so that buffers (inv_freq) are f32 and not rounded with the weights.
    mf=M.from_pretrained(d,dtype=torch.float32,attn_implementation="eager").eval()
    ids=torch.randint(0,V,(1,160),generator=torch.Generator().manual_seed(7+i))
    with torch.no_grad(): o=mf(ids,use_cache=False,output_hidden_states=True)
    inv=mf.model.rotary_emb
    save_file({"input_ids":ids[0].to(torch.int32),"logits":o.logits[0].contiguous(),"last_hidden":o.hidden_states[-1][0].contiguous(),"inv_freq":inv.inv_freq.float().clone()},f"{d}/golden.safetensors",metadata={"attention_scaling":repr(float(inv.attention_scaling))})
    meta["cases"][name]={"dtype":str(dt),"files":sorted(os.listdir(d)),"attention_scaling":float(inv.attention_scaling)}
    print(name,os.listdir(d),float(inv.attention_scaling), o.logits.abs().max())
# calibration hooks on ledger
m=AutoModelForCausalLM.from_pretrained("ledger",dtype=torch.float32,attn_implementation="eager").eval()
tasks={t["sample_id"]:t for t in map(json.loads,open("tasks.jsonl"))}
for tag,sids in {"ledger_05":["ledger_05"],"ledger_05_09":["ledger_05","ledger_09"]}.items():
  for scope in ["all","decode"]:
    acc={}
    def hook(l):
        def f(mod,inp,outp):
            q=outp[0]  # [T,heads,D]
            n=acc["n0"]
            q=q[n:].double(); F=q.shape[-1]//2
            x,y=q[...,:F],q[...,F:]
            a=acc.setdefault(l,[0,0,0,0])
            a[0]=a[0]+x.sum(0);a[1]=a[1]+y.sum(0);a[2]=a[2]+(x*x+y*y).sqrt().sum(0);a[3]+=q.shape[0]
        return f
    hs=[m.model.layers[l].self_attn.q_norm.register_forward_hook(hook(l)) for l in range(4)]
    for sid in sids:
        t=tasks[sid]; ids=t["prompt_ids"]+t["gold_completion_ids"][:-1]
        acc["n0"]=t["prompt_len"] if scope=="decode" else 0
        with torch.no_grad(): m(torch.tensor([ids]),use_cache=False)
    for h in hs:h.remove()
    S=lambda k: torch.stack([acc[l][k]/acc[l][3] for l in range(4)]).float().contiguous()
    save_file({"q_mean_real":S(0),"q_mean_imag":S(1),"q_abs_mean":S(2)},f"{out}/calib_{tag}_{scope}.safetensors",metadata={"tokens":str(acc[0][3]),"samples":",".join(sids)})
    print(tag,scope,acc[0][3],S(2).shape)
json.dump(meta,open(f"{out}/meta.json","w"),indent=1)
