// From raw scores to ranked ones, f32. Matrices are dense, [rows][columns].
//
// guard_rows   flags[c] = 1 where row c is kept outright: one of the `window` newest, or a prompt row (prompt_rule 1: c < prompt_len; 2: the
//              position of KV head 0 below prompt_len; 0: none). words[1] += their number, words[2] = largest of all positions
//              ([lists][stride]). Grid: (columns / 256, lists of positions), 256 threads.
// zscore       z[row][c] = (raw[row][dropped + c] - mean) / divisor, mean and deviation in two passes over the columns whose flag is 0
//              (no flags: all): each thread sums its columns (stride 256), then warps, then the block: an order that depends on
//              the column count alone. `rule` 0: deviation < 1e-6 divides by 1; 1: < 1e-8; 2: at least 1e-6; 3: no normalising, a copy.
//              `population`: n, else n - 1; no degree of freedom: deviation 0. Grid: (rows), 256 threads.
// mt19937      z[order[i / columns]][i % columns] += u * 1e-6 for draw i of `count`, after `skip` draws that are dropped; u the low 24 bits
//              of PyTorch's generator times 2^-24. state: 624 words, then the index of the next one; goes on from call to call.
//              Grid: (1), 256 threads.
// combine      out[list][c] over the rows rows[start[list]] .. of `in`: how[list] 0: maximum, a NaN wins; 1: sum in order / count; 2: sum *
//              (1 / count), both rounded; 3: 0. An empty list gives NaN unless 3. With `words`, |= 1 into words[0] for a NaN; then a
//              flag of `flags` makes it +inf, and `lost` the last column -inf. Grid: (columns / 128, lists), 128 threads.

KERNEL guard_rows(const u32 *__restrict__ positions, u32 *__restrict__ flags, u32 *__restrict__ words, u32 stride, u32 columns,
                  u32 first_row, u32 window, u32 prompt_rule, u32 prompt_len) {
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    const bool there = c < columns;
    const u32 position = there ? positions[static_cast<u64>(blockIdx.y) * stride + c] : 0;
    u32 largest = position;
    for (int step = 16; step > 0; step >>= 1) largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    if (threadIdx.x % 32 == 0) atomicMax(words + 2, largest);
    if (blockIdx.y > 0) return;
    const u32 scored = columns - first_row;
    bool flag = false;
    if (there && c >= first_row) {
        const bool prompt = prompt_rule == 1 ? c < prompt_len : prompt_rule == 2 && position < prompt_len;
        flag = prompt || c - first_row >= scored - min(window, scored);
        flags[c - first_row] = flag ? 1 : 0;
    }
    const u32 votes = __ballot_sync(FULL_WARP, flag);
    if (threadIdx.x % 32 == 0 && votes != 0) atomicAdd(words + 1, static_cast<u32>(__popc(votes)));
}

KERNEL zscore(const float *__restrict__ raw, const u32 *__restrict__ flags, float *__restrict__ z, u32 raw_columns, u32 dropped, u32 rule,
              u32 population) {
    SHARED float slots[33];
    const float *from = raw + static_cast<u64>(blockIdx.x) * raw_columns;
    const u32 columns = raw_columns - dropped;
    float *to = z + static_cast<u64>(blockIdx.x) * columns;
    if (rule == 3) {
        for (u32 c = threadIdx.x; c < columns; c += blockDim.x) to[c] = from[dropped + c];
        return;
    }
    float sum = 0.0f, seen = 0.0f;
    for (u32 c = threadIdx.x; c < raw_columns; c += blockDim.x)
        if (flags == nullptr || flags[c] == 0) {
            sum += from[c];
            seen += 1.0f;
        }
    const float count = block_sum(seen, slots); // whole numbers below 2^24: exact in any order
    const float mean = block_sum(sum, slots) / count;
    float squares = 0.0f;
    for (u32 c = threadIdx.x; c < raw_columns; c += blockDim.x)
        if (flags == nullptr || flags[c] == 0) {
            const float off = from[c] - mean;
            squares += off * off;
        }
    squares = block_sum(squares, slots);
    const float degrees = population ? count : count - 1.0f;
    const float deviation = degrees > 0.0f ? sqrtf(squares / degrees) : 0.0f;
    float divisor = deviation;
    if (rule == 0 && deviation < 1e-6f) divisor = 1.0f;
    if (rule == 1 && deviation < 1e-8f) divisor = 1.0f;
    if (rule == 2) divisor = deviation > 1e-6f ? deviation : 1e-6f;
    for (u32 c = threadIdx.x; c < columns; c += blockDim.x) to[c] = (from[dropped + c] - mean) / divisor;
}

