// Projections of decode: a matrix times 1 to 8 columns, each weight read once.
//
//   s[b, r]   = sum_k x[b, k] * w[r, k]
//   linear_plain      out[b, r]   = r(s + bias[r])
//   linear_residual   x2[b, r]    = r(x2[b, r] + r(s + bias[r]))
//   linear_swiglu     out[b, r]   = r(r(g / (1 + exp(-g))) * u), g = r(s[b, r] + bias[r]), u = r(s[b, rows + r] + bias[rows + r]): w is
//                                   [2 rows, k], gate rows first
//
// r rounds to `elem`; w [rows, k] and x [batch, k] are `elem`, row-major; sums are f32. bias f32 or null.
//
// Grid: (ceil(rows / 16)), 256 threads; a block takes 16 rows (two times 16 under swiglu), its 8 warps take turns of 64 elements of k,
// and the 8 partial sums are added in the order of the warps. 16-bit types go through mma m16n8k16 with the columns of x as its 8
// columns: a column's sum never sees another column, so that its bits do not depend on the batch. Which elements of k share an mma is
// free as long as w and x agree, so that each lane loads 16 bytes in a row of w and of x. f32 goes through fused multiply-adds, one
// warp two rows, the lanes' sums added by butterfly. k not divisible by 8 (f32: 4) takes the second path in any type.
//
// Loads of w begin before the launch before this one has ended (w is never written while a model runs); x is read after it.
// Optional output (null: none): `branch` [batch, rows], r(s + bias) of linear_residual.

#define WARPS 8
#define ROWS 16
#define COLUMNS 8

// Partial sums of one or two tiles by warp: part[tile][warp][row * 8 + column].
template <int TILES> struct Parts {
    float at[TILES][WARPS][ROWS * COLUMNS];
};

#if ELEM != 0
// One chunk of 64 elements of k for a lane: rows g and g + 8 of each tile, two vectors each.
template <int TILES> struct Chunk {
    vec16 v[TILES][4];
};

template <int TILES> DEVICE void load_chunk(Chunk<TILES> &c, const elem *const *low, const elem *const *high, u32 column, u32 k) {
    const vec16 zero = {0, 0, 0, 0};
    const bool first = column < k, second = column + 32 < k;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        c.v[t][0] = first ? load_stream(low[t] + column) : zero;
        c.v[t][1] = first ? load_stream(high[t] + column) : zero;
        c.v[t][2] = second ? load_stream(low[t] + column + 32) : zero;
        c.v[t][3] = second ? load_stream(high[t] + column + 32) : zero;
    }
}

DEVICE void multiply(float *d, const vec16 &low, const vec16 &high, const vec16 &x) {
    const u32 a0[4] = {low.x, high.x, low.y, high.y}, b0[2] = {x.x, x.y};
    mma_16x8x16(d, a0, b0);
    const u32 a1[4] = {low.z, high.z, low.w, high.w}, b1[2] = {x.z, x.w};
    mma_16x8x16(d, a1, b1);
}

template <int TILES, int DEPTH> DEVICE void sum_by_mma(Parts<TILES> &parts, const elem *const *tiles, const elem *x, u32 rows, u32 k, u32 batch) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 base = blockIdx.x * ROWS;
    const elem *low[TILES], *high[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        // A row beyond the last reads the last one; its sums are not written.
        low[i] = tiles[i] + static_cast<u64>(min(base + g, rows - 1)) * k;
        high[i] = tiles[i] + static_cast<u64>(min(base + g + 8, rows - 1)) * k;
    }
    const u32 chunks = (k + 63) / 64, start = warp * 64 + t * 8;
    Chunk<TILES> ahead[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) load_chunk<TILES>(ahead[d], low, high, start + d * WARPS * 64, k);
    grid_wait();
    const elem *column = x + static_cast<u64>(g) * k;
    float sums[TILES][4] = {};
    const vec16 zero = {0, 0, 0, 0};
    const u32 rounds = (chunks + WARPS - 1) / WARPS;
    for (u32 round = 0; round < rounds; round += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const u32 at = start + (round + d) * WARPS * 64;
            const Chunk<TILES> now = ahead[d];
            load_chunk<TILES>(ahead[d], low, high, at + DEPTH * WARPS * 64, k);
            const vec16 x0 = g < batch && at < k ? *reinterpret_cast<const vec16 *>(column + at) : zero;
            const vec16 x1 = g < batch && at + 32 < k ? *reinterpret_cast<const vec16 *>(column + at + 32) : zero;
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                multiply(sums[i], now.v[i][0], now.v[i][1], x0);
                multiply(sums[i], now.v[i][2], now.v[i][3], x1);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float *out = parts.at[i][warp];
        out[g * COLUMNS + 2 * t] = sums[i][0];
        out[g * COLUMNS + 2 * t + 1] = sums[i][1];
        out[(g + 8) * COLUMNS + 2 * t] = sums[i][2];
        out[(g + 8) * COLUMNS + 2 * t + 1] = sums[i][3];
    }
}
#endif

// Two rows a warp, any k; the other warps' parts stay zero.
template <int TILES> DEVICE void sum_by_fma(Parts<TILES> &parts, const elem *const *tiles, const elem *x, u32 rows, u32 k, u32 batch) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    grid_wait();
    for (u32 i = threadIdx.x; i < TILES * WARPS * ROWS * COLUMNS; i += WARPS * 32) (&parts.at[0][0][0])[i] = 0.0f;
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const elem *w[2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) w[r] = tiles[tile] + static_cast<u64>(min(blockIdx.x * ROWS + warp * 2 + r, rows - 1)) * k;
        float sums[2][COLUMNS] = {};
