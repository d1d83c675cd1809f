// The next token of each row of logits: filters, draw, and the random stream that moves on.
//
// draw_argmax     The largest logit, lower id first. Grid: (blocks of 2048 ids, rows), 256 threads.
// draw_filtered   Temperature, top-k, top-p, min-p in this order, then a draw. Grid: (blocks of 8192 ids, rows), 1024 threads.
//
// Ranked: logit descending, lower id first, -inf never. p_i = exp((l_i - l_0) / temperature) over the first `top_k`, each operation
// rounded to f32 (exp in f64, rounded once), divided by their sum. min-p keeps p_i >= min_p * p_0; top-p the shortest prefix whose
// running sum reaches top_p (1 or more: off). Where either cuts, what is left is divided by its sum. Every sum runs in rank order in f32,
// by one thread: the bits of the sequential sum, at four cycles an element or so, which is what a draw over a whole vocabulary spends most
// of its time on.
//
// Draws: `kind` 1 is xorshift64 (13, 7, 17) with u = low 32 bits / 2^32, the first running sum above u, else the last; 2 the exponential
// race of torch on CUDA: U of element t from Philox4x32-10, key the seed, thread t mod `threads`, E = -__logf(U), as PyTorch has it,
// the largest p / E, lower id first.
//
// The blocks of a row count the ids by the upper 12 bits of their rank; the last to arrive does the rest alone. Up to 1024 survivors: the
// bins give a bound on the last key wanted (refined by 12 further bits at a time while more than 2048 keys lie below it), and those
// below it are sorted in shared memory. More: the row is sorted by 8 bits at a time, lowest first.
//
// A row with NaN or +inf, or with nothing but -inf, gets a status and leaves its stream alone. Rows whose slot is not active are left
// alone altogether.

constexpr u32 EACH = 8;
constexpr u32 WIDE = 1024;     // threads of draw_filtered
constexpr u32 FEW = 1024;      // survivors of the quick way
constexpr u32 LIST = 2 * FEW;  // keys sorted for it
constexpr u32 DIGIT = 12, BINS = 1 << DIGIT;
constexpr u32 WARPS = WIDE / 32;
constexpr u32 RADIX = 256;
constexpr u32 NO_ID = 0xffffffffu;
constexpr u32 XORSHIFT = 1;
constexpr u32 DRAWN = 0, NOT_FINITE = 1, NOTHING_LEFT = 2;

struct Stream {
    u64 seed, draws;
    u64 offset; // of the Philox stream, in numbers of 32 bits
    u64 word;   // state of xorshift
};

struct DrawRecord {
    u64 draw;       // draws of the stream before this one
    u64 rng_offset; // Philox offset, or draws, before this one
    u32 status;
    u32 token;
    u32 has_uniform;
    float uniform;
    u32 bad_id; // first id with NaN or +inf
    float bad_logit;
};

// What the blocks of a row have seen. All ones and `arrived` 0 between launches.
struct Seen {
    u64 best;
    u32 bad;
    u32 arrived;
};

struct Cut {
    u32 digit, below; // bin of the last key wanted, keys in lower bins
};

// Shared memory of draw_filtered.
struct Work {
    union {
        struct {
            u32 bins[BINS];
            u64 keys[LIST];
        };
        u32 counts[WARPS * RADIX];
    };
    alignas(16) float values[WIDE];
    alignas(16) float sums[WIDE];
    u32 slots[WARPS];
    Cut cut;
    u64 leader;
    u32 count, place;
    float total;
};

// ---- scan --------------------------------------------------------------------------------------------------------------------------

DEVICE u64 warp_least(u64 value) {
    for (int step = 16; step > 0; step >>= 1) value = min(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}

// This block's part of a row: best key, first id that cannot be drawn from, and the bins of what can (unless null).
DEVICE void scan(const elem *row, u32 vocab, u32 *bins, Seen *seen) {
    SHARED u64 least;
    SHARED u32 first_bad;
    if (threadIdx.x == 0) least = NO_KEY, first_bad = NO_ID;
    __syncthreads();
    const u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * EACH;
    float x[EACH];
    load_8(row, at, vocab, x);
    u64 best = NO_KEY;
    u32 bad = NO_ID;
    for (u32 i = 0; i < EACH; i++) {
        if (x[i] != x[i] || x[i] == INFINITY_F) {
            bad = min(bad, at + i);
        } else if (x[i] > -INFINITY_F) {
            const u64 key = key_of(x[i], at + i);
            best = min(best, key);
            if (bins != nullptr) atomicAdd(bins + (key >> (64 - DIGIT)), 1u);
        }
    }
    best = warp_least(best);
    if (threadIdx.x % 32 == 0 && best != NO_KEY) atomicMin(&least, best);
    if (bad != NO_ID) atomicMin(&first_bad, bad);
    __syncthreads();
    if (threadIdx.x == 0) {
        if (least != NO_KEY) atomicMin(&seen->best, least);
        if (first_bad != NO_ID) atomicMin(&seen->bad, first_bad);
    }
}

// True in the block of a row that arrives last; what the others wrote may then be read by `__ldcg`.
DEVICE bool last_of_row(Seen *seen) {
    SHARED u32 last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&seen->arrived, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last) __threadfence();
    return last != 0;
}