#define MT_WORDS 624
#define MT_SHIFT 397

DEVICE u32 mt_joined(u32 high, u32 low, u32 far) {
    const u32 joined = (high & 0x80000000u) | (low & 0x7fffffffu);
    return far ^ (joined >> 1) ^ (joined & 1u ? 0x9908b0dfu : 0u);
}
DEVICE u32 mt_tempered(u32 word) {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}
// The next 624 words out of the last: three spans, each of which needs words of the one before.
DEVICE void mt_refill(const u32 *old, u32 *next) {
    const u32 ends[4] = {0, MT_WORDS - MT_SHIFT, 2 * (MT_WORDS - MT_SHIFT), MT_WORDS};
    for (u32 span = 0; span < 3; span++) {
        for (u32 i = ends[span] + threadIdx.x; i < ends[span + 1]; i += blockDim.x) {
            const u32 far = span == 0 ? old[i + MT_SHIFT] : next[i - (MT_WORDS - MT_SHIFT)];
            next[i] = mt_joined(old[i], i + 1 < MT_WORDS ? old[i + 1] : next[0], far);
        }
        __syncthreads();
    }
}

KERNEL mt19937(u32 *__restrict__ state, float *__restrict__ z, const u32 *__restrict__ order, u64 count, u64 skip, u32 columns) {
    SHARED u32 words[2][MT_WORDS];
    SHARED u32 first;
    u32 now = 0;
    if (threadIdx.x == 0) first = state[MT_WORDS];
    for (u32 i = threadIdx.x; i < MT_WORDS; i += blockDim.x) words[0][i] = state[i];
    __syncthreads();
    u32 next = first;
    u64 drawn = 0;
    while (drawn < skip + count) {
        if (next == MT_WORDS) {
            mt_refill(words[now], words[1 - now]);
            now = 1 - now;
            next = 0;
        }
        const u64 left = skip + count - drawn;
        const u32 take = left < MT_WORDS - next ? static_cast<u32>(left) : MT_WORDS - next;
        for (u32 i = threadIdx.x; i < take; i += blockDim.x) {
            if (drawn + i < skip) continue;
            const u64 draw = drawn + i - skip;
            float *value = z + static_cast<u64>(order[draw / columns]) * columns + draw % columns;
            const float u = __fmul_rn(static_cast<float>(mt_tempered(words[now][next + i]) & 0xffffffu), 5.9604645e-8f);
            *value = __fadd_rn(*value, __fmul_rn(u, 1e-6f));
        }
        drawn += take;
        next += take;
    }
    // The words of the last round may still be read above; nothing writes them any more.
    for (u32 i = threadIdx.x; i < MT_WORDS; i += blockDim.x) state[i] = words[now][i];
    if (threadIdx.x == 0) state[MT_WORDS] = next;
}

KERNEL combine(const float *__restrict__ in, const u32 *__restrict__ start, const u32 *__restrict__ rows, const u32 *__restrict__ how,
               const u32 *__restrict__ flags, u32 *__restrict__ words, float *__restrict__ out, u32 columns, u32 lost) {
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x, list = blockIdx.y;
    if (c >= columns) return;
    const u32 begin = start[list], end = start[list + 1], rule = how[list];
    float value = rule == 3 ? 0.0f : bits_to_f32(0x7fc00000u);
    if (rule != 3 && begin < end) {
        value = in[static_cast<u64>(rows[begin]) * columns + c];
#pragma unroll 8
        for (u32 i = begin + 1; i < end; i++) {
            const float other = in[static_cast<u64>(rows[i]) * columns + c];
            if (rule == 0) value = other > value || other != other ? other : value;
            else value += other;
        }
        const float count = static_cast<float>(end - begin);
        if (rule == 1) value = value / count;
        if (rule == 2) value = __fmul_rn(value, 1.0f / count);
    }
    if (words != nullptr && value != value) atomicOr(words, 1u);
    if (flags != nullptr && flags[c] != 0) value = INFINITY_F;
    if (lost && c == columns - 1) value = -INFINITY_F;
    out[static_cast<u64>(list) * columns + c] = value;
}
