// Attention of one new row of each sequence of a batch over its live rows, the row itself included. Compiled for one HEAD_DIM and one
// GROUP (query heads of a KV head).
//
//   q[j] = rope(norm(q_proj[j])), k = rope(norm(k_proj)); k and v = v_proj are appended to the cache
//   at row `rows`, with the absolute position in the row's place among the positions
//   out[j] = sum_r p[r] v[r] / sum_r p[r],  p[r] = exp((q[j] . k[r]) / sqrt(D) - max)
//
// attend_decode  qkv [batch, (heads + 2 kv_heads) * D] of `elem` (q, then k, then v), cosines and sines [batch, D / 2] f32 already rounded
//                to `elem`, norm weights [D] f32 or null; cache rows of `celem`; out [batch, heads * D] of `elem`.
//
// Rounding: norm and RoPE as in norm.cu and rope.cu (each product and sum to `elem`); k and v once more to `celem`; scores, softmax
// and sums f32 throughout (base 2, the scale and log2 e in one factor); the output once. Attention on PyTorch's eager path rounds scores
// and weights to `elem` on the way; this does not.
//
// Grid: (splits, kv_heads, batch), 128 threads. A block takes `split_rows` rows of one KV head for all its query heads (0: the rows
// divided evenly by the grid); blocks beyond the last row return. 16 bytes a lane and load, D / 8 (f32: D / 4) lanes a row, so that a
// warp holds several rows at once, each with its own running maximum; 4 steps (2 for groups beyond 4) are loaded before the first is
// used. The new row comes last in the block of the last split, from shared memory. Running sums are merged over the rows of a warp, the
// 4 warps, and the splits, in this fixed order; the block that comes last for a KV head merges the splits in their order and leaves the
// counter at 0. With `split_rows` given, bits depend on nothing but the sequence.
//
// The first rows are loaded before the launch before this one has ended: the slots and the rows of earlier steps are older than the pass
// (its first kernel, embed_slots, does not overlap what is before it).
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

// K and V of the next STEPS rows of a lane's row slot.
struct Ahead {
#if CACHE != 0
    vec16 key[STEPS], value[STEPS];
#endif
};

#define STRIDE (WARPS * ROWS_AT_ONCE)

DEVICE u32 row_of(u32 first) { return first + threadIdx.x / 32 * ROWS_AT_ONCE + threadIdx.x % 32 / LANES; }

// Rows beyond the last read the last one; their scores do not count. Nothing where there is no row.
DEVICE void load_ahead(Ahead &ahead, const celem *keys, const celem *values, u32 first, u32 end) {
#if CACHE != 0
    if (!IS_VECTOR || first >= end) return;
    const int lane = threadIdx.x % 32 % LANES;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const u64 at = static_cast<u64>(min(row_of(first) + s * STRIDE, end - 1)) * D + lane * VECTOR;
        ahead.key[s] = *reinterpret_cast<const vec16 *>(keys + at);
        ahead.value[s] = *reinterpret_cast<const vec16 *>(values + at);
    }
#endif
}

DEVICE void key_row(float *to, const Ahead &ahead, const celem *keys, int s, u64 row) {
#if CACHE != 0
    if (IS_VECTOR) {
        unpack(to, ahead.key[s]);
        return;
    }
#endif
    load_row(to, keys + row * D, threadIdx.x % 32 % LANES);
}

DEVICE void value_row(float *to, const Ahead &ahead, const celem *values, int s, u64 row) {
#if CACHE != 0
    if (IS_VECTOR) {
        unpack(to, ahead.value[s]);
        return;
    }
#endif
    load_row(to, values + row * D, threadIdx.x % 32 % LANES);
}

DEVICE void begin_running(Running &r) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        r.most[j] = -INFINITY_F;
        r.sum[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; e++) r.value[j][e] = 0.0f;
    }
}

// Takes the scores of N rows in; a score of -inf is a row that is not there.
template <int N> DEVICE void rescale(Running &r, float (*scores)[GROUP]) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float most = r.most[j];
#pragma unroll
        for (int s = 0; s < N; s++) most = fmaxf(most, scores[s][j]);
        const float kept = shrink(r.most[j], most);
        r.most[j] = most;
        r.sum[j] *= kept;
