// What a step row says about its logits.
//
// logits_summary  For each row of logits [rows][vocab], widened exactly to f32: the `wanted` best ids and their logits (logit
//                 descending, lower id first, NaN after everything, +0 equal to -0), ln(sum(exp)) in f64, whether all are finite, and
//                 the order-free hash: for two seeds the wrapping sum of splitmix64(seed ^ (id << 32 | bits)), -0 as +0, NaN as
//                 0x7fc00000. Grid: (blocks of a row, rows), 256 threads; a block takes `slices` runs of 2048 ids, the last block of a
//                 row to arrive combines. Rows whose slot is not active are left alone.
//
// The sum of exp is made of chunks of 256 ids, whatever the grid: in a warp, each lane sums eight neighbours relative to the chunk's
// maximum, then a butterfly; the chunks are scaled to the row's maximum and summed by 256 threads (stride 256), then a butterfly in
// each warp, then over the warps in order. So decode and prefill, one row or many, give the same bits.
//
// Candidates for the best ids: keys that lie below a bar, an upper bound of the last key wanted. Where at least `wanted` threads hold
// a key below the bar, the `wanted`-th smallest of their minima becomes the new bar, so that at most 7 * (wanted - 1) + wanted keys
// of a slice are ever kept, whatever the input.

constexpr u32 THREADS = 256, EACH = 8, SLICE = THREADS * EACH, CHUNK = 32 * EACH, WARPS = THREADS / 32;
constexpr u32 MOST = 64;                  // largest `wanted`
constexpr u32 FULL = 256;                 // candidates that are kept unsorted
constexpr u32 ROOM = FULL + EACH * MOST;  // candidates after one more slice, and no more

struct LogitsRecord {
    u64 hash[2];
    double logsumexp; // NaN where it is no number
    u32 finite;
    u32 found; // ids that the row has to give, at most `wanted`
};

struct Candidates {
    alignas(16) u64 minima[THREADS];
    alignas(16) u64 keys[ROOM];
    u64 bar; // keys from here on are out
    u32 count;
};

DEVICE void clear(Candidates &best) {
    __syncthreads();
    if (threadIdx.x == 0) best.bar = NO_KEY, best.count = 0;
    __syncthreads();
}

// Sorts the candidates and drops all but the best `wanted`.
DEVICE void settle(Candidates &best, u32 wanted) {
    constexpr u32 HELD = ROOM / THREADS;
    const u32 count = best.count;
    u64 mine[HELD];
    u32 smaller[HELD];
    for (u32 n = 0; n < HELD; n++) {
        const u32 at = n * THREADS + threadIdx.x;
        mine[n] = at < count ? best.keys[at] : NO_KEY;
        smaller[n] = 0;
    }
    for (u32 i = 0; i < count; i++) {
        const u64 key = best.keys[i];
        for (u32 n = 0; n < HELD; n++) smaller[n] += key < mine[n];
    }
    __syncthreads();
    // Keys differ, since they hold the id.
    for (u32 n = 0; n < HELD; n++)
        if (mine[n] != NO_KEY && smaller[n] < wanted) {
            best.keys[smaller[n]] = mine[n];
            if (smaller[n] == wanted - 1) best.bar = mine[n];
        }
    if (threadIdx.x == 0) best.count = min(count, wanted);
    __syncthreads();
}

// Takes up to EACH keys of every thread.
DEVICE void offer(Candidates &best, const u64 *keys, u32 wanted) {
    u64 least = NO_KEY;
    for (u32 i = 0; i < EACH; i++) least = min(least, keys[i]);
    const u32 hits = __syncthreads_count(least < best.bar);
    if (hits == 0) return;
    if (hits >= wanted) {
        best.minima[threadIdx.x] = least;
        __syncthreads();
        u32 smaller = 0;
#pragma unroll 16
        for (u32 i = 0; i < THREADS; i++) smaller += best.minima[i] < least;
        if (smaller == wanted - 1) best.bar = least + 1;
        __syncthreads();
    }
    const u64 bar = best.bar;
    for (u32 i = 0; i < EACH; i++)
        if (keys[i] < bar) best.keys[atomicAdd(&best.count, 1u)] = keys[i];
    __syncthreads();
    if (best.count > FULL) settle(best, wanted);
}

// Sum over the block, a butterfly in each warp and then the warps in order; every thread gets it.
template <class T> DEVICE T block_total(T value, T *slots) {
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();
    T sum = slots[0];
    for (u32 i = 1; i < WARPS; i++) sum += slots[i];
    return sum;
}

// Maximum and sum of exp(x - maximum) over the eight logits of each lane. -inf alone: 0, or NaN where there is NaN.
DEVICE void chunk_exp(const float *x, float &largest, double &sum) {
    largest = x[0];
    for (u32 i = 1; i < EACH; i++) largest = fmaxf(largest, x[i]);
    largest = warp_max(largest);
    // NaN throughout.
    if (largest != largest) largest = -INFINITY_F;
    sum = 0.0;
    for (u32 i = 0; i < EACH; i++) {
        const double gap = static_cast<double>(x[i]) - static_cast<double>(largest);
        if (largest > -INFINITY_F) sum += exp(gap);
        else if (x[i] != x[i]) sum = static_cast<double>(x[i]);
    }
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, step);
}

