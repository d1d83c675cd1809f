// Causal attention of a chunk of n new rows, whose k and v are in the cache already, over the live rows 0 .. rows_before + n. Compiled
// for one HEAD_DIM = D.
//
//   out[i, h] = sum_r p[r] v[r] / sum_r p[r],  p[r] = 2^(c q[i, h] . k[r] - max),  c = log2(e) / sqrt(D),  r in 0 .. visible(i)
//
// q and out [n, heads, D] of `elem`, k and v [kv_heads, capacity, D] of `celem`. Row i sees rows 0 ..= rows_before + i. Query head h
// belongs to KV head h / (heads / kv_heads). Nothing beyond row rows_before + n is read. `scale` is c, rounded to f32 once.
// Planted: next = 1: row i sees one row more where the chunk has one; tile = 1: query head h belongs to KV head h % kv_heads.
//
// attention_rows   Any element types, D at most 256. f32 throughout: products and sums fused, the scaled score rounded before the maximum
//                  is subtracted, exp2f, one division; `out` rounded once. Grid: (tiles of 16 rows, heads), 128 threads; a warp takes 4
//                  rows, keys come in tiles of 32, a lane a key for scores and a lane every 32nd element for values.
//                  Shared: (80 D + 544) * 4 bytes.
// attention_flash  16-bit `elem` = `celem`, D a multiple of 16 up to 128, q, k, v, out aligned to 16 bytes. f32 scores by matrix
//                  instructions; c . score - max in one fused operation, where max = round(c . largest score so far); ex2.approx (2^-22
//                  relative); p is rounded to `elem` for p . v, its sum is of the values before that; 1 / sum, then one rounding of
//                  `out`. Grid: (heads, tiles of 128 rows), 128 threads, shared: tile_elements(128 + 4 * 64) * 2 bytes: 96 KiB for
//                  D > 64, two blocks (8 warps) a multiprocessor, which 255 registers a thread allow too.
//
// Bits of a row depend on q, the cache, rows_before + i, and where the row lies in its warp's tile only through the masks: both kernels
// walk the keys from row 0 in tiles that start at multiples of their size, whatever the chunk. Both start the longest tiles first.
//
// Why flash looks as it does: a warp owns 32 rows, because with 16 each fragment of K and V read from shared memory feeds only one
// matrix instruction and shared memory (128 bytes a clock) becomes the limit; q is read from shared memory again for each tile of keys,
// because its 64 registers are not there beside 128 for out and 64 for scores. Tiles of 64 keys are double-buffered: one barrier a
// tile, and a copy has the arithmetic of a whole tile to arrive.

#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#define D HEAD_DIM
#define THREADS 128

struct Chunk {
    u32 n, rows_before, next;
};
// Cache rows that row i of the chunk sees.
DEVICE u32 visible(const Chunk &chunk, u32 i) { return chunk.rows_before + min(i + 1 + chunk.next, chunk.n); }

DEVICE u32 kv_head_of(u32 head, u32 heads, u32 kv_heads, u32 tile) { return tile != 0 ? head % kv_heads : head / (heads / kv_heads); }

// ---- any types -----------------------------------------------------------------------------------------------------------------

#define ROWS 4 // of a warp
#define BLOCK_ROWS (THREADS / 32 * ROWS)
#define KEYS 32
#define SHARE ((D + 31) / 32)

