// Attention of one new row of each sequence of a batch over its live rows, the row itself included. Compiled for one HEAD_DIM and one
// GROUP (query heads of a KV head).
//
//   q[j] = rope(norm(q_proj[j])), k = rope(norm(k_proj)); k and v = v_proj are appended to the cache at row `rows`
//   out[j] = sum_r p[r] v[r] / sum_r p[r],  p[r] = exp((q[j] . k[r]) / sqrt(D) - max)
//
// attend_decode  qkv [batch, (heads + 2 kv_heads) * D] of `elem` (q, then k, then v), cosines and sines [batch, D / 2] f32 already rounded
//                to `elem`, norm weights [D] f32 or null; cache rows of `celem`; out [batch, heads * D] of `elem`.
//
// Rounding: norm and RoPE as in norm.cu and rope.cu (each product and sum to `elem`); k and v once more to `celem`; scores, softmax
// and sums f32 throughout (base 2, the scale and log2 e in one factor); the output once. Attention on PyTorch's eager path rounds scores
// and weights to `elem` on the way; this does not.
//
// Grid: (splits, kv_heads, batch), 128 threads. A block takes `split_rows` rows of one KV head for all its query heads (0: the live rows
// divided evenly by the grid); blocks beyond the last row return. 16 bytes a lane and load, D / 8 (f32: D / 4) lanes a row, so that a
// warp holds several rows at once, each with its own running maximum; 4 steps (2 for groups beyond 4) are loaded before the first is used. Running sums are
// merged over the rows of a warp, the 4 warps, and the splits, in this fixed order; the block that comes last for a KV head merges the
// splits in their order and leaves the counter at 0. With `split_rows` given, bits depend on nothing but the sequence.
//
// tile != 0 (planted): query head j * kv_heads + h, not h * GROUP + j, belongs to KV head h.
// Optional outputs (null: none), all of `elem`: q_norm, q_rope [batch, heads * D], k_norm, k_rope [batch, kv_heads * D].

#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef GROUP
#define GROUP 4
#endif
#define D HEAD_DIM
#define THREADS 128
#define WARPS 4
#define STEPS (GROUP > 4 ? 2 : 4)

// Elements of a row by lane: 16 bytes each where a row is 2^n such pieces, else one element at a time.
#define VECTOR (16 / static_cast<int>(sizeof(celem)))
#define IS_VECTOR (D % VECTOR == 0 && D / VECTOR <= 32 && (D / VECTOR & (D / VECTOR - 1)) == 0)
#define LANES (IS_VECTOR ? D / VECTOR : 32)
#define EACH (IS_VECTOR ? VECTOR : (D + 31) / 32)
#define ROWS_AT_ONCE (32 / LANES)

DEVICE int element(int lane, int e) { return IS_VECTOR ? lane * VECTOR + e : e * 32 + lane; }

DEVICE void load_row(float *to, const celem *row, int lane) {
#if CACHE == 0
    if (IS_VECTOR) {
        const vec16 v = *reinterpret_cast<const vec16 *>(row + lane * VECTOR);
        to[0] = bits_to_f32(v.x), to[1] = bits_to_f32(v.y), to[2] = bits_to_f32(v.z), to[3] = bits_to_f32(v.w);
        return;
    }
#endif
    for (int e = 0; e < EACH; e++) to[e] = element(lane, e) < D ? widen_c(row[element(lane, e)]) : 0.0f;
}

#if CACHE != 0
DEVICE void unpack(float *to, const vec16 &v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = widen_c(static_cast<celem>(words[i] & 0xffffu));
        to[2 * i + 1] = widen_c(static_cast<celem>(words[i] >> 16));
    }
}
#endif

