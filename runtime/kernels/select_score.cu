// Raw scores of cached rows for every sampled head, f32. K lies as [layers][kv_heads][capacity][HEAD_DIM] of `celem`, rotated, halves
// paired: x[f] = row[f], y[f] = row[f + HEAD_DIM / 2]. A unit is a KV head of a layer with its sampled heads; `unit_start` is CSR over
// `unit_heads`, rows of the score matrix. Scores lie as [heads][columns]; column c is cache row `first_row` + c.
//
// phases          cos, sin[j][f] of (base + offset_j) * w_f: the phase one f32 product, its cosine and sine in f64, rounded to f32; where
//                 residual > 0, turned on by residual * w_f in f32 (the phase tables of upstream). Grid: (offsets), 64 threads.
// turn_queries    The direct form is linear in the key:
//                     S_j = sum_f s (A cos - B sin) = sum_f P_j x + Q_j y,   P = s (a cos - b sin),   Q = s (b cos + a sin),
//                 the mean query turned on to R + offset_j. out[head][j][P, Q][f], each rounded once from f64. With `mean`, one turn that
//                 holds the mean over j: averaging commutes with the sum over f, and a score costs one product instead of one an
//                 offset. Against an evaluation offset by offset this moves roundings and drops none: P and Q are within 2^-24
//                 of their f64 values. Grid: (heads, turns), 64 threads.
// score_direct    score = max_j S_j + E, E = sum_f energy |z|; no turn: E. (Adding E inside each offset gives the same bits for a
//                 maximum, as rounding is monotone, and differs in rounding alone for a mean.) `floors`: 0: |z| = sqrt(max(., 1e-8));
//                 1: sqrt(. + 1e-8); 2: x^2, y^2, their sum and the root each rounded to `celem`, no floor. 8 frequencies a lane, LANES
//                 lanes a row, every K element read once for all heads of its unit; lanes are summed as a butterfly, so that
//                 equal rows get equal bits. Grid: (tiles of rows, units), 256 threads, dynamic shared memory: heads of a unit *
//                 (1 + 2 turns) * LANES * 8 floats.
// score_unrotate  z is turned back by the row's own position p first (scaled by `scaling` as upstream does), then
//                     score = mean or max over j of sum_f |mu| |z| s cos(((R - p) + offset_j) w + phi) + E,   phi = arg(mu conj z)
//                 with R - p, + offset, * w and + phi each rounded to f32 and phi the f32 next to the true angle: at phases of
//                 7e4 those roundings are 4e-3 rad and part of the result. Cosines are within 1.2e-7 (a three-step reduction by pi / 2
//                 in fused f32 up to 2^17, beyond it one in f64; Cephes polynomials). One warp a row. Grid: (rows / 8,
//                 units), 256 threads. The offsets ascend.

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#define FREQS (HEAD_DIM / 2)

// ---- direct form -----------------------------------------------------------------------------------------------------------------

// Frequencies of a lane, lanes of a row, rows that a lane holds at once.
#define SPAN 8
#if FREQS <= SPAN
#define LANES 1
#elif FREQS <= 2 * SPAN
#define LANES 2
#elif FREQS <= 4 * SPAN
#define LANES 4
#elif FREQS <= 8 * SPAN
#define LANES 8
#elif FREQS <= 16 * SPAN
#define LANES 16
#else
#define LANES 32
#endif
#define ROWS 2
#define ROW_GROUPS (32 / LANES)
#define WARP_ROWS (ROW_GROUPS * ROWS)
#define WARPS 8
// Rows that one block scores, in steps of WARPS * WARP_ROWS.
#define TILE 256