// Takes what was seen and makes it ready for the next launch.
DEVICE Seen take(Seen *seen) {
    Seen taken;
    taken.best = __ldcg(&seen->best), taken.bad = __ldcg(&seen->bad), taken.arrived = 0;
    __syncthreads();
    if (threadIdx.x == 0) seen->best = NO_KEY, seen->bad = NO_ID, seen->arrived = 0;
    return taken;
}

// Thread 0 writes the status of a row that cannot be drawn from.
DEVICE bool refused(const elem *row, Seen seen, const Stream &stream, DrawRecord *record) {
    if (seen.bad == NO_ID && seen.best != NO_KEY) return false;
    if (threadIdx.x == 0) {
        const bool odd = seen.bad != NO_ID;
        *record = DrawRecord{stream.draws, 0,       odd ? NOT_FINITE : NOTHING_LEFT,        NO_ID, 0, 0.0f,
                             seen.bad,     odd ? widen_e(row[seen.bad]) : 0.0f};
    }
    return true;
}

KERNEL LAUNCH_BOUNDS(256, 4) draw_argmax(const elem *logits, const Slot *slots, Stream *streams, DrawRecord *records, Seen *seen,
                                         u64 stride, u32 vocab) {
    grid_release();
    grid_wait();
    const u32 b = blockIdx.y;
    if (slots != nullptr && slots[b].active == 0) return;
    const elem *row = logits + b * stride;
    scan(row, vocab, nullptr, seen + b);
    if (!last_of_row(seen + b)) return;
    const Seen found = take(seen + b);
    Stream stream = streams[b];
    if (refused(row, found, stream, records + b) || threadIdx.x != 0) return;
    records[b] = DrawRecord{stream.draws, 0, DRAWN, static_cast<u32>(found.best), 0, 0.0f, NO_ID, 0.0f};
    streams[b].draws = stream.draws + 1;
}

// ---- ranking -------------------------------------------------------------------------------------------------------------------------

// Sum over the threads before this one.
DEVICE u32 sum_before(u32 value, u32 *slots) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 upto = value;
    for (u32 step = 1; step < 32; step <<= 1) {
        const u32 other = __shfl_up_sync(FULL_WARP, upto, step);
        if (lane >= step) upto += other;
    }
    __syncthreads();
    if (lane == 31) slots[warp] = upto;
    __syncthreads();
    u32 before = upto - value;
    for (u32 i = 0; i < warp; i++) before += slots[i];
    return before;
}

// The bin of the `wanted`-th key.
DEVICE Cut find_cut(Work &work, u32 wanted) {
    constexpr u32 MINE = BINS / WIDE;
    u32 sum = 0;
    for (u32 i = 0; i < MINE; i++) sum += work.bins[threadIdx.x * MINE + i];
    u32 before = sum_before(sum, work.slots);
    for (u32 i = 0; i < MINE; i++) {
        const u32 digit = threadIdx.x * MINE + i, held = work.bins[digit];
        if (before < wanted && wanted <= before + held) work.cut.digit = digit, work.cut.below = before;
        before += held;
    }
    __syncthreads();
    return work.cut;
}

DEVICE void clear_bins(Work &work) {
    for (u32 i = threadIdx.x; i < BINS; i += WIDE) work.bins[i] = 0;
    __syncthreads();
}

// Calls `use` with the key of every finite logit.
template <class Use> DEVICE void each_key(const elem *row, u32 vocab, Use use) {
    for (u32 at = threadIdx.x * EACH; at < vocab; at += WIDE * EACH) {
        float x[EACH];
        load_8(row, at, vocab, x);
        for (u32 i = 0; i < EACH; i++)
            if (x[i] > -INFINITY_F) use(key_of(x[i], at + i));
    }
}