// A head of one warp: norm where there is a weight, then RoPE; values come and go as elements lane, lane + 32, ... of the head.
#define SHARE ((D + 31) / 32)
DEVICE void norm_and_turn(const elem *from, const float *weight, float eps, const float *cosines, const float *sines, float *head, elem *normed, elem *turned) {
    const int lane = threadIdx.x % 32;
    float value[SHARE];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int at = i * 32 + lane;
        value[i] = at < D ? widen_e(from[at]) : 0.0f;
        sum += value[i] * value[i];
    }
    if (weight != nullptr) {
        const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(D) + eps);
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            const int at = i * 32 + lane;
            if (at < D) value[i] = rounded_e(weight[at] * rounded_e(value[i] * scale));
        }
    }
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int at = i * 32 + lane;
        if (at < D) {
            head[at] = value[i];
            if (normed != nullptr && weight != nullptr) normed[at] = narrow_e(value[i]);
        }
    }
    __syncwarp();
    float out[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int at = i * 32 + lane;
        if (at < D) {
            const int f = at < D / 2 ? at : at - D / 2;
            const float other = at < D / 2 ? -head[at + D / 2] : head[f];
            out[i] = rounded_e(rounded_e(__fmul_rn(value[i], cosines[f])) + rounded_e(__fmul_rn(other, sines[f])));
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int at = i * 32 + lane;
        if (at < D) {
            head[at] = out[i];
            if (turned != nullptr) turned[at] = narrow_e(out[i]);
        }
    }
}

// exp2 of a difference of maxima; nothing seen yet on both sides gives 1.
DEVICE float shrink(float from, float to) { return from == to ? 1.0f : exp2f(from - to); }

// Running softmax of the query heads of one KV head: maximum (base 2), sum, weighted values.
struct Running {
    float most[GROUP], sum[GROUP], value[GROUP][EACH];
};

DEVICE void merge_lanes(Running &r, int step) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        const float other = __shfl_xor_sync(FULL_WARP, r.most[j], step);
        const float most = fmaxf(r.most[j], other);
        const float mine = shrink(r.most[j], most), theirs = shrink(other, most);
        r.sum[j] = r.sum[j] * mine + __shfl_xor_sync(FULL_WARP, r.sum[j], step) * theirs;
#pragma unroll
        for (int e = 0; e < EACH; e++) r.value[j][e] = r.value[j][e] * mine + __shfl_xor_sync(FULL_WARP, r.value[j][e], step) * theirs;
        r.most[j] = most;
    }
}

// Rows begin..end of one KV head.
DEVICE void walk(Running &r, const celem *keys, const celem *values, const float (*q)[D], u32 begin, u32 end, float scale) {
    const int lane = threadIdx.x % 32 % LANES, slot = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
    float mine[GROUP][EACH];
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        r.most[j] = -INFINITY_F;
        r.sum[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            r.value[j][e] = 0.0f;
            mine[j][e] = element(lane, e) < D ? q[j][element(lane, e)] : 0.0f;
        }
    }
    constexpr u32 STRIDE = WARPS * ROWS_AT_ONCE;
    // Whole warps go round together: the shuffles below need every lane.
    for (u32 first = begin; first < end; first += STRIDE * STEPS) {
        float scores[STEPS][GROUP];
        const u32 row0 = first + warp * ROWS_AT_ONCE + slot;
#if CACHE != 0
        vec16 packed[STEPS];
        if (IS_VECTOR) {
            vec16 key[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const u64 row = min(row0 + s * STRIDE, end - 1);
                key[s] = *reinterpret_cast<const vec16 *>(keys + row * D + lane * VECTOR);
                packed[s] = *reinterpret_cast<const vec16 *>(values + row * D + lane * VECTOR);
            }
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                float k[8];
                unpack(k, key[s]);
#pragma unroll
                for (int j = 0; j < GROUP; j++) {
                    scores[s][j] = 0.0f;
#pragma unroll
                    for (int e = 0; e < EACH; e++) scores[s][j] = fmaf(mine[j][e], k[e], scores[s][j]);
                }
            }
        } else
