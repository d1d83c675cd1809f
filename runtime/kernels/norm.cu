// Row-wise steps: RMSNorm (prefill and decode), residual sum and SwiGLU (prefill). Rounding points are those of transformers on PyTorch.
//
// rms_norm   out[row, i] = r(w[i] * r(x[row, i] / sqrt(mean(x[row]^2) + eps))), r rounding to `elem`, the rest f32. Statistics in
//            f32: each thread sums its vectors of 16 bytes (stride 256; single elements where the width is
//            no multiple or too large for registers), then a butterfly in each warp, then one over the warps: an order that
//            depends on `width` alone. Grid: (rows), 256 threads.
// add_rows   x[i] = r(x[i] + y[i]). Grid-stride, 256 threads.
// swiglu     out[row, i] = r(r(g / (1 + exp(-g))) * u), g = both[row, i], u = both[row, width + i]. Grid: (rows, y), 256 threads.

// Vectors of a thread that are held in registers.
#define MOST_VECTORS 4

KERNEL rms_norm(const elem *__restrict__ x, const float *__restrict__ weight, elem *__restrict__ out, u32 width, float eps) {
    SHARED float slots[33];
    grid_release();
    grid_wait();
    const elem *from = x + static_cast<u64>(blockIdx.x) * width;
    elem *to = out + static_cast<u64>(blockIdx.x) * width;
    const u32 vectors = width / VECTOR_E;
    const bool held = width % VECTOR_E == 0 && vectors <= MOST_VECTORS * blockDim.x && (reinterpret_cast<u64>(from) & 15) == 0;
    float values[MOST_VECTORS][VECTOR_E];
    float sum = 0.0f;
    if (held) {
#pragma unroll
        for (int v = 0; v < MOST_VECTORS; v++) {
            const u32 at = threadIdx.x + v * blockDim.x;
            if (at >= vectors) break;
            unpack_e(values[v], reinterpret_cast<const vec16 *>(from)[at]);
        }
#pragma unroll
        for (int v = 0; v < MOST_VECTORS; v++) {
            if (threadIdx.x + v * blockDim.x >= vectors) break;
#pragma unroll
            for (int i = 0; i < VECTOR_E; i++) sum += values[v][i] * values[v][i];
        }
    } else {
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            const float value = widen_e(from[i]);
            sum += value * value;
        }
    }
    const float mean = block_sum(sum, slots) / static_cast<float>(width);
    const float scale = 1.0f / sqrtf(mean + eps);
    if (held) {
#pragma unroll
        for (int v = 0; v < MOST_VECTORS; v++) {
            const u32 at = threadIdx.x + v * blockDim.x;
            if (at >= vectors) break;
#pragma unroll
            for (int i = 0; i < VECTOR_E; i++) {
                const u32 e = at * VECTOR_E + i;
                to[e] = narrow_e(weight[e] * rounded_e(values[v][i] * scale));
            }
        }
    } else {
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = narrow_e(weight[i] * rounded_e(widen_e(from[i]) * scale));
    }
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