// ln(sum(exp)) of a row from its chunks.
DEVICE double total_exp(const float *largest, const double *sums, u32 chunks) {
    SHARED float tops[WARPS];
    SHARED double slots[WARPS];
    float top = -INFINITY_F;
    for (u32 i = threadIdx.x; i < chunks; i += THREADS) top = fmaxf(top, __ldcg(largest + i));
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (u32 i = 0; i < WARPS; i++) top = fmaxf(top, tops[i]);
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < chunks; i += THREADS) {
        const double gap = static_cast<double>(__ldcg(largest + i)) - static_cast<double>(top);
        const double part = __ldcg(sums + i);
        // Both -inf: the sum is 0, or NaN.
        sum += gap != gap ? part : part * exp(gap);
    }
    sum = block_total(sum, slots);
    return static_cast<double>(top) + log(sum);
}

// True in the block of a row that arrives last; what the others wrote may then be read by `__ldcg`.
DEVICE bool last_of_row(u32 *arrived) {
    SHARED u32 last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last) __threadfence();
    return last != 0;
}

KERNEL LAUNCH_BOUNDS(256, 4) logits_summary(const elem *logits, const Slot *slots, LogitsRecord *records, u32 *top_ids,
                                            float *top_logits, u64 *block_keys, u64 *block_sums, float *chunk_tops,
                                            double *chunk_sums, u32 *arrived, u64 stride, u32 vocab, u32 wanted, u32 slices,
                                            u64 seed_a, u64 seed_b) {
    SHARED Candidates best;
    SHARED u64 totals[WARPS];
    grid_release();
    grid_wait();
    const u32 row = blockIdx.y, blocks = gridDim.x, chunks = (vocab + CHUNK - 1) / CHUNK;
    if (slots != nullptr && slots[row].active == 0) return;
    const elem *from = logits + row * stride;
    chunk_tops += static_cast<u64>(row) * chunks;
    chunk_sums += static_cast<u64>(row) * chunks;
    block_keys += static_cast<u64>(row) * blocks * wanted;
    block_sums += static_cast<u64>(row) * blocks * 3;

    clear(best);
    u64 hash_a = 0, hash_b = 0, odd = 0;
    for (u32 slice = 0; slice < slices; slice++) {
        const u32 first = (blockIdx.x * slices + slice) * SLICE;
        if (first >= vocab) break;
        const u32 at = first + threadIdx.x * EACH;
        float x[EACH];
        load_8(from, at, vocab, x);
        u64 keys[EACH];
        for (u32 i = 0; i < EACH; i++) {
            keys[i] = NO_KEY;
            if (at + i >= vocab) continue;
            keys[i] = key_of(x[i], at + i);
            const u32 bits = x[i] != x[i] ? 0x7fc00000u : f32_to_bits(x[i] + 0.0f);
            const u64 word = static_cast<u64>(at + i) << 32 | bits;
            hash_a += splitmix64(seed_a ^ word);
            hash_b += splitmix64(seed_b ^ word);
            odd |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        float largest;
        double sum;
        chunk_exp(x, largest, sum);
        const u32 chunk = first / CHUNK + threadIdx.x / 32;
        if (threadIdx.x % 32 == 0 && chunk < chunks) chunk_tops[chunk] = largest, chunk_sums[chunk] = sum;
        offer(best, keys, wanted);
    }
    settle(best, wanted);
    hash_a = block_total(hash_a, totals);
    hash_b = block_total(hash_b, totals);
    odd = block_total(odd, totals);
    if (threadIdx.x < wanted)
        block_keys[blockIdx.x * wanted + threadIdx.x] = threadIdx.x < best.count ? best.keys[threadIdx.x] : NO_KEY;
    if (threadIdx.x == 0) {
        u64 *to = block_sums + blockIdx.x * 3;
        to[0] = hash_a, to[1] = hash_b, to[2] = odd;
    }
    if (!last_of_row(arrived + row)) return;

    clear(best);
    const u32 held = blocks * wanted;
    for (u32 first = 0; first < held; first += SLICE) {
        u64 keys[EACH];
        for (u32 i = 0; i < EACH; i++) {
            const u32 at = first + i * THREADS + threadIdx.x;
            keys[i] = at < held ? __ldcg(block_keys + at) : NO_KEY;
        }
        offer(best, keys, wanted);
    }
    settle(best, wanted);
    if (threadIdx.x < wanted) {
        const bool there = threadIdx.x < best.count;
        const u32 id = there ? static_cast<u32>(best.keys[threadIdx.x]) : 0xffffffffu;
        top_ids[row * wanted + threadIdx.x] = id;
        top_logits[row * wanted + threadIdx.x] = there ? widen_e(from[id]) : bits_to_f32(0x7fc00000u);
    }
    u64 sums[3] = {0, 0, 0};
    for (u32 i = threadIdx.x; i < blocks; i += THREADS)
        for (u32 n = 0; n < 3; n++) sums[n] += __ldcg(block_sums + i * 3 + n);
    for (u32 n = 0; n < 3; n++) sums[n] = block_total(sums[n], totals);
    const double logsumexp = total_exp(chunk_tops, chunk_sums, chunks);
    if (threadIdx.x == 0) {
        LogitsRecord record;
        record.hash[0] = sums[0], record.hash[1] = sums[1];
        record.logsumexp = logsumexp;
        record.finite = sums[2] == 0;
        record.found = best.count;
        records[row] = record;
        arrived[row] = 0;
    }
}
