// Rows between the fused projection and attention of a prefill chunk: bias, QK norm, rotary embedding, append to the cache.
//
// bias_add     x[row, i] = r(x[row, i] + bias[i]), r rounding to `elem`, in place. x is a product that was rounded once already: with
//              16-bit elements a projection with bias is rounded twice here, once in decode and on a CPU; with f32 all agree.
//              Grid: (rows, y), 256 threads.
// rope_append  For each new row, of qkv [n, (heads + 2 kv_heads) * head_dim] (q, then k, then v) of `elem`:
//                x' = r(w * r(x / sqrt(mean(x^2) + eps)))            q and k heads, where there are norm weights w [head_dim] f32
//                low = r(r(x' cos) + r(-y' sin)), high = r(r(y' cos) + r(x' sin))     x' = low half, y' = high half of the head
//              cosines and sines [n, head_dim / 2] f32, already rounded to `elem`. q goes to [n, heads, head_dim] of `elem`; k, and v as
//              it came, to rows rows_before.. of k_cache and v_cache [kv_heads, capacity, head_dim], rounded once more to `celem`.
//              Mean in f32: each lane sums its pairs (low, high of frequency lane, lane + 32, ...), then a butterfly: an order that
//              depends on head_dim alone. head_dim even, at most 256.
//              Optional outputs of `elem` (null: none): q_norm [n, heads, head_dim], k_norm [n, kv_heads, head_dim] after the norm
//              (without norm weights: as q and k came), k_rope [n, kv_heads, head_dim] after the rotation, before `celem`.
//              Grid: one warp a (row, head), 8 a block; heads count q, then k, then v.

#define WARPS 8
#define MOST_PAIRS 4 // of a lane: 256 / 2 / 32

KERNEL bias_add(elem *__restrict__ x, const float *__restrict__ bias, u32 width) {
    elem *row = x + static_cast<u64>(blockIdx.x) * width;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x)
        row[i] = narrow_e(widen_e(row[i]) + bias[i]);
}

// The two halves of one head; a lane holds the pairs of frequencies lane, lane + 32, ...
struct Head {
    float low[MOST_PAIRS], high[MOST_PAIRS];
};

DEVICE Head read_head(const elem *from, u32 half) {
    Head head;
#pragma unroll
    for (int i = 0; i < MOST_PAIRS; i++) {
        const u32 f = threadIdx.x % 32 + i * 32;
        head.low[i] = f < half ? widen_e(from[f]) : 0.0f;
        head.high[i] = f < half ? widen_e(from[half + f]) : 0.0f;
    }
    return head;
}

DEVICE void write_head(elem *to, const Head &head, u32 half) {
#pragma unroll
    for (int i = 0; i < MOST_PAIRS; i++) {
        const u32 f = threadIdx.x % 32 + i * 32;
        if (f < half) {
            to[f] = narrow_e(head.low[i]);
            to[half + f] = narrow_e(head.high[i]);
        }
    }
}

DEVICE void append_head(celem *to, const Head &head, u32 half) {
#pragma unroll
    for (int i = 0; i < MOST_PAIRS; i++) {
        const u32 f = threadIdx.x % 32 + i * 32;
        if (f < half) {
            to[f] = narrow_c(head.low[i]);
            to[half + f] = narrow_c(head.high[i]);
        }
    }
}

DEVICE void norm_head(Head &head, const float *weight, u32 half, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_PAIRS; i++) sum += head.low[i] * head.low[i] + head.high[i] * head.high[i];
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(2 * half) + eps);
#pragma unroll
    for (int i = 0; i < MOST_PAIRS; i++) {
        const u32 f = threadIdx.x % 32 + i * 32;
        if (f < half) {
            head.low[i] = rounded_e(weight[f] * rounded_e(head.low[i] * scale));
            head.high[i] = rounded_e(weight[half + f] * rounded_e(head.high[i] * scale));
        }
    }
}

DEVICE void turn_head(Head &head, const float *cosines, const float *sines, u32 half) {
#pragma unroll
    for (int i = 0; i < MOST_PAIRS; i++) {
        const u32 f = threadIdx.x % 32 + i * 32;
        if (f < half) {
            const float x = head.low[i], y = head.high[i], c = cosines[f], s = sines[f];
            head.low[i] = rounded_e(rounded_e(__fmul_rn(x, c)) + rounded_e(__fmul_rn(-y, s)));
            head.high[i] = rounded_e(rounded_e(__fmul_rn(y, c)) + rounded_e(__fmul_rn(x, s)));
        }
    }
}

KERNEL rope_append(const elem *__restrict__ qkv, const float *__restrict__ q_weight, const float *__restrict__ k_weight,
                   const float *__restrict__ cosines, const float *__restrict__ sines, elem *__restrict__ q,
                   celem *__restrict__ k_cache, celem *__restrict__ v_cache, elem *__restrict__ q_norm, elem *__restrict__ k_norm,
                   elem *__restrict__ k_rope, u32 n, u32 rows_before, u32 heads, u32 kv_heads, u32 head_dim, u32 capacity, float eps) {
    const u32 all = heads + 2 * kv_heads, half = head_dim / 2;
    const u64 unit = static_cast<u64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (unit >= static_cast<u64>(n) * all) return;
    const u64 row = unit / all;
    const u32 at = static_cast<u32>(unit % all);
    Head head = read_head(qkv + unit * head_dim, half);
    if (at >= heads + kv_heads) {
        const u64 to = static_cast<u64>(at - heads - kv_heads) * capacity + rows_before + row;
        append_head(v_cache + to * head_dim, head, half);
        return;
    }
    const bool query = at < heads;
    const u64 to = query ? row * heads + at : row * kv_heads + (at - heads);
    const float *weight = query ? q_weight : k_weight;
    elem *normed = query ? q_norm : k_norm;
    if (weight != nullptr) norm_head(head, weight, half, eps);
    if (normed != nullptr) write_head(normed + to * head_dim, head, half);
    turn_head(head, cosines + row * half, sines + row * half, half);
    if (query) {
        write_head(q + to * head_dim, head, half);
        return;
    }
    append_head(k_cache + (static_cast<u64>(at - heads) * capacity + rows_before + row) * head_dim, head, half);
    if (k_rope != nullptr) write_head(k_rope + to * head_dim, head, half);
}