// A bound above the `wanted` best keys, with at most LIST keys below it.
DEVICE u64 key_bound(const elem *row, u32 vocab, u32 wanted, Work &work) {
    u32 shift = 64 - DIGIT, below = 0;
    u64 prefix = 0;
    while (true) {
        const Cut cut = find_cut(work, wanted - below);
        const u32 upto = below + cut.below + work.bins[cut.digit];
        prefix = prefix << DIGIT | cut.digit;
        // Keys differ, so the last digit but four bits leaves at most 16 in a bin.
        if (upto <= LIST) return (prefix + 1) << shift;
        below += cut.below;
        __syncthreads();
        clear_bins(work);
        shift -= DIGIT;
        each_key(row, vocab, [&](u64 key) {
            if (key >> shift >> DIGIT == prefix) atomicAdd(work.bins + (key >> shift & (BINS - 1)), 1u);
        });
        __syncthreads();
    }
}

// Sorts the keys of a list of `size`, a power of two: a bitonic network.
DEVICE void sort_list(u64 *keys, u32 size) {
    for (u32 run = 2; run <= size; run <<= 1)
        for (u32 step = run / 2; step > 0; step >>= 1) {
            for (u32 pair = threadIdx.x; pair < size / 2; pair += WIDE) {
                const u32 low = pair / step * 2 * step + pair % step, high = low + step;
                const u64 a = keys[low], b = keys[high];
                if ((a > b) == ((low & run) == 0)) keys[low] = b, keys[high] = a;
            }
            __syncthreads();
        }
}

// The `wanted` best keys of a row in order, `wanted` at most FEW.
DEVICE void rank_few(const elem *row, u32 vocab, u32 wanted, u64 *to, Work &work) {
    const u64 bound = key_bound(row, vocab, wanted, work);
    if (threadIdx.x == 0) work.count = 0;
    __syncthreads();
    each_key(row, vocab, [&](u64 key) {
        if (key < bound) work.keys[atomicAdd(&work.count, 1u)] = key;
    });
    __syncthreads();
    u32 size = 2;
    while (size < work.count) size <<= 1;
    for (u32 i = work.count + threadIdx.x; i < size; i += WIDE) work.keys[i] = NO_KEY;
    __syncthreads();
    sort_list(work.keys, size);
    for (u32 i = threadIdx.x; i < wanted; i += WIDE) to[i] = work.keys[i];
    __syncthreads();
}

// Where the digits that tell two logits apart begin: those of bf16 and f16 lie in the upper 16 and 19 bits of the rank.
#if ELEM == 2
constexpr u32 FIRST_DIGIT = 48;
#elif ELEM == 1
constexpr u32 FIRST_DIGIT = 40;
#else
constexpr u32 FIRST_DIGIT = 32;
#endif

// All keys of a row in order, in `a` or in `b`. Each warp keeps the order of its stretch of the row.
DEVICE const u64 *rank_all(const elem *row, u32 vocab, u64 *a, u64 *b, Work &work) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
    const u32 stretch = (vocab + WIDE - 1) / WIDE * 32;
    const u32 begin = min(warp * stretch, vocab), end = min(begin + stretch, vocab);
    u32 *mine = work.counts + warp * RADIX;
    const u64 *from = nullptr;
    u64 *to = a;
    for (u32 shift = FIRST_DIGIT; shift < 64; shift += 8) {
        const auto key_at = [&](u32 i) { return from == nullptr ? key_of(widen_e(row[i]), i) : from[i]; };
        const auto digit_of = [&](u64 key) { return static_cast<u32>(key >> shift) & (RADIX - 1); };
        for (u32 i = threadIdx.x; i < WARPS * RADIX; i += WIDE) work.counts[i] = 0;
        __syncthreads();
        for (u32 i = begin + lane; i < end; i += 32) atomicAdd(mine + digit_of(key_at(i)), 1u);
        __syncthreads();
        // Thread t adds up digit t / 4 of eight warps, so that threads in order give digits in order and warps within them.
        u32 *group = work.counts + threadIdx.x % 4 * 8 * RADIX + threadIdx.x / 4;
        u32 sum = 0;
        for (u32 i = 0; i < 8; i++) sum += group[i * RADIX];
        u32 before = sum_before(sum, work.slots);
        for (u32 i = 0; i < 8; i++) {
            const u32 held = group[i * RADIX];
            group[i * RADIX] = before;
            before += held;
        }
        __syncthreads();
        for (u32 base = begin; base < end; base += 32) {
            const bool valid = base + lane < end;
            const u64 key = valid ? key_at(base + lane) : 0;
            const u32 digit = digit_of(key);
            u32 peers = __ballot_sync(FULL_WARP, valid);
            for (u32 bit = 0; bit < 8; bit++) {
                const bool set = digit >> bit & 1;
                const u32 same = __ballot_sync(FULL_WARP, set);
                peers &= set ? same : ~same;
            }
            const u32 place = mine[digit] + __popc(peers & below);
            __syncwarp();
            if (valid) {
                to[place] = key;
                if (peers >> lane == 1) mine[digit] = place + 1;
            }
            __syncwarp();
        }
        __syncthreads();
        from = to;
        to = to == a ? b : a;
    }
    return from;
}