KERNEL LAUNCH_BOUNDS(128, 2) attention_rows(const elem *__restrict__ q, const celem *__restrict__ k, const celem *__restrict__ v,
                                            elem *__restrict__ out, u32 n, u32 rows_before, u32 heads, u32 kv_heads, u32 capacity,
                                            float scale, u32 next, u32 tile) {
    DYNAMIC_SHARED(float, queries);
    float *keys = queries + BLOCK_ROWS * D; // pitch D + 1: lanes read a column
    float *values = keys + KEYS * (D + 1);
    float *weights = values + KEYS * D;
    const Chunk chunk = {n, rows_before, next};
    const u32 lane = threadIdx.x % 32, mine = threadIdx.x / 32 * ROWS;
    const u32 head = blockIdx.y, first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
    const u64 from = static_cast<u64>(kv_head_of(head, heads, kv_heads, tile)) * capacity * D;
    for (u32 i = threadIdx.x; i < BLOCK_ROWS * D; i += THREADS) {
        const u32 row = first + i / D;
        queries[i] = row < n ? widen_e(q[(static_cast<u64>(row) * heads + head) * D + i % D]) : 0.0f;
    }
    float most[ROWS], sum[ROWS], acc[ROWS][SHARE];
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        most[j] = -INFINITY_F, sum[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < SHARE; e++) acc[j][e] = 0.0f;
    }
    const u32 end = visible(chunk, min(first + BLOCK_ROWS, n) - 1);
    for (u32 start = 0; start < end; start += KEYS) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < KEYS * D; i += THREADS) {
            const u32 row = i / D;
            const u64 at = from + static_cast<u64>(start) * D + i;
            // Zeros beyond the last row, so that a weight of 0 makes 0 of it.
            keys[row * (D + 1) + i % D] = start + row < end ? widen_c(k[at]) : 0.0f;
            values[i] = start + row < end ? widen_c(v[at]) : 0.0f;
        }
        __syncthreads();
        float score[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (u32 d = 0; d < D; d++) {
            const float key = keys[lane * (D + 1) + d];
#pragma unroll
            for (int j = 0; j < ROWS; j++) score[j] = fmaf(queries[(mine + j) * D + d], key, score[j]);
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const bool seen = start + lane < visible(chunk, first + mine + j);
            const float value = seen ? __fmul_rn(score[j], scale) : -INFINITY_F;
            // Every row sees row 0, so that the maximum is finite from the first tile on.
            const float top = fmaxf(most[j], warp_max(value));
            const float shrink = exp2f(most[j] - top), p = exp2f(value - top);
            most[j] = top;
            sum[j] = fmaf(sum[j], shrink, p);
#pragma unroll
            for (int e = 0; e < SHARE; e++) acc[j][e] *= shrink;
            weights[(mine + j) * KEYS + lane] = p;
        }
        __syncwarp();
        for (u32 key = 0; key < KEYS; key++) {
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                const u32 d = e * 32 + lane;
                const float value = d < D ? values[key * D + d] : 0.0f;
#pragma unroll
                for (int j = 0; j < ROWS; j++) acc[j][e] = fmaf(weights[(mine + j) * KEYS + key], value, acc[j][e]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const float total = warp_sum(sum[j]);
        const u32 row = first + mine + j;
        if (row >= n) continue;
#pragma unroll
        for (int e = 0; e < SHARE; e++) {
            const u32 d = e * 32 + lane;
            if (d < D) out[(static_cast<u64>(row) * heads + head) * D + d] = narrow_e(acc[j][e] / total);
        }
    }
}

// ---- 16-bit elements, matrix instructions ---------------------------------------------------------------------------------------

#define FLASH_ROWS 128
#define FLASH_KEYS 64
#define WARP_ROWS 32
// Elements from one row to the next in shared memory: 8 or 16 pieces of 16 bytes, of which D / 8 are used.
#define PITCH (D <= 64 ? 64 : 128)
#define PIECES (D / 8)
#define FLASH_FITS (ELEM != 0 && ELEM == CACHE && D % 16 == 0 && D <= 128)

#if FLASH_FITS
// Element that piece `piece` of row `row` starts at. Rows lie a multiple of 128 bytes apart; the exchange of pieces puts the same piece of
// 8 rows in a row into different banks.
DEVICE u32 place(u32 row, u32 piece) { return row * PITCH + (piece ^ (row % 8)) * 8; }

// `count` rows, zeros up to ROWS_OF_TILE; nothing is read from the addresses beyond `count`.
template <int ROWS_OF_TILE> DEVICE void copy_tile(u16 *to, const u16 *from, u64 stride, u32 count) {
#pragma unroll
    for (int i = 0; i < ROWS_OF_TILE * PIECES / THREADS; i++) {
        const u32 index = threadIdx.x + i * THREADS, row = index / PIECES, piece = index % PIECES;
        cp_async16(to + place(row, piece), from + row * stride + piece * 8, row < count);
    }
}

// State of a warp: 32 rows as two tiles of 16; of each a lane has rows lane / 4 and lane / 4 + 8 (half 0 and 1).
struct Rows {
    float out[2][D / 8][4];
    float most[2][2], sum[2][2]; // maximum of scaled scores; sum of this lane's weights
};

// s[32 x 64] = q k^T
DEVICE void scores(float (&s)[2][8][4], const u16 *q, const u16 *k) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][j][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        u32 a[2][4];
        ldmatrix_x4(a[0], q + place(lane % 16, 2 * step + lane / 16));
        ldmatrix_x4(a[1], q + place(16 + lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 b[4];
            ldmatrix_x4(b, k + place(pair * 16 + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_16x8x16(s[m][2 * pair], a[m], b);
                mma_16x8x16(s[m][2 * pair + 1], a[m], b + 2);
            }
        }
    }
}

// Scores of rows that are not seen become -infinity. Keys from `start` on, rows of the chunk from `first` on.
DEVICE void mask(float (&s)[2][8][4], const Chunk &chunk, u32 start, u32 first) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 limit = visible(chunk, first + m * 16 + half * 8 + lane / 4);
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (start + j * 8 + lane % 4 * 2 + e >= limit) s[m][j][half * 2 + e] = -INFINITY_F;
        }
}