#endif
        {
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const u64 row = min(row0 + s * STRIDE, end - 1);
                float k[EACH];
                load_row(k, keys + row * D, lane);
#pragma unroll
                for (int j = 0; j < GROUP; j++) {
                    scores[s][j] = 0.0f;
#pragma unroll
                    for (int e = 0; e < EACH; e++) scores[s][j] = fmaf(mine[j][e], k[e], scores[s][j]);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < GROUP; j++) {
#pragma unroll
                for (int step = LANES / 2; step > 0; step >>= 1) scores[s][j] += __shfl_xor_sync(FULL_WARP, scores[s][j], step);
                scores[s][j] = row0 + s * STRIDE < end ? scores[s][j] * scale : -INFINITY_F;
            }
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            float most = r.most[j];
#pragma unroll
            for (int s = 0; s < STEPS; s++) most = fmaxf(most, scores[s][j]);
            const float kept = shrink(r.most[j], most);
            r.most[j] = most;
            r.sum[j] *= kept;
#pragma unroll
            for (int e = 0; e < EACH; e++) r.value[j][e] *= kept;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                scores[s][j] = scores[s][j] == -INFINITY_F ? 0.0f : exp2f(scores[s][j] - most);
                r.sum[j] += scores[s][j];
            }
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            float v[EACH];
#if CACHE != 0
            if (IS_VECTOR)
                unpack(v, packed[s]);
            else
#endif
                load_row(v, values + static_cast<u64>(min(row0 + s * STRIDE, end - 1)) * D, lane);
#pragma unroll
            for (int j = 0; j < GROUP; j++)
#pragma unroll
                for (int e = 0; e < EACH; e++) r.value[j][e] = fmaf(scores[s][j], v[e], r.value[j][e]);
        }
    }
#pragma unroll
    for (int step = LANES; step < 32; step <<= 1) merge_lanes(r, step);
}

// What the warps of a block found, and what they make together: value[0] after `merge_warps`.
struct Found {
    float most[WARPS][GROUP], sum[WARPS][GROUP], value[WARPS][GROUP][D];
    float all_most[GROUP], all_sum[GROUP];
};

DEVICE void merge_warps(Found &found, const Running &r) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        if (lane == 0) found.most[warp][j] = r.most[j], found.sum[warp][j] = r.sum[j];
        if (lane < LANES)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (element(lane, e) < D) found.value[warp][j][element(lane, e)] = r.value[j][e];
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        const int j = threadIdx.x;
        float most = found.most[0][j], sum = 0.0f;
        for (int w = 1; w < WARPS; w++) most = fmaxf(most, found.most[w][j]);
        for (int w = 0; w < WARPS; w++) sum += found.sum[w][j] * shrink(found.most[w][j], most);
        found.all_most[j] = most, found.all_sum[j] = sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * D; at += THREADS) {
        const int j = at / D, d = at % D;
        float value = 0.0f;
        for (int w = 0; w < WARPS; w++) value += found.value[w][j][d] * shrink(found.most[w][j], found.all_most[j]);
        found.value[0][j][d] = value;
    }
    __syncthreads();
}

DEVICE u32 query_head(u32 h, u32 j, u32 kv_heads, u32 tile) { return tile != 0 ? j * kv_heads + h : h * GROUP + j; }