#pragma unroll
        for (int e = 0; e < EACH; e++) r.value[j][e] *= kept;
#pragma unroll
        for (int s = 0; s < N; s++) {
            scores[s][j] = scores[s][j] == -INFINITY_F ? 0.0f : exp2f(scores[s][j] - most);
            r.sum[j] += scores[s][j];
        }
    }
}

DEVICE float over_lanes(float value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}

// Rows begin..end of one KV head; `ahead` holds the first ones.
DEVICE void walk(Running &r, Ahead &ahead, const celem *keys, const celem *values, const float (*mine)[EACH], u32 begin, u32 end, float scale) {
    // Whole warps go round together: the shuffles below need every lane.
    for (u32 first = begin; first < end; first += STRIDE * STEPS) {
        float scores[STEPS][GROUP];
        const u32 row0 = row_of(first);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            float k[EACH];
            key_row(k, ahead, keys, s, min(row0 + s * STRIDE, end - 1));
#pragma unroll
            for (int j = 0; j < GROUP; j++) {
                scores[s][j] = 0.0f;
#pragma unroll
                for (int e = 0; e < EACH; e++) scores[s][j] = fmaf(mine[j][e], k[e], scores[s][j]);
            }
        }
        const Ahead now = ahead;
        load_ahead(ahead, keys, values, first + STRIDE * STEPS, end);
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int j = 0; j < GROUP; j++) {
                const float score = over_lanes(scores[s][j]);
                scores[s][j] = row0 + s * STRIDE < end ? score * scale : -INFINITY_F;
            }
        rescale<STEPS>(r, scores);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            float v[EACH];
            value_row(v, now, values, s, min(row0 + s * STRIDE, end - 1));
#pragma unroll
            for (int j = 0; j < GROUP; j++)
#pragma unroll
                for (int e = 0; e < EACH; e++) r.value[j][e] = fmaf(scores[s][j], v[e], r.value[j][e]);
        }
    }
}

// The new row, for the first row slot of the calling warp.
DEVICE void take_new(Running &r, const float *key, const float *value, const float (*mine)[EACH], float scale) {
    const int lane = threadIdx.x % 32 % LANES;
    const bool here = threadIdx.x % 32 < LANES;
    float scores[1][GROUP];
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        float score = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (element(lane, e) < D) score = fmaf(mine[j][e], key[element(lane, e)], score);
        score = over_lanes(score);
        scores[0][j] = here ? score * scale : -INFINITY_F;
    }
    rescale<1>(r, scores);
#pragma unroll
    for (int j = 0; j < GROUP; j++)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (element(lane, e) < D) r.value[j][e] = fmaf(scores[0][j], value[element(lane, e)], r.value[j][e]);
}