// Raises the maxima by a tile's scores and brings what was summed so far to them.
DEVICE void raise_maxima(Rows &rows, const float (&s)[2][8][4], float scale) {
    float shrink[2][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = s[m][0][half * 2];
#pragma unroll
            for (int j = 0; j < 8; j++) top = fmaxf(top, fmaxf(s[m][j][half * 2], s[m][j][half * 2 + 1]));
            top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
            top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
            // Finite from the first tile on: every row sees row 0.
            top = fmaxf(rows.most[m][half], __fmul_rn(top, scale));
            moved |= top != rows.most[m][half];
            shrink[m][half] = exp2_ftz(rows.most[m][half] - top);
            rows.most[m][half] = top;
            rows.sum[m][half] *= shrink[m][half];
        }
    // Maxima settle after a few tiles; a factor of 1 changes nothing.
    if (!__any_sync(FULL_WARP, moved)) return;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) rows.out[m][j][e] *= shrink[m][e / 2];
}

// out[32 x D] += p[32 x 64] v[64 x D]. Weights come out of scores 16 keys at a time, beside the products of the 16 before.
DEVICE void mix(Rows &rows, const float (&s)[2][8][4], const u16 *v, float scale) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        u32 a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = &s[m][2 * step + i / 2][i % 2 * 2];
                const float p0 = exp2_ftz(fmaf(pair[0], scale, -rows.most[m][i % 2]));
                const float p1 = exp2_ftz(fmaf(pair[1], scale, -rows.most[m][i % 2]));
                rows.sum[m][i % 2] += p0 + p1;
                a[m][i] = pack_e(p0, p1);
            }
#pragma unroll
        for (int pair = 0; pair < D / 16; pair++) {
            u32 b[4];
            ldmatrix_x4_trans(b, v + place(step * 16 + lane % 16, 2 * pair + lane / 16));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_16x8x16(rows.out[m][2 * pair], a[m], b);
                mma_16x8x16(rows.out[m][2 * pair + 1], a[m], b + 2);
            }
        }
    }
}