#if ELEM == 0
        if (k % 4 == 0) {
            for (u32 i = lane * 4; i < k; i += 128) {
                const vec16 a = load_stream(w[0] + i), c = load_stream(w[1] + i);
                const float left[4] = {bits_to_f32(a.x), bits_to_f32(a.y), bits_to_f32(a.z), bits_to_f32(a.w)};
                const float right[4] = {bits_to_f32(c.x), bits_to_f32(c.y), bits_to_f32(c.z), bits_to_f32(c.w)};
#pragma unroll
                for (u32 b = 0; b < COLUMNS; b++) {
                    if (b >= batch) break;
                    const float *column = x + static_cast<u64>(b) * k + i;
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        sums[0][b] = fmaf(left[e], column[e], sums[0][b]);
                        sums[1][b] = fmaf(right[e], column[e], sums[1][b]);
                    }
                }
            }
        } else
#endif
            for (u32 i = lane; i < k; i += 32) {
                const float left = widen_e(w[0][i]), right = widen_e(w[1][i]);
#pragma unroll
                for (u32 b = 0; b < COLUMNS; b++) {
                    if (b >= batch) break;
                    const float value = widen_e(x[static_cast<u64>(b) * k + i]);
                    sums[0][b] = fmaf(left, value, sums[0][b]);
                    sums[1][b] = fmaf(right, value, sums[1][b]);
                }
            }
#pragma unroll
        for (u32 b = 0; b < COLUMNS; b++) {
            if (b >= batch) break;
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                const float sum = warp_sum(sums[r][b]);
                if (lane == 0) parts.at[tile][0][(warp * 2 + r) * COLUMNS + b] = sum;
            }
        }
    }
}

// Sums of the block's rows, complete once this returns: parts.at[tile][0][row * 8 + column].
template <int TILES, int DEPTH> DEVICE void project(Parts<TILES> &parts, const elem *const *tiles, const elem *x, u32 rows, u32 k, u32 batch) {
    grid_release();
#if ELEM != 0
    if (k % 8 == 0)
        sum_by_mma<TILES, DEPTH>(parts, tiles, x, rows, k, batch);
    else
#endif
        sum_by_fma<TILES>(parts, tiles, x, rows, k, batch);
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILES * ROWS * COLUMNS; i += WARPS * 32) {
        const u32 tile = i / (ROWS * COLUMNS), at = i % (ROWS * COLUMNS);
        float sum = parts.at[tile][0][at];
        for (u32 w = 1; w < WARPS; w++) sum += parts.at[tile][w][at];
        parts.at[tile][0][at] = sum;
    }
    __syncthreads();
}

DEVICE float biased(float sum, const float *bias, u32 row) { return rounded_e(bias == nullptr ? sum : sum + bias[row]); }

KERNEL LAUNCH_BOUNDS(256, 3) linear_plain(const elem *__restrict__ x, const elem *__restrict__ w, const float *__restrict__ bias, elem *__restrict__ out,
                                           u32 rows, u32 k, u32 batch) {
    SHARED Parts<1> parts;
    const elem *tiles[1] = {w};
    project<1, 2>(parts, tiles, x, rows, k, batch);
    for (u32 i = threadIdx.x; i < ROWS * batch; i += WARPS * 32) {
        const u32 row = blockIdx.x * ROWS + i % ROWS, b = i / ROWS;
        if (row < rows) out[static_cast<u64>(b) * rows + row] = narrow_e(biased(parts.at[0][0][i % ROWS * COLUMNS + b], bias, row));
    }
}

KERNEL LAUNCH_BOUNDS(256, 3) linear_residual(const elem *__restrict__ x, const elem *__restrict__ w, const float *__restrict__ bias, elem *__restrict__ residual,
                       elem *__restrict__ branch, u32 rows, u32 k, u32 batch) {
    SHARED Parts<1> parts;
    const elem *tiles[1] = {w};
    project<1, 2>(parts, tiles, x, rows, k, batch);
    for (u32 i = threadIdx.x; i < ROWS * batch; i += WARPS * 32) {
        const u32 row = blockIdx.x * ROWS + i % ROWS, b = i / ROWS;
        if (row >= rows) continue;
        const u64 at = static_cast<u64>(b) * rows + row;
        const float value = biased(parts.at[0][0][i % ROWS * COLUMNS + b], bias, row);
        if (branch != nullptr) branch[at] = narrow_e(value);
        residual[at] = narrow_e(widen_e(residual[at]) + value);
    }
}

KERNEL LAUNCH_BOUNDS(256, 3) linear_swiglu(const elem *__restrict__ x, const elem *__restrict__ w, const float *__restrict__ bias, elem *__restrict__ out,
                                            u32 rows, u32 k, u32 batch) {
    SHARED Parts<2> parts;
    const elem *tiles[2] = {w, w + static_cast<u64>(rows) * k};
    project<2, 1>(parts, tiles, x, rows, k, batch);
    for (u32 i = threadIdx.x; i < ROWS * batch; i += WARPS * 32) {
        const u32 row = blockIdx.x * ROWS + i % ROWS, b = i / ROWS;
        if (row >= rows) continue;
        const u32 at = i % ROWS * COLUMNS + b;
        const float gate = biased(parts.at[0][0][at], bias, row), up = biased(parts.at[1][0][at], bias, rows + row);
        out[static_cast<u64>(b) * rows + row] = narrow_e(rounded_e(gate / (1.0f + expf(-gate))) * up);
    }
}