// Sums over the row slots of a warp; every lane gets them.
DEVICE void merge_slots(Running &r) {
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

// Parts that are loaded before the first is used, and splits whose weights are held at once.
#define MERGED 8
#define HELD (WARPS * D)

// Maximum and sum over all splits of each query head, a warp a head: lane n takes splits n, n + 32, ..., then a butterfly.
DEVICE void merge_splits(Found &found, const float *parts, u32 splits) {
    constexpr u32 PART = GROUP * (D + 2);
    const u32 lane = threadIdx.x % 32;
    for (u32 j = threadIdx.x / 32; j < GROUP; j += WARPS) {
        float most = -INFINITY_F, sum = 0.0f;
        for (u32 n = lane; n < splits; n += 32) most = fmaxf(most, load_l2(parts + static_cast<u64>(n) * PART + GROUP * D + j));
        most = warp_max(most);
        for (u32 n = lane; n < splits; n += 32) {
            const float *part = parts + static_cast<u64>(n) * PART + GROUP * D;
            sum += load_l2(part + GROUP + j) * shrink(load_l2(part + j), most);
        }
        sum = warp_sum(sum);
        if (lane == 0) found.all_most[j] = most, found.all_sum[j] = sum;
    }
    __syncthreads();
}

// Weights of splits first..first + HELD into the memory of `found.value`, [split][query head].
DEVICE void weigh_splits(Found &found, const float *parts, u32 first, u32 splits) {
    constexpr u32 PART = GROUP * (D + 2);
    float *weights = &found.value[0][0][0];
    const u32 count = min(splits - first, static_cast<u32>(HELD));
    __syncthreads();
    for (u32 i = threadIdx.x; i < count * GROUP; i += THREADS)
        weights[i] = shrink(load_l2(parts + static_cast<u64>(first + i / GROUP) * PART + GROUP * D + i % GROUP), found.all_most[i % GROUP]);
    __syncthreads();
}

DEVICE u32 query_head(u32 h, u32 j, u32 kv_heads, u32 tile) { return tile != 0 ? j * kv_heads + h : h * GROUP + j; }

KERNEL LAUNCH_BOUNDS(128, GROUP > 4 ? 2 : 3) attend_decode(const Slot *__restrict__ slots, const elem *__restrict__ qkv, const float *__restrict__ cosines, const float *__restrict__ sines,
                     const float *__restrict__ q_weight, const float *__restrict__ k_weight, elem *__restrict__ out, float *__restrict__ parts,
                     u32 *__restrict__ counters, elem *__restrict__ q_norm, elem *__restrict__ q_rope, elem *__restrict__ k_norm,
                     elem *__restrict__ k_rope, u32 layer, float eps, float scale, u32 split_rows, u32 tile) {
    SHARED float q[GROUP][D];
    SHARED float new_key[D], new_value[D];
    SHARED Found found;
    SHARED u32 last;
    grid_release();
    const u32 h = blockIdx.y, b = blockIdx.z, kv_heads = gridDim.y, heads = kv_heads * GROUP, warp = threadIdx.x / 32;
    const Slot slot = slots[b];
    const u32 total = slot.rows + 1;
    const u32 each = split_rows != 0 ? split_rows : (total + gridDim.x - 1) / gridDim.x;
    const u32 splits = (total + each - 1) / each, split = blockIdx.x;
    if (slot.active == 0 || split >= splits) return;
    const u64 offset = (static_cast<u64>(layer) * kv_heads + h) * slot.capacity * D;
    celem *keys = reinterpret_cast<celem *>(slot.k_base) + offset, *values = reinterpret_cast<celem *>(slot.v_base) + offset;
    const u32 begin = split * each, end = min(slot.rows, begin + each);
    Ahead ahead;
    load_ahead(ahead, keys, values, begin, end);
    grid_wait();
    const elem *row = qkv + static_cast<u64>(b) * (heads + 2 * kv_heads) * D;
    const float *c = cosines + b * (D / 2), *s = sines + b * (D / 2);
    const bool first = split == 0, newest = split + 1 == splits;
    for (u32 j = warp; j < GROUP; j += WARPS) {
        const u64 at = static_cast<u64>(query_head(h, j, kv_heads, tile)) * D, to = static_cast<u64>(b) * heads * D + at;
        norm_and_turn(row + at, q_weight, eps, c, s, q[j], q_norm != nullptr && first ? q_norm + to : nullptr, q_rope != nullptr && first ? q_rope + to : nullptr);
    }
    if (newest) {
        const int lane = threadIdx.x % 32;
        if (threadIdx.x == 0 && slot.positions != 0 && layer < slot.position_layers)
            reinterpret_cast<u32 *>(slot.positions)[(static_cast<u64>(layer) * kv_heads + h) * slot.capacity + slot.rows] = slot.position;
        if (warp == WARPS - 1) {
            const u64 at = static_cast<u64>(heads + h) * D, to = (static_cast<u64>(b) * kv_heads + h) * D;
            norm_and_turn(row + at, k_weight, eps, c, s, new_key, k_norm != nullptr ? k_norm + to : nullptr, k_rope != nullptr ? k_rope + to : nullptr);
            __syncwarp();
            for (int i = lane; i < D; i += 32) {
                const celem key = narrow_c(new_key[i]);
                keys[static_cast<u64>(slot.rows) * D + i] = key;
                new_key[i] = widen_c(key);
            }
        }
        if (warp == 0)
            for (int i = lane; i < D; i += 32) {
                const celem value = narrow_c(widen_e(row[static_cast<u64>(heads + kv_heads + h) * D + i]));
                values[static_cast<u64>(slot.rows) * D + i] = value;
                new_value[i] = widen_c(value);
            }
    }
    __syncthreads();
    float mine[GROUP][EACH];
#pragma unroll
    for (int j = 0; j < GROUP; j++)
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int at = element(threadIdx.x % 32 % LANES, e);
            mine[j][e] = at < D ? q[j][at] : 0.0f;
        }
    Running running;
    begin_running(running);
    walk(running, ahead, keys, values, mine, begin, end, scale);
    if (newest && warp == 0) take_new(running, new_key, new_value, mine, scale);
    merge_slots(running);
    merge_warps(found, running);
    elem *to = out + static_cast<u64>(b) * heads * D;
    if (splits == 1) {
        for (int at = threadIdx.x; at < GROUP * D; at += THREADS)
            to[static_cast<u64>(query_head(h, at / D, kv_heads, tile)) * D + at % D] = narrow_e(found.value[0][at / D][at % D] / found.all_sum[at / D]);
        return;
    }
    // Parts of a split: [GROUP][D] values, then [GROUP] maxima and [GROUP] sums.
    constexpr u32 PART = GROUP * (D + 2);
    float *mine_out = parts + (static_cast<u64>(b * kv_heads + h) * gridDim.x) * PART;
    for (int at = threadIdx.x; at < GROUP * D; at += THREADS) mine_out[split * PART + at] = found.value[0][at / D][at % D];
    if (threadIdx.x < GROUP) {
        mine_out[split * PART + GROUP * D + threadIdx.x] = found.all_most[threadIdx.x];
        mine_out[split * PART + GROUP * D + GROUP + threadIdx.x] = found.all_sum[threadIdx.x];
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&counters[b * kv_heads + h], 1u) + 1 == splits;
    __syncthreads();
    if (last == 0) return;
    __threadfence();
    if (threadIdx.x == 0) counters[b * kv_heads + h] = 0;
    merge_splits(found, mine_out, splits);
    // Two elements a thread and turn; each adds the splits in their order.
    constexpr int TURNS = (GROUP * D / 2 + THREADS - 1) / THREADS;
    float sums[TURNS][2] = {};
    for (u32 base = 0; base < splits; base += HELD) {
        weigh_splits(found, mine_out, base, splits);
        const float *weights = &found.value[0][0][0];
        const u32 count = min(splits - base, static_cast<u32>(HELD));
        for (u32 from = 0; from < count; from += MERGED) {
            float part[TURNS][MERGED][2];
#pragma unroll
            for (int t = 0; t < TURNS; t++)
#pragma unroll
                for (u32 n = 0; n < MERGED; n++) {
                    const u32 at = 2 * (threadIdx.x + t * THREADS);
                    const bool there = at < GROUP * D && from + n < count;
                    const float *at_part = mine_out + static_cast<u64>(base + (there ? from + n : 0)) * PART + (there ? at : 0);
                    load_pair_l2(part[t][n], at_part);
                }
#pragma unroll
            for (int t = 0; t < TURNS; t++)
#pragma unroll
                for (u32 n = 0; n < MERGED; n++) {
                    const u32 at = 2 * (threadIdx.x + t * THREADS);
                    if (at >= GROUP * D || from + n >= count) continue;
                    const float weight = weights[(from + n) * GROUP + at / D];
                    sums[t][0] = fmaf(part[t][n][0], weight, sums[t][0]);
                    sums[t][1] = fmaf(part[t][n][1], weight, sums[t][1]);
                }
        }
    }
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const u32 at = 2 * (threadIdx.x + t * THREADS);
        if (at >= GROUP * D) continue;
        elem *out_at = to + static_cast<u64>(query_head(h, at / D, kv_heads, tile)) * D + at % D;
        out_at[0] = narrow_e(sums[t][0] / found.all_sum[at / D]);
        out_at[1] = narrow_e(sums[t][1] / found.all_sum[at / D]);
    }
}
