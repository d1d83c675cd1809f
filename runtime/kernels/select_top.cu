// The best columns of each ranking, as cache rows. Grid of every kernel: (lists), 1024 threads.
//
// top_k           rows[list][0 .. prefix) = 0 .. prefix; then the `count` columns c of scores[list][columns] with the highest scores, as prefix
//                 + c, ascending. Ties go to the lower column, with `higher` to the higher one; zeros of either sign are equal; a NaN
//                 ranks by its bits and is for the caller to refuse. Four passes over eight bits of the ordered scores find the score
//                 of the last column taken, one more takes the columns in order. Integer atomics in shared memory alone.
// top_k_falling   The same columns by falling score (ties as above): chosen as there, then sorted by (score, column) in a bitonic
//                 network over `width` keys, a power of two >= count: in shared memory where `keys` is null (width * 8 bytes), else in
//                 keys[list][width].
// rows_in_order   rows[list][i] = i for i < count.

#define THREADS 1024

// Orders as the score does: larger score, larger number.
DEVICE u32 ordered(float score) {
    const u32 bits = score == 0.0f ? 0u : f32_to_bits(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Cut {
    u32 key;   // the last key taken
    u32 equal; // columns with that key that are taken
    u32 among; // columns with that key
};

// `count` >= 1 and <= columns. Every thread gets the answer.
DEVICE Cut find_cut(const float *scores, u32 columns, u32 count) {
    SHARED u32 bins[256];
    SHARED u32 found[3];
    u32 prefix = 0, left = count, among = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
        __syncthreads();
        const u32 mask = shift == 24 ? 0u : 0xffffffffu << (shift + 8);
        for (u32 c = threadIdx.x; c < columns; c += blockDim.x) {
            const u32 key = ordered(scores[c]);
            if ((key & mask) == prefix) atomicAdd(&bins[key >> shift & 255u], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            // Lane l holds the eight bins from 255 - 8 l down.
            const u32 top = 255 - 8 * threadIdx.x;
            u32 own = 0;
            for (u32 i = 0; i < 8; i++) own += bins[top - i];
            u32 above = own;
            for (u32 step = 1; step < 32; step *= 2) {
                const u32 other = __shfl_up_sync(FULL_WARP, above, step);
                if (threadIdx.x >= step) above += other;
            }
            above -= own;
            if (above < left && left <= above + own) {
                u32 bin = top;
                while (above + bins[bin] < left) above += bins[bin--];
                found[0] = bin;
                found[1] = left - above;
                found[2] = bins[bin];
            }
        }
        __syncthreads();
        prefix |= found[0] << shift;
        left = found[1];
        among = found[2];
        __syncthreads();
    }
    return Cut{prefix, left, among};
}

// How many threads before this one say yes, and in all; `slots` holds 33 words.
DEVICE u32 rank_in_block(bool yes, u32 *slots, u32 *total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, votes = __ballot_sync(FULL_WARP, yes);
    if (lane == 0) slots[warp] = static_cast<u32>(__popc(votes));
    __syncthreads();
    if (warp == 0) {
        const u32 own = lane < blockDim.x / 32 ? slots[lane] : 0;
        u32 sum = own;
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(FULL_WARP, sum, step);
            if (lane >= step) sum += other;
        }
        slots[lane] = sum - own;
        if (lane == 31) slots[32] = sum;
    }
    __syncthreads();
    const u32 before = slots[warp] + static_cast<u32>(__popc(votes & ((1u << lane) - 1u)));
    *total = slots[32];
    __syncthreads();
    return before;
}

// Calls put(place, column, key) for every column taken, places ascending with the columns.
template <class Put> DEVICE void take(const float *scores, u32 columns, u32 count, bool higher, Put put) {
    SHARED u32 slots[33];
    const Cut cut = find_cut(scores, columns, count);
    u32 equal_before = 0, taken_before = 0, total;
    for (u32 start = 0; start < columns; start += blockDim.x) {
        const u32 c = start + threadIdx.x;
        const u32 key = c < columns ? ordered(scores[c]) : 0;
        const bool equal = c < columns && key == cut.key;
        const u32 rank = equal_before + rank_in_block(equal, slots, &total);
        equal_before += total;
        const bool wins = equal && (higher ? rank >= cut.among - cut.equal : rank < cut.equal);
        const bool taken = wins || (c < columns && key > cut.key);
        const u32 place = taken_before + rank_in_block(taken, slots, &total);
        taken_before += total;
        if (taken) put(place, c, key);
    }
}

KERNEL LAUNCH_BOUNDS(1024, 1)
top_k(const float *__restrict__ scores, u32 *__restrict__ rows, u32 columns, u32 count, u32 prefix, u32 higher) {
    u32 *to = rows + static_cast<u64>(blockIdx.x) * (prefix + count);
    for (u32 i = threadIdx.x; i < prefix; i += blockDim.x) to[i] = i;
    if (count == 0) return;
    take(scores + static_cast<u64>(blockIdx.x) * columns, columns, count, higher != 0,
         [=](u32 place, u32 column, u32) { to[prefix + place] = prefix + column; });
}

KERNEL LAUNCH_BOUNDS(1024, 1)
top_k_falling(const float *__restrict__ scores, u32 *__restrict__ rows, u64 *__restrict__ keys, u32 columns, u32 count, u32 width,
              u32 prefix, u32 higher) {
    DYNAMIC_SHARED(u64, shared_keys);
    u64 *sorted = keys == nullptr ? shared_keys : keys + static_cast<u64>(blockIdx.x) * width;
    u32 *to = rows + static_cast<u64>(blockIdx.x) * (prefix + count);
    for (u32 i = threadIdx.x; i < prefix; i += blockDim.x) to[i] = i;
    if (count == 0) return;
    // Ascending keys: falling scores, then the column that wins a tie.
    const u32 flip = higher ? 0xffffffffu : 0u;
    take(scores + static_cast<u64>(blockIdx.x) * columns, columns, count, higher != 0,
         [=](u32 place, u32 column, u32 key) { sorted[place] = static_cast<u64>(~key) << 32 | (column ^ flip); });
    for (u32 i = count + threadIdx.x; i < width; i += blockDim.x) sorted[i] = ~0ull;
    __syncthreads();
    for (u32 size = 2; size <= width; size *= 2)
        for (u32 step = size / 2; step > 0; step /= 2) {
            for (u32 i = threadIdx.x; i < width / 2; i += blockDim.x) {
                const u32 low = i / step * 2 * step + i % step, high = low + step;
                const u64 a = sorted[low], b = sorted[high];
                if ((a > b) == ((low & size) == 0)) {
                    sorted[low] = b;
                    sorted[high] = a;
                }
            }
            __syncthreads();
        }
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) to[prefix + i] = prefix + (static_cast<u32>(sorted[i]) ^ flip);
}

KERNEL rows_in_order(u32 *__restrict__ rows, u32 count) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) rows[static_cast<u64>(blockIdx.x) * count + i] = i;
}