// ---- probabilities -------------------------------------------------------------------------------------------------------------------

struct alignas(16) four {
    float a, b, c, d;
};

// Running sums of `values` in order from `sum` on, by one thread; the last of them.
DEVICE float running_sums(const float *values, float *sums, u32 count, float sum) {
    const four *from = reinterpret_cast<const four *>(values);
    four *to = reinterpret_cast<four *>(sums);
#pragma unroll 4
    for (u32 i = 0; i < count / 4; i++) {
        const four value = from[i];
        four upto;
        upto.a = __fadd_rn(sum, value.a);
        upto.b = __fadd_rn(upto.a, value.b);
        upto.c = __fadd_rn(upto.b, value.c);
        upto.d = sum = __fadd_rn(upto.c, value.d);
        to[i] = upto;
    }
    for (u32 i = count / 4 * 4; i < count; i++) sums[i] = sum = __fadd_rn(sum, values[i]);
    return sum;
}

// First place whose running sum satisfies `enough`, else `count`; `work.total` is the last sum made.
template <class Enough> DEVICE u32 first_sum(const float *masses, u32 count, Work &work, Enough enough) {
    __syncthreads();
    if (threadIdx.x == 0) work.place = count, work.total = 0.0f;
    for (u32 base = 0; base < count; base += WIDE) {
        const u32 here = min(count - base, WIDE);
        if (threadIdx.x < here) work.values[threadIdx.x] = masses[base + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) work.total = running_sums(work.values, work.sums, here, work.total);
        __syncthreads();
        if (threadIdx.x < here && enough(work.sums[threadIdx.x])) atomicMin(&work.place, base + threadIdx.x);
        __syncthreads();
        if (work.place < count) break;
    }
    return work.place;
}

DEVICE float sum_of(const float *masses, u32 count, Work &work) {
    first_sum(masses, count, work, [](float) { return false; });
    return work.total;
}

DEVICE void divide(float *masses, u32 count, float by) {
    for (u32 i = threadIdx.x; i < count; i += WIDE) masses[i] = __fdiv_rn(masses[i], by);
    __syncthreads();
}

// Probabilities of `count` ranked keys; how many survive top-p and min-p.
DEVICE u32 filter(const u64 *keys, u32 count, float *masses, float temperature, float top_p, float min_p, Work &work) {
    const float largest = logit_of_rank(static_cast<u32>(keys[0] >> 32));
    for (u32 i = threadIdx.x; i < count; i += WIDE) {
        const float gap = __fsub_rn(logit_of_rank(static_cast<u32>(keys[i] >> 32)), largest);
        masses[i] = static_cast<float>(exp(static_cast<double>(__fdiv_rn(gap, temperature))));
    }
    divide(masses, count, sum_of(masses, count, work));
    u32 kept = count;
    if (min_p > 0.0f) {
        if (threadIdx.x == 0) work.place = count;
        __syncthreads();
        const float floor = __fmul_rn(min_p, masses[0]);
        for (u32 i = threadIdx.x; i < count; i += WIDE)
            if (!(masses[i] >= floor)) atomicMin(&work.place, i);
        __syncthreads();
        kept = max(work.place, 1u);
    }
    if (top_p < 1.0f) {
        const u32 crossing = first_sum(masses, count, work, [=](float sum) { return sum >= top_p; });
        kept = min(kept, min(crossing + 1, count));
    }
    if (kept < count) divide(masses, kept, sum_of(masses, kept, work));
    return kept;
}

// ---- draws -----------------------------------------------------------------------------------------------------------------------------