// Rows of a warp, divided by their sums, through its own rows of shared memory to `out` (`count` rows of them).
DEVICE void finish(Rows &rows, u16 *stage, u16 *out, u64 stride, u32 count) {
    const u32 lane = threadIdx.x % 32;
    __syncwarp(); // the last reads of q
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[m][half];
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            const float inverse = 1.0f / sum;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                const float *pair = &rows.out[m][j][half * 2];
                u16 *to = stage + place(m * 16 + half * 8 + lane / 4, j) + lane % 4 * 2;
                *reinterpret_cast<u32 *>(to) = pack_e(pair[0] * inverse, pair[1] * inverse);
            }
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < WARP_ROWS * PIECES / 32; i++) {
        const u32 index = lane + i * 32, row = index / PIECES, piece = index % PIECES;
        if (row < count) *reinterpret_cast<vec16 *>(out + row * stride + piece * 8) = *reinterpret_cast<vec16 *>(stage + place(row, piece));
    }
}
#endif

KERNEL LAUNCH_BOUNDS(128, 2) attention_flash(const elem *__restrict__ q, const celem *__restrict__ k, const celem *__restrict__ v,
                                             elem *__restrict__ out, u32 n, u32 rows_before, u32 heads, u32 kv_heads, u32 capacity,
                                             float scale, u32 next, u32 tile) {
#if FLASH_FITS
    DYNAMIC_SHARED(u16, queries);
    u16 *const tiles = queries + FLASH_ROWS * PITCH; // two stages of keys, values
    const Chunk chunk = {n, rows_before, next};
    const u32 head = blockIdx.x, first = (gridDim.y - 1 - blockIdx.y) * FLASH_ROWS;
    const u64 from = static_cast<u64>(kv_head_of(head, heads, kv_heads, tile)) * capacity * D;
    const u64 stride = static_cast<u64>(heads) * D;
    const u32 end = visible(chunk, min(first + FLASH_ROWS, n) - 1);
    const auto copy_keys = [&](u32 start) {
        u16 *to = tiles + start / FLASH_KEYS % 2 * (2 * FLASH_KEYS * PITCH);
        const u64 at = from + static_cast<u64>(start) * D;
        copy_tile<FLASH_KEYS>(to, k + at, D, end - start);
        copy_tile<FLASH_KEYS>(to + FLASH_KEYS * PITCH, v + at, D, end - start);
        cp_async_commit();
    };
    copy_tile<FLASH_ROWS>(queries, q + first * stride + head * D, stride, n - first);
    copy_keys(0);

    Rows rows;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        rows.most[m][0] = rows.most[m][1] = -INFINITY_F;
        rows.sum[m][0] = rows.sum[m][1] = 0.0f;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) rows.out[m][j][e] = 0.0f;
    }
    // What all rows of this warp see, and what any of them sees (nothing, where the chunk ends before the warp's rows).
    // By a shuffle, so that the compiler knows it for uniform and keeps it and what follows out of the threads' registers.
    const u32 mine = __shfl_sync(FULL_WARP, threadIdx.x / 32, 0) * WARP_ROWS, begin = first + mine;
    const u32 all_see = visible(chunk, begin);
    const u32 any_sees = begin < n ? visible(chunk, min(begin + WARP_ROWS, n) - 1) : 0;
    for (u32 start = 0; start < end; start += FLASH_KEYS) {
        cp_async_wait<0>();
        __syncthreads(); // this tile is there, and nobody reads the one before it
        if (start + FLASH_KEYS < end) copy_keys(start + FLASH_KEYS);
        if (start >= any_sees) continue;
        const u16 *keys = tiles + start / FLASH_KEYS % 2 * (2 * FLASH_KEYS * PITCH);
        float s[2][8][4];
        scores(s, queries + mine * PITCH, keys);
        if (start + FLASH_KEYS > all_see) mask(s, chunk, start, begin);
        raise_maxima(rows, s, scale);
        mix(rows, s, keys + FLASH_KEYS * PITCH, scale);
    }
    if (begin < n) finish(rows, queries + mine * PITCH, out + begin * stride + head * D, stride, n - begin);
#endif
    // Other types and widths have attention_rows; the host side does not load this one for them.
}