KERNEL LAUNCH_BOUNDS(128, GROUP > 4 ? 2 : 3) attend_decode(const Slot *__restrict__ slots, const elem *__restrict__ qkv, const float *__restrict__ cosines, const float *__restrict__ sines,
                     const float *__restrict__ q_weight, const float *__restrict__ k_weight, elem *__restrict__ out, float *__restrict__ parts,
                     u32 *__restrict__ counters, elem *__restrict__ q_norm, elem *__restrict__ q_rope, elem *__restrict__ k_norm,
                     elem *__restrict__ k_rope, u32 layer, float eps, float scale, u32 split_rows, u32 tile) {
    SHARED float q[GROUP][D];
    SHARED float new_key[D];
    SHARED Found found;
    SHARED u32 last;
    grid_release();
    grid_wait();
    const u32 h = blockIdx.y, b = blockIdx.z, kv_heads = gridDim.y, heads = kv_heads * GROUP, warp = threadIdx.x / 32;
    const Slot slot = slots[b];
    const u32 total = slot.rows + 1;
    const u32 each = split_rows != 0 ? split_rows : (total + gridDim.x - 1) / gridDim.x;
    const u32 splits = (total + each - 1) / each, split = blockIdx.x;
    if (slot.active == 0 || split >= splits) return;
    const u64 offset = (static_cast<u64>(layer) * kv_heads + h) * slot.capacity * D;
    celem *keys = reinterpret_cast<celem *>(slot.k_base) + offset, *values = reinterpret_cast<celem *>(slot.v_base) + offset;
    const elem *row = qkv + static_cast<u64>(b) * (heads + 2 * kv_heads) * D;
    const float *c = cosines + b * (D / 2), *s = sines + b * (D / 2);
    const bool first = split == 0, newest = split + 1 == splits;
    for (u32 j = warp; j < GROUP; j += WARPS) {
        const u64 at = static_cast<u64>(query_head(h, j, kv_heads, tile)) * D, to = static_cast<u64>(b) * heads * D + at;
        norm_and_turn(row + at, q_weight, eps, c, s, q[j], q_norm != nullptr && first ? q_norm + to : nullptr, q_rope != nullptr && first ? q_rope + to : nullptr);
    }
    if (newest) {
        const u64 at = static_cast<u64>(heads + h) * D, to = (static_cast<u64>(b) * kv_heads + h) * D;
        if (warp == WARPS - 1) {
            norm_and_turn(row + at, k_weight, eps, c, s, new_key, k_norm != nullptr ? k_norm + to : nullptr, k_rope != nullptr ? k_rope + to : nullptr);
            __syncwarp();
            for (int i = threadIdx.x % 32; i < D; i += 32) keys[static_cast<u64>(slot.rows) * D + i] = narrow_c(new_key[i]);
        }
        if (warp == 0)
            for (int i = threadIdx.x % 32; i < D; i += 32)
                values[static_cast<u64>(slot.rows) * D + i] = narrow_c(widen_e(row[static_cast<u64>(heads + kv_heads + h) * D + i]));
    }
    __syncthreads();
    Running running;
    walk(running, keys, values, q, split * each, min(total, (split + 1) * each), scale);
    merge_warps(found, running);
    elem *to = out + static_cast<u64>(b) * heads * D;
    if (splits == 1) {
        for (int at = threadIdx.x; at < GROUP * D; at += THREADS)
            to[static_cast<u64>(query_head(h, at / D, kv_heads, tile)) * D + at % D] = narrow_e(found.value[0][at / D][at % D] / found.all_sum[at / D]);
        return;
    }
    // Parts of a split: [GROUP][D] values, then [GROUP] maxima and [GROUP] sums.
    constexpr u32 PART = GROUP * (D + 2);
    float *mine = parts + (static_cast<u64>(b * kv_heads + h) * gridDim.x) * PART;
    for (int at = threadIdx.x; at < GROUP * D; at += THREADS) mine[split * PART + at] = found.value[0][at / D][at % D];
    if (threadIdx.x < GROUP) {
        mine[split * PART + GROUP * D + threadIdx.x] = found.all_most[threadIdx.x];
        mine[split * PART + GROUP * D + GROUP + threadIdx.x] = found.all_sum[threadIdx.x];
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&counters[b * kv_heads + h], 1u) + 1 == splits;
    __syncthreads();
    if (last == 0) return;
    __threadfence();
    if (threadIdx.x == 0) counters[b * kv_heads + h] = 0;
    for (int at = threadIdx.x; at < GROUP * D; at += THREADS) {
        const int j = at / D;
        float most = -INFINITY_F, sum = 0.0f, value = 0.0f;
        for (u32 n = 0; n < splits; n++) most = fmaxf(most, load_l2(mine + n * PART + GROUP * D + j));
        for (u32 n = 0; n < splits; n++) {
            const float kept = shrink(load_l2(mine + n * PART + GROUP * D + j), most);
            value += load_l2(mine + n * PART + at) * kept;
            sum += load_l2(mine + n * PART + GROUP * D + GROUP + j) * kept;
        }
        to[static_cast<u64>(query_head(h, j, kv_heads, tile)) * D + at % D] = narrow_e(value / sum);
    }
}