// Philox4x32-10 (Salmon et al., SC 2011): component `which` of the block `counter`, `thread` under `key`.
DEVICE u32 philox(u64 key, u64 counter, u32 thread, u32 which) {
    u32 a = static_cast<u32>(counter), b = static_cast<u32>(counter >> 32), c = thread, d = 0;
    u32 low = static_cast<u32>(key), high = static_cast<u32>(key >> 32);
    for (u32 round = 0; round < 10; round++) {
        const u32 first = __umulhi(0xD2511F53u, a), second = __umulhi(0xCD9E8D57u, c);
        const u32 next_b = 0xCD9E8D57u * c, next_d = 0xD2511F53u * a;
        a = second ^ b ^ low, c = first ^ d ^ high;
        b = next_b, d = next_d;
        low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
    return which == 0 ? a : which == 1 ? b : which == 2 ? c : d;
}

// Uniform number in (0, 1] of element `id` of a fill by `threads` threads, each of which takes four numbers of a block in turn.
DEVICE float race_uniform(const Stream &stream, u32 threads, u32 id) {
    const u32 turn = id / threads;
    const u64 counter = (stream.offset + turn / 4 * 4) / 4;
    const float number = static_cast<float>(philox(stream.seed, counter, id % threads, turn % 4));
    return __fadd_rn(__fmul_rn(number, 0x1p-32f), 0x1p-33f);
}

DEVICE float exponential(float uniform) {
    if (uniform >= 1.0f - 0x1p-24f) return 0x1p-24f;
    return -__logf(uniform);
}

// Id with the largest quotient of mass and exponential.
DEVICE u32 race(const u64 *keys, const float *masses, u32 kept, const Stream &stream, u32 threads, Work &work) {
    if (threadIdx.x == 0) work.leader = NO_KEY;
    __syncthreads();
    u64 leader = NO_KEY;
    for (u32 i = threadIdx.x; i < kept; i += WIDE) {
        const u32 id = static_cast<u32>(keys[i]);
        const float quotient = __fdiv_rn(masses[i], exponential(race_uniform(stream, threads, id)));
        leader = min(leader, key_of(quotient, id));
    }
    leader = warp_least(leader);
    if (threadIdx.x % 32 == 0 && leader != NO_KEY) atomicMin(&work.leader, leader);
    __syncthreads();
    return static_cast<u32>(work.leader);
}

KERNEL LAUNCH_BOUNDS(1024, 1) draw_filtered(const elem *logits, const Slot *slots, Stream *streams, DrawRecord *records, Seen *seen,
                                            u32 *bins, u64 *keys, float *masses, u64 stride, u64 increment, u32 vocab, u32 room,
                                            u32 kind, u32 top_k, float temperature, float top_p, float min_p, u32 threads) {
    SHARED Work work;
    grid_release();
    grid_wait();
    const u32 b = blockIdx.y;
    if (slots != nullptr && slots[b].active == 0) return;
    const elem *row = logits + b * stride;
    bins += b * BINS;
    keys += static_cast<u64>(b) * 2 * room;
    masses += static_cast<u64>(b) * room;

    clear_bins(work);
    scan(row, vocab, work.bins, seen + b);
    for (u32 i = threadIdx.x; i < BINS; i += WIDE)
        if (work.bins[i] > 0) atomicAdd(bins + i, work.bins[i]);
    if (!last_of_row(seen + b)) return;

    const Seen found = take(seen + b);
    u32 finite = 0;
    for (u32 i = threadIdx.x; i < BINS; i += WIDE) {
        work.bins[i] = __ldcg(bins + i);
        finite += work.bins[i];
        bins[i] = 0;
    }
    Stream stream = streams[b];
    if (refused(row, found, stream, records + b)) return;
    if (threadIdx.x == 0) work.count = 0;
    __syncthreads();
    if (finite > 0) atomicAdd(&work.count, finite);
    __syncthreads();

    const u32 wanted = min(top_k, work.count);
    __syncthreads();
    const u64 *ranked = keys;
    if (wanted <= FEW) rank_few(row, vocab, wanted, keys, work);
    else ranked = rank_all(row, vocab, keys, keys + room, work);
    const u32 kept = filter(ranked, wanted, masses, temperature, top_p, min_p, work);

    DrawRecord record{stream.draws, stream.draws, DRAWN, NO_ID, 1, 0.0f, NO_ID, 0.0f};
    if (kind == XORSHIFT) {
        stream.word ^= stream.word << 13;
        stream.word ^= stream.word >> 7;
        stream.word ^= stream.word << 17;
        const float uniform = __fmul_rn(static_cast<float>(static_cast<u32>(stream.word)), 0x1p-32f);
        const u32 place = first_sum(masses, kept, work, [=](float sum) { return sum > uniform; });
        record.uniform = uniform;
        record.token = static_cast<u32>(ranked[min(place, kept - 1)]);
    } else {
        record.rng_offset = stream.offset;
        record.token = race(ranked, masses, kept, stream, threads, work);
        record.uniform = race_uniform(stream, threads, record.token);
        stream.offset += increment;
    }
    stream.draws++;
    if (threadIdx.x == 0) records[b] = record, streams[b] = stream;
}
