// Row-wise steps: RMSNorm (prefill and decode), residual sum and SwiGLU (prefill). Rounding points are those of transformers on PyTorch.
//
// rms_norm   out[row, i] = r(w[i] * r(x[row, i] / sqrt(mean(x[row]^2) + eps))), r rounding to `elem`, the rest f32. Statistics in
//            f32: each thread sums its elements (stride 256), then a butterfly in each warp, then one over the warps: an order that
//            depends on `width` alone. Grid: (rows), 256 threads.
// add_rows   x[i] = r(x[i] + y[i]). Grid-stride, 256 threads.
// swiglu     out[row, i] = r(r(g / (1 + exp(-g))) * u), g = both[row, i], u = both[row, width + i]. Grid: (rows, y), 256 threads.

KERNEL rms_norm(const elem *__restrict__ x, const float *__restrict__ weight, elem *__restrict__ out, u32 width, float eps) {
    SHARED float slots[33];
    grid_release();
    grid_wait();
    const elem *from = x + static_cast<u64>(blockIdx.x) * width;
    elem *to = out + static_cast<u64>(blockIdx.x) * width;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = widen_e(from[i]);
        sum += value * value;
    }
    const float mean = block_sum(sum, slots) / static_cast<float>(width);
    const float scale = 1.0f / sqrtf(mean + eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = narrow_e(weight[i] * rounded_e(widen_e(from[i]) * scale));
}

KERNEL add_rows(elem *__restrict__ x, const elem *__restrict__ y, u64 count) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        x[i] = narrow_e(widen_e(x[i]) + widen_e(y[i]));
}

KERNEL swiglu(const elem *__restrict__ both, elem *__restrict__ out, u32 width) {
    const elem *gate = both + static_cast<u64>(blockIdx.x) * 2 * width;
    const elem *up = gate + width;
    elem *to = out + static_cast<u64>(blockIdx.x) * width;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x) {
        const float g = widen_e(gate[i]);
        to[i] = narrow_e(rounded_e(g / (1.0f + expf(-g))) * widen_e(up[i]));
    }
}
