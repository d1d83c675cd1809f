# Random blocks of each quantised format and the values that the gguf package makes of them.
# Usage: python make_quants.py OUT.safetensors, with gguf 0.19.0 and numpy.
import sys
import numpy as np, gguf
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from safetensors.numpy import save_file
rng=np.random.default_rng(20261130)
out={}
for t in [T.F16,T.BF16,T.Q8_0,T.Q4_0,T.Q4_1,T.Q4_K,T.Q5_K,T.Q6_K]:
    block,size=gguf.GGML_QUANT_SIZES[t]
    rows,cols=4,512
    n=rows*cols//block
    raw=rng.integers(0,256,size=(n,size),dtype=np.uint8)
    # scales: finite halves at their places; everything else any byte
    def halves(k): 
        v=(rng.standard_normal((n,k))*0.05).astype(np.float16)
        v[0,0]=np.float16(6e-8) # subnormal
        return v.view(np.uint8).reshape(n,2*k)
    if t in (T.Q8_0,T.Q4_0): raw[:,0:2]=halves(1)
    if t in (T.Q4_1,T.Q4_K,T.Q5_K): raw[:,0:4]=halves(2)
    if t==T.Q6_K: raw[:,208:210]=halves(1)
    if t==T.F16: raw=(rng.standard_normal((rows*cols,1))).astype(np.float16).view(np.uint8)
    if t==T.BF16: raw=(rng.standard_normal((rows*cols,1))).astype(np.float32).view(np.uint8)[:,2:4].copy()
    raw=np.ascontiguousarray(raw).reshape(rows,-1)
    val=dequantize(raw,t).astype(np.float32).reshape(rows,cols)
    assert np.isfinite(val).all(), t
    out[t.name+".raw"]=raw; out[t.name+".values"]=np.ascontiguousarray(val)
    print(t.name,raw.shape,val.shape,np.abs(val).max())
save_file(out,sys.argv[1],metadata={"made by":"gguf 0.19.0 (Python), gguf.quants.dequantize, seed 20261130"})
