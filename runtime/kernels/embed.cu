// Start of a forward pass, and weights out of nothing.
//
// embed_rows     out[row, :] = table[ids[row], :]. Exact. Grid: (rows), 256 threads. An id outside the table is undefined.
// rope_table     cos[row, f], sin[row, f] of the angle index[row] * inv_freq[f], one f32 product; cosine and sine of that f32 in f64,
//                rounded to f32, times `scaling` in f32, rounded to `elem`. Grid: (rows), 64 threads.
// embed_slots    the two above for a decode batch: row b is slots[b].token, its angle slots[b].rope_index. Grid: (batch), 256 threads.
// random_fill    out[i] = scale * u(i), u uniform in (-1, 1) from splitmix64(seed ^ i); `scale` a power of two or any f32; rounded to
//                `elem`. Grid-stride, 256 threads.
// constant_fill  out[i] = value, rounded to `elem`.

KERNEL embed_rows(const elem *__restrict__ table, const u32 *__restrict__ ids, elem *__restrict__ out, u32 hidden) {
    const elem *from = table + static_cast<u64>(ids[blockIdx.x]) * hidden;
    elem *to = out + static_cast<u64>(blockIdx.x) * hidden;
    for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = from[i];
}

KERNEL rope_table(const float *__restrict__ inv_freq, const u32 *__restrict__ index, float *__restrict__ cos_out,
                  float *__restrict__ sin_out, u32 freqs, float scaling) {
    const u32 row = blockIdx.x;
    for (u32 f = threadIdx.x; f < freqs; f += blockDim.x) {
        const float angle = __fmul_rn(static_cast<float>(index[row]), inv_freq[f]);
        const float c = static_cast<float>(cos(static_cast<double>(angle)));
        const float s = static_cast<float>(sin(static_cast<double>(angle)));
        cos_out[row * freqs + f] = rounded_e(__fmul_rn(c, scaling));
        sin_out[row * freqs + f] = rounded_e(__fmul_rn(s, scaling));
    }
}

KERNEL embed_slots(const Slot *__restrict__ slots, const elem *__restrict__ table, const float *__restrict__ inv_freq, elem *__restrict__ out,
                   float *__restrict__ cos_out, float *__restrict__ sin_out, u32 hidden, u32 freqs, float scaling) {
    grid_release();
    grid_wait();
    const u32 b = blockIdx.x;
    const Slot slot = slots[b];
    if (slot.active == 0) {
        // Defined values, so that the matrix instructions of the live columns have no NaN beside them to explain.
        for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) out[static_cast<u64>(b) * hidden + i] = narrow_e(0.0f);
        return;
    }
    const elem *from = table + static_cast<u64>(slot.token) * hidden;
    for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) out[static_cast<u64>(b) * hidden + i] = from[i];
    for (u32 f = threadIdx.x; f < freqs; f += blockDim.x) {
        const float angle = __fmul_rn(static_cast<float>(slot.rope_index), inv_freq[f]);
        cos_out[b * freqs + f] = rounded_e(__fmul_rn(static_cast<float>(cos(static_cast<double>(angle))), scaling));
        sin_out[b * freqs + f] = rounded_e(__fmul_rn(static_cast<float>(sin(static_cast<double>(angle))), scaling));
    }
}

KERNEL random_fill(elem *__restrict__ out, u64 count, u64 seed, float scale) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        // 23 bits, centred: an odd multiple of 2^-23, exact in every step and never 1.
        const float u = (static_cast<float>(splitmix64(seed ^ i) >> 41) + 0.5f) * 0x1p-22f - 1.0f;
        out[i] = narrow_e(u * scale);
    }
}

KERNEL constant_fill(elem *__restrict__ out, u64 count, float value) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) out[i] = narrow_e(value);
}