KERNEL phases(const float *__restrict__ offsets, const float *__restrict__ w, float *__restrict__ cos_out, float *__restrict__ sin_out,
              u32 freqs, u32 base, u32 residual) {
    const float time = __fadd_rn(static_cast<float>(base), offsets[blockIdx.x]);
    for (u32 f = threadIdx.x; f < freqs; f += blockDim.x) {
        const double angle = __fmul_rn(time, w[f]);
        float c = static_cast<float>(cos(angle)), s = static_cast<float>(sin(angle));
        if (residual > 0) {
            const double turn = __fmul_rn(static_cast<float>(residual), w[f]);
            const float turn_c = static_cast<float>(cos(turn)), turn_s = static_cast<float>(sin(turn));
            const float turned = __fsub_rn(__fmul_rn(c, turn_c), __fmul_rn(s, turn_s));
            s = __fadd_rn(__fmul_rn(s, turn_c), __fmul_rn(c, turn_s));
            c = turned;
        }
        cos_out[blockIdx.x * freqs + f] = c;
        sin_out[blockIdx.x * freqs + f] = s;
    }
}

KERNEL turn_queries(const float *__restrict__ re, const float *__restrict__ im, const float *__restrict__ scale,
                    const float *__restrict__ cos_in, const float *__restrict__ sin_in, float *__restrict__ out, u32 freqs, u32 offsets,
                    u32 mean) {
    const u32 head = blockIdx.x, turn = blockIdx.y;
    float *to = out + (static_cast<u64>(head) * gridDim.y + turn) * 2 * freqs;
    for (u32 f = threadIdx.x; f < freqs; f += blockDim.x) {
        double c = 0.0, s = 0.0;
        for (u32 j = mean ? 0 : turn; j < (mean ? offsets : turn + 1); j++) {
            c += cos_in[j * freqs + f];
            s += sin_in[j * freqs + f];
        }
        const double share = mean ? static_cast<double>(offsets) : 1.0;
        const double a = re[head * freqs + f], b = im[head * freqs + f], k = scale[head * freqs + f];
        to[f] = static_cast<float>(k * (a * c - b * s) / share);
        to[freqs + f] = static_cast<float>(k * (b * c + a * s) / share);
    }
}

DEVICE float modulus(float x, float y, u32 floors) {
    if (floors == 2) return rounded_c(sqrtf(rounded_c(__fadd_rn(rounded_c(__fmul_rn(x, x)), rounded_c(__fmul_rn(y, y))))));
    const float square = __fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y));
    // A NaN must stay one: fmaxf would drop it.
    if (floors == 1) return sqrtf(square + 1e-8f);
    return sqrtf(square < 1e-8f ? 1e-8f : square);
}

// SPAN elements from `from` on; `have` of them exist.
DEVICE void load_span(const celem *from, u32 have, float *out) {
#if FREQS % 8 == 0
    const char *bytes = reinterpret_cast<const char *>(from);
    if (have == 0) {
        for (u32 i = 0; i < SPAN; i++) out[i] = 0.0f;
        return;
    }
#if CACHE == 0
    for (u32 half = 0; half < 2; half++) {
        const vec16 v = load_stream(bytes + half * 16);
        out[half * 4] = bits_to_f32(v.x);
        out[half * 4 + 1] = bits_to_f32(v.y);
        out[half * 4 + 2] = bits_to_f32(v.z);
        out[half * 4 + 3] = bits_to_f32(v.w);
    }
#else
    const vec16 v = load_stream(bytes);
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    for (u32 i = 0; i < 4; i++) {
        out[2 * i] = widen_c(static_cast<celem>(words[i]));
        out[2 * i + 1] = widen_c(static_cast<celem>(words[i] >> 16));
    }
#endif
#else
    for (u32 i = 0; i < SPAN; i++) out[i] = i < have ? widen_c(from[i]) : 0.0f;
#endif
}

DEVICE float lanes_sum(float value) {
    for (u32 step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}

// Copies FREQS floats so that the four of a lane that are read as one lie beside those of the other lanes; the rest is zero.
DEVICE void stage(float *to, const float *from) {
    for (u32 i = threadIdx.x; i < LANES * SPAN; i += blockDim.x)
        to[(i % SPAN / 4 * LANES + i / SPAN) * 4 + i % 4] = i < FREQS ? from[i] : 0.0f;
}
struct alignas(16) quad {
    float x, y, z, w;
};
// value . staged, for the SPAN frequencies of this lane.
DEVICE float span_dot(float sum, const float *values, const float *staged, u32 lane) {
    for (u32 half = 0; half < SPAN / 4; half++) {
        const quad q = *reinterpret_cast<const quad *>(staged + (half * LANES + lane) * 4);
        sum = fmaf(values[half * 4], q.x, sum);
        sum = fmaf(values[half * 4 + 1], q.y, sum);
        sum = fmaf(values[half * 4 + 2], q.z, sum);
        sum = fmaf(values[half * 4 + 3], q.w, sum);
    }
    return sum;
}

KERNEL LAUNCH_BOUNDS(256, 2)
score_direct(u64 k_base, const float *__restrict__ turned, const float *__restrict__ energy, const u32 *__restrict__ unit_kv,
             const u32 *__restrict__ unit_start, const u32 *__restrict__ unit_heads, float *__restrict__ out, u32 capacity, u32 first_row,
             u32 columns, u32 turns, u32 floors) {
    DYNAMIC_SHARED(float, staged); // [heads of the unit][E, then P and Q by turn][LANES * SPAN]
    const u32 begin = unit_start[blockIdx.y], heads = unit_start[blockIdx.y + 1] - begin;
    const u32 part = LANES * SPAN, parts = 1 + 2 * turns;
    for (u32 h = 0; h < heads; h++) {
        const u64 row = unit_heads[begin + h];
        stage(staged + h * parts * part, energy + row * FREQS);
        for (u32 i = 0; i < 2 * turns; i++) stage(staged + (h * parts + 1 + i) * part, turned + (row * 2 * turns + i) * FREQS);
    }
    __syncthreads();
    const celem *keys = reinterpret_cast<const celem *>(k_base) + (static_cast<u64>(unit_kv[blockIdx.y]) * capacity + first_row) * HEAD_DIM;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32 % LANES, group = threadIdx.x % 32 / LANES;
    const u32 have = lane * SPAN < FREQS ? min(static_cast<u32>(SPAN), FREQS - lane * SPAN) : 0;
    const u32 end = min(columns, (blockIdx.x + 1) * TILE);
    for (u32 start = blockIdx.x * TILE + warp * WARP_ROWS; start < end; start += WARPS * WARP_ROWS) {
        float x[ROWS][SPAN], y[ROWS][SPAN], size[ROWS][SPAN];
        for (u32 r = 0; r < ROWS; r++) {
            const u32 column = start + r * ROW_GROUPS + group;
            const celem *key = keys + static_cast<u64>(column) * HEAD_DIM + lane * SPAN;
            const u32 there = column < end ? have : 0;
            load_span(key, there, x[r]);
            load_span(key + FREQS, there, y[r]);
        }
        for (u32 r = 0; r < ROWS; r++)
            for (u32 i = 0; i < SPAN; i++) size[r][i] = modulus(x[r][i], y[r][i], floors);
        for (u32 h = 0; h < heads; h++) {
            const float *own = staged + h * parts * part;
            for (u32 r = 0; r < ROWS; r++) {
                const u32 column = start + r * ROW_GROUPS + group;
                float score = span_dot(0.0f, size[r], own, lane);
                if (turns == 1) score = span_dot(span_dot(score, x[r], own + part, lane), y[r], own + 2 * part, lane);
                score = lanes_sum(score);
                if (turns > 1) {
                    float best = -INFINITY_F;
                    for (u32 j = 0; j < turns; j++) {
                        const float *turn = own + (1 + 2 * j) * part;
                        const float value = lanes_sum(span_dot(span_dot(0.0f, x[r], turn, lane), y[r], turn + part, lane));
                        if (value > best || value != value) best = value;
                    }
                    score += best;
                }
                if (lane == 0 && column < end) out[static_cast<u64>(unit_heads[begin + h]) * columns + column] = score;
            }
        }
    }
}

// ---- un-rotate form ----------------------------------------------------------------------------------------------------------------

// Sine and cosine on a little more than [-pi / 4, pi / 4]: minimax polynomials of Cephes.
DEVICE float sin_kernel(float x, float square) {
    const float odd = fmaf(fmaf(-1.9515296e-4f, square, 8.332161e-3f), square, -1.6666655e-1f);
    return fmaf(odd * square, x, x);
}
DEVICE float cos_kernel(float square) {
    const float even = fmaf(fmaf(2.4433157e-5f, square, -1.3887316e-3f), square, 4.1666646e-2f);
    return fmaf(even, square * square, fmaf(-0.5f, square, 1.0f));
}
// Nearest quarter turn of an angle and what is left of it. Exact to 1e-7 below 2^17: the first fused product cancels without
// rounding there (a multiple of 2^-22 below 1), and the three constants hold pi / 2 to 2^-70.
DEVICE u32 quarter(float angle, float *rest) {
    const float shifted = fmaf(angle, 0.636619747f, 12582912.0f); // 1.5 * 2^23: the nearest integer in the low bits
    const float turns = shifted - 12582912.0f;
    float r = fmaf(turns, -1.57079601287841796875f, angle);
    r = fmaf(turns, -3.1391647326017846e-7f, r);
    *rest = fmaf(turns, -5.390302529957765e-15f, r);
    return f32_to_bits(shifted);
}
// The same for any angle below 2^31.
DEVICE u32 quarter_far(float angle, float *rest) {
    const double shifted = fma(static_cast<double>(angle), 0.63661977236758134308, 6755399441055744.0); // 1.5 * 2^52
    const double turns = shifted - 6755399441055744.0;
    *rest = static_cast<float>(fma(turns, -1.57079632679489661923, static_cast<double>(angle)));
    return static_cast<u32>(static_cast<u64>(__double_as_longlong(shifted)));
}
DEVICE float cos_of(u32 turn, float rest) {
    const float square = rest * rest;
    const float value = turn & 1u ? sin_kernel(rest, square) : cos_kernel(square);
    return bits_to_f32(f32_to_bits(value) ^ ((turn + 1u) & 2u) << 30);
}
DEVICE float sin_of(u32 turn, float rest) {
    const float square = rest * rest;
    const float value = turn & 1u ? cos_kernel(square) : sin_kernel(rest, square);
    return bits_to_f32(f32_to_bits(value) ^ (turn & 2u) << 30);
}
// Angle of the point (x, y): f64, rounded once; 0 at the origin.
DEVICE float angle_of(float y, float x) {
    return static_cast<float>(atan2(static_cast<double>(y), static_cast<double>(x)));
}

// Frequencies of a lane here.
#define OWN ((FREQS + 31) / 32)
// A phase may be this large for the short reduction.
#define NEAR 131072.0f

// Mean or maximum over the offsets of sum_f amplitude cos(fl(fl(time w) + angle)); every lane of the warp gets it. SHORT: every phase is
// below NEAR.
template <bool SHORT>
DEVICE float turned_sum(const float *amplitude, const float *speed, const float *angle, float since, const float *offsets, u32 count,
                        u32 take_largest) {
    float sum = 0.0f, best = -INFINITY_F;
    for (u32 j = 0; j < count; j++) {
        const float time = __fadd_rn(since, offsets[j]);
        float turned = 0.0f;
        for (u32 i = 0; i < OWN; i++) {
            const float phase = __fadd_rn(__fmul_rn(time, speed[i]), angle[i]);
            float rest;
            const u32 turn = SHORT ? quarter(phase, &rest) : quarter_far(phase, &rest);
            turned = fmaf(amplitude[i], cos_of(turn, rest), turned);
        }
        if (take_largest) {
            const float value = warp_sum(turned);
            if (value > best || value != value) best = value;
        } else {
            sum += turned;
        }
    }
    return take_largest ? best : warp_sum(sum) / static_cast<float>(count);
}

KERNEL LAUNCH_BOUNDS(256, 3)
score_unrotate(u64 k_base, const u32 *__restrict__ positions, const float *__restrict__ offsets, const float *__restrict__ w,
               const float *__restrict__ re, const float *__restrict__ im, const float *__restrict__ size_in,
               const float *__restrict__ scale, const float *__restrict__ energy, const u32 *__restrict__ unit_kv,
               const u32 *__restrict__ unit_start, const u32 *__restrict__ unit_heads, float *__restrict__ out, u32 capacity,
               u32 position_heads, u32 first_row, u32 columns, u32 round_start, u32 offset_count, u32 take_largest, float scaling) {
    const u32 lane = threadIdx.x % 32, column = blockIdx.x * 8 + threadIdx.x / 32;
    if (column >= columns) return;
    const u32 kv = unit_kv[blockIdx.y], cache_row = first_row + column;
    const celem *key = reinterpret_cast<const celem *>(k_base) + (static_cast<u64>(kv) * capacity + cache_row) * HEAD_DIM;
    const float position = static_cast<float>(positions[static_cast<u64>(kv % position_heads) * capacity + cache_row]);
    const float since = __fsub_rn(static_cast<float>(round_start), position);
    float x[OWN], y[OWN], size[OWN], speed[OWN];
    for (u32 i = 0; i < OWN; i++) {
        const u32 f = lane + 32 * i;
        const bool there = f < FREQS;
        const float kx = there ? widen_c(key[f]) / scaling : 0.0f, ky = there ? widen_c(key[f + FREQS]) / scaling : 0.0f;
        speed[i] = there ? w[f] : 0.0f;
        float rest;
        const u32 turn = quarter_far(__fmul_rn(position, speed[i]), &rest);
        // The model's tables carry the factor; they are divided by it again, as are the keys.
        const float c = __fmul_rn(cos_of(turn, rest), scaling) / scaling, s = __fmul_rn(sin_of(turn, rest), scaling) / scaling;
        x[i] = __fadd_rn(__fmul_rn(kx, c), __fmul_rn(ky, s));
        y[i] = __fsub_rn(__fmul_rn(ky, c), __fmul_rn(kx, s));
        size[i] = sqrtf(__fadd_rn(__fmul_rn(x[i], x[i]), __fmul_rn(y[i], y[i])));
    }
    for (u32 at = unit_start[blockIdx.y]; at < unit_start[blockIdx.y + 1]; at++) {
        const u64 row = unit_heads[at];
        float norm = 0.0f, amplitude[OWN], angle[OWN];
        bool near = true;
        for (u32 i = 0; i < OWN; i++) {
            const u32 f = lane + 32 * i;
            amplitude[i] = angle[i] = 0.0f;
            if (f >= FREQS) continue;
            const u64 own = row * FREQS + f;
            norm = fmaf(energy[own], size[i], norm);
            if (offset_count == 0) continue;
            const float a = re[own], b = im[own];
            amplitude[i] = size_in[own] * size[i] * scale[own];
            angle[i] = angle_of(__fsub_rn(__fmul_rn(b, x[i]), __fmul_rn(a, y[i])), __fadd_rn(__fmul_rn(a, x[i]), __fmul_rn(b, y[i])));
            near &= (fabsf(since) + offsets[offset_count - 1]) * fabsf(speed[i]) + 4.0f < NEAR;
        }
        norm = warp_sum(norm);
        float turning = 0.0f;
        if (offset_count > 0)
            turning = __all_sync(FULL_WARP, near) ? turned_sum<true>(amplitude, speed, angle, since, offsets, offset_count, take_largest)
                                                  : turned_sum<false>(amplitude, speed, angle, since, offsets, offset_count, take_largest);
        if (lane == 0) out[row * columns + column] = turning + norm;
    }
}
