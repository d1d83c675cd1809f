// Kernels as plain C++ on a CPU: every CUDA thread of a block is a fiber, blocks run one after the other. Same arithmetic in f32
// (fused multiply-adds as the compiler makes them, exp and log of the C library), same barriers and shuffles; no claim about speed, memory
// ordering between blocks, or races: a block that waits for another one hangs here and is refused on a GPU too.
//
// Checked here and not on a GPU: a barrier that some threads of a block never reach ends the process with a message.

#pragma once
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define KERNEL extern "C" void
#define DEVICE static inline
#define SHARED static
#define LAUNCH_BOUNDS(threads, blocks)
#define __restrict__
#define __global__
#define __device__
#define __constant__ static
#define __forceinline__ inline
#define INFINITY_F (__builtin_inff())

namespace emulated {
struct dim3 {
    unsigned x, y, z;
};
struct Fiber {
    void *stack_pointer = nullptr;
    char *stack = nullptr;
    dim3 thread{};
    bool done = false;
};
// A barrier of a warp or a block: arrivals of this round, and how many rounds have passed.
struct Barrier {
    unsigned arrived = 0, round = 0;
};
struct Warp {
    Barrier barrier;
    unsigned live = 0;
    uint64_t slots[32];
    bool set[32];
    // Operands of a matrix instruction: six words of each lane, or the address of a row.
    unsigned words[6][32];
    const void *rows[32];
};
struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier barrier;
    unsigned live = 0;
    unsigned current = 0;
    void *scheduler = nullptr;
    std::function<void()> body;
    std::vector<unsigned char> dynamic;
    unsigned progress = 0;
};
inline Block *block = nullptr;
inline dim3 thread_index, block_index, block_size, grid_size;

extern "C" void emulated_switch(void **from, void *to);
// Saves the callee-saved registers of the System V ABI on the old stack and takes up the new one.
__asm__(".text\n.weak emulated_switch\n.type emulated_switch,@function\nemulated_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

inline void yield() {
    Fiber &me = block->fibers[block->current];
    emulated_switch(&me.stack_pointer, block->scheduler);
}
inline Warp &warp() { return block->warps[block->current / 32]; }
inline unsigned lane() { return block->current % 32; }
inline void wait_at(Barrier &barrier, const unsigned &live) {
    const unsigned round = barrier.round;
    block->progress++;
    barrier.arrived++;
    while (barrier.round == round) {
        if (barrier.arrived >= live) {
            barrier.arrived = 0;
            barrier.round++;
            block->progress++;
            break;
        }
        yield();
    }
}
inline void finish() {
    Fiber &me = block->fibers[block->current];
    me.done = true;
    block->live--;
    warp().live--;
    block->progress++;
    yield();
}
extern "C" inline void emulated_entry() {
    block->body();
    finish();
    abort();
}
inline void run_block(unsigned threads) {
    constexpr size_t STACK = 64 * 1024;
    static std::vector<char *> stacks;
    while (stacks.size() < threads) stacks.push_back(static_cast<char *>(aligned_alloc(64, STACK)));
    Block &b = *block;
    b.fibers.assign(threads, Fiber{});
    b.warps.assign((threads + 31) / 32, Warp{});
    b.barrier = Barrier{};
    b.live = threads;
    for (unsigned t = 0; t < threads; t++) {
        Fiber &f = b.fibers[t];
        f.stack = stacks[t];
        f.thread = {t % block_size.x, t / block_size.x % block_size.y, t / (block_size.x * block_size.y)};
        // Entry address, then six registers; the stack is 16-byte aligned plus 8 at entry, as after a call.
        auto *top = reinterpret_cast<void **>(f.stack + STACK - 64);
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(&emulated_entry);
        for (int r = 0; r < 6; r++) *--top = nullptr;
        f.stack_pointer = top;
        b.warps[t / 32].live++;
    }
    while (b.live > 0) {
        const unsigned before = b.progress;
        for (unsigned t = 0; t < threads; t++) {
            if (b.fibers[t].done) continue;
            b.current = t;
            thread_index = b.fibers[t].thread;
            emulated_switch(&b.scheduler, b.fibers[t].stack_pointer);
        }
        if (b.progress == before) {
            fprintf(stderr, "emulated kernel: a barrier is not reached by all threads of block (%u, %u, %u)\n", block_index.x,
                    block_index.y, block_index.z);
            abort();
        }
    }
}
template <class... A, size_t... I> void call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A> *>(arguments[I])...);
}
template <class... A> void launch(void (*kernel)(A...), const unsigned *grid, const unsigned *threads, unsigned shared, void **arguments) {
    static Block only;
    block = &only;
    grid_size = {grid[0], grid[1], grid[2]};
    block_size = {threads[0], threads[1], threads[2]};
    only.dynamic.assign(shared + 256, 0xff);
    only.body = [=] { call(kernel, arguments, std::index_sequence_for<A...>{}); };
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                block_index = {x, y, z};
                std::memset(only.dynamic.data(), 0xff, only.dynamic.size()); // nothing may be read that was not written
                run_block(threads[0] * threads[1] * threads[2]);
            }
}
inline unsigned char *dynamic_shared() {
    auto address = reinterpret_cast<uintptr_t>(block->dynamic.data());
    return reinterpret_cast<unsigned char *>((address + 127) / 128 * 128);
}
// Every live lane of the warp gives a value; then each may read any lane's.
template <class T> uint64_t *exchange(T value) {
    Warp &w = warp();
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    w.slots[lane()] = bits;
    wait_at(w.barrier, w.live);
    return w.slots;
}
template <class T> T read_slot(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T> T shuffle(T value, unsigned from) {
    uint64_t *slots = exchange(value);
    const T result = read_slot<T>(slots[from % 32]);
    wait_at(warp().barrier, warp().live); // all have read before the next write
    return result;
}
} // namespace emulated

// Registered by name: the host finds `launch_<kernel>` in the library.
#define EMULATED_EXPORT(kernel)                                                                                                \
    extern "C" void launch_##kernel(const unsigned *grid, const unsigned *threads, unsigned shared, void **arguments) {        \
        emulated::launch(&kernel, grid, threads, shared, arguments);                                                           \
    }
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(emulated::dynamic_shared())

#define threadIdx (emulated::block->fibers[emulated::block->current].thread)
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)

inline void __syncthreads() { emulated::wait_at(emulated::block->barrier, emulated::block->live); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulated::wait_at(emulated::warp().barrier, emulated::warp().live); }
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T> T __shfl_sync(unsigned, T value, int from, int width = 32) {
    const unsigned lane = emulated::lane();
    return emulated::shuffle(value, lane / width * width + static_cast<unsigned>(from) % width);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int step, int width = 32) {
    const unsigned lane = emulated::lane(), to = lane ^ static_cast<unsigned>(step);
    return emulated::shuffle(value, to / width == lane / width ? to : lane);
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned step, int width = 32) {
    const unsigned lane = emulated::lane();
    return emulated::shuffle(value, lane % width >= step ? lane - step : lane);
}
template <class T> T __shfl_down_sync(unsigned, T value, unsigned step, int width = 32) {
    const unsigned lane = emulated::lane();
    return emulated::shuffle(value, lane % width + step < static_cast<unsigned>(width) ? lane + step : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
    emulated::Warp &w = emulated::warp();
    w.slots[emulated::lane()] = predicate ? 1 : 0;
    w.set[emulated::lane()] = true;
    emulated::wait_at(w.barrier, w.live);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++)
        if (w.set[i] && w.slots[i]) bits |= 1u << i;
    emulated::wait_at(w.barrier, w.live);
    w.set[emulated::lane()] = false;
    emulated::wait_at(w.barrier, w.live);
    return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline unsigned __activemask() { return 0xffffffffu; }
inline int __syncthreads_or(int predicate) {
    static int any;
    any = 0;
    __syncthreads();
    any |= predicate;
    __syncthreads();
    const int result = any;
    __syncthreads();
    return result;
}
inline int __syncthreads_count(int predicate) {
    static int count;
    count = 0;
    __syncthreads();
    count += predicate != 0;
    __syncthreads();
    const int result = count;
    __syncthreads();
    return result;
}

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T, class U> T atomicAdd(T *p, U v) { const T old = *p; *p = static_cast<T>(old + v); return old; }
template <class T, class U> T atomicMax(T *p, U v) { const T old = *p; if (static_cast<T>(v) > old) *p = static_cast<T>(v); return old; }
template <class T, class U> T atomicMin(T *p, U v) { const T old = *p; if (static_cast<T>(v) < old) *p = static_cast<T>(v); return old; }
template <class T, class U> T atomicOr(T *p, U v) { const T old = *p; *p = old | static_cast<T>(v); return old; }
template <class T, class U> T atomicAnd(T *p, U v) { const T old = *p; *p = old & static_cast<T>(v); return old; }
template <class T, class U> T atomicExch(T *p, U v) { const T old = *p; *p = static_cast<T>(v); return old; }
template <class T, class U, class V> T atomicCAS(T *p, U expected, V v) { const T old = *p; if (old == static_cast<T>(expected)) *p = static_cast<T>(v); return old; }

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64); }
inline float __uint_as_float(unsigned v) { float f; std::memcpy(&f, &v, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned v; std::memcpy(&v, &f, 4); return v; }
inline float __int_as_float(int v) { return __uint_as_float(static_cast<unsigned>(v)); }
inline int __float_as_int(float f) { return static_cast<int>(__float_as_uint(f)); }
inline long long __double_as_longlong(double d) { long long v; std::memcpy(&v, &d, 8); return v; }
inline double __longlong_as_double(long long v) { double d; std::memcpy(&d, &v, 8); return d; }
// One rounded operation each, never fused.
inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
inline float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
inline float __fdiv_rn(float a, float b) { return a / b; }

// __logf of sm_90 for numbers below 1: 64 pieces of the mantissa, a cut square, two truncations (runtime/src/sample/fast_log.rs).
struct LogLine {
    long long c0;
    int c1, c2;
};
static const LogLine LOG_LINES[64] = {
    {29510ll, 47272, 1454}, {6148432710ll, 46545, 1410}, {12203000646ll, 45840, 1370}, {18166489926ll, 45156, 1330}, {24041640776ll, 44492, 1292},
    {29831013190ll, 43847, 1254}, {35537077062ll, 43221, 1220}, {41162191688ll, 42612, 1184}, {46708667208ll, 42020, 1152}, {52178604870ll, 41444, 1118},
    {57574130504ll, 40884, 1088}, {62897230662ll, 40339, 1060}, {68149822278ll, 39809, 1036}, {73333732168ll, 39292, 1008}, {78450783046ll, 38788, 982},
    {83502646086ll, 38297, 958}, {88490939206ll, 37818, 932}, {93417288518ll, 37351, 910}, {98283180870ll, 36896, 890}, {103090078534ll, 36451, 866},
    {107839419206ll, 36018, 850}, {112532534086ll, 35594, 828}, {117170770760ll, 35180, 808}, {121755394888ll, 34776, 792}, {126287618886ll, 34380, 770},
    {130768622406ll, 33994, 754}, {135199564624ll, 33616, 736}, {139581543238ll, 33247, 722}, {143915623238ll, 32886, 708}, {148202869576ll, 32532, 692},
    {152444248902ll, 32186, 678}, {156640731974ll, 31847, 662}, {160793285448ll, 31516, 652}, {164902798150ll, 31191, 638}, {168970179398ll, 30872, 622},
    {172996260678ll, 30561, 614}, {176981869382ll, 30255, 600}, {180927816518ll, 29955, 586}, {184834904902ll, 29662, 578}, {188703847238ll, 29374, 566},
    {192535413574ll, 29091, 552}, {196330328902ll, 28814, 542}, {200089273158ll, 28542, 532}, {203812897608ll, 28276, 524}, {207501906758ll, 28014, 514},
    {211156931398ll, 27757, 506}, {214778549062ll, 27505, 498}, {218367394630ll, 27257, 488}, {221924049734ll, 27013, 476}, {225449096006ll, 26774, 468},
    {228943086408ll, 26540, 464}, {232406541126ll, 26309, 454}, {235840037702ll, 26082, 446}, {239244047174ll, 25859, 438}, {242619102024ll, 25640, 432},
    {245965656902ll, 25424, 422}, {249284195142ll, 25213, 418}, {252575208264ll, 25004, 408}, {255839150918ll, 24799, 402}, {259076424518ll, 24598, 398},
    {262287512390ll, 24399, 390}, {265472783176ll, 24204, 384}, {268632675142ll, 24012, 378}, {271767585606ll, 23823, 372},
};

inline float emulated_logf(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    const long long d = bits & 0x1ffff;
    long long square = 0;
    for (int j = 10; j < 17; j++) {
        if (d >> j & 1) square += ((d & ((1ll << j) - 1)) >> (18 - j)) + (1ll << (2 * j - 19));
    }
    const LogLine line = LOG_LINES[bits >> 17 & 63];
    const long long exponent = static_cast<long long>(bits >> 23) - 127;
    const long long sum = exponent * (1ll << 38) + line.c0 + line.c1 * d - line.c2 * square;
    unsigned long long size = static_cast<unsigned long long>(-sum) >> 2;
    int spare = 0;
    while (size >> spare >= 1u << 24) spare++;
    return -static_cast<float>(size >> spare << spare) * 0x1p-36f * 0x1.62e430p-1f;
}
// The C library has a symbol of that name.
#define __logf emulated_logf

inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }
inline double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
using std::fmaf;
using std::isfinite;
using std::isinf;
using std::isnan;
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

// ---- names of common.cuh -------------------------------------------------------------------------------------------------------

inline float bits_to_f32(unsigned bits) { return __uint_as_float(bits); }
inline unsigned f32_to_bits(float value) { return __float_as_uint(value); }
inline unsigned short f32_to_bf16(float value) {
    const unsigned bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float f16_to_f32(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 0x3ffu;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(fraction), -24);
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
inline unsigned short f32_to_f16(float value) {
    const unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u;
    const float size = std::fabs(value);
    if (value != value) return static_cast<unsigned short>(sign | 0x7fff);
    if (size < 6.103515625e-5f) return static_cast<unsigned short>(sign | static_cast<unsigned>(std::nearbyint(std::ldexp(size, 24))));
    const unsigned magnitude = bits & 0x7fffffffu, even = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    if (even >= 0x47800000u) return static_cast<unsigned short>(sign | 0x7c00);
    return static_cast<unsigned short>(sign | ((even - 0x38000000u) >> 13));
}
struct vec16;
template <class V = vec16> V load_stream(const void *address) { V v; std::memcpy(&v, address, sizeof(V)); return v; }
inline float load_l2(const float *address) { return *address; }
inline void load_pair_l2(float *to, const float *address) { to[0] = address[0], to[1] = address[1]; }
inline void cp_async16(void *shared, const void *global, bool valid) {
    if (valid) std::memcpy(shared, global, 16); else std::memset(shared, 0, 16);
}
inline void cp_async_commit() {}
template <int N> void cp_async_wait() {}
inline void grid_wait() {}
inline void grid_release() {}

namespace emulated {
inline float half_of(unsigned word, bool high, int elem) {
    const auto bits = static_cast<unsigned short>(high ? word >> 16 : word);
    return elem == 1 ? f16_to_f32(bits) : __uint_as_float(static_cast<unsigned>(bits) << 16);
}
} // namespace emulated
#ifndef ELEM
#define ELEM 0
#endif
inline void mma_16x8x16(float *d, const unsigned *a, const unsigned *b) {
    using namespace emulated;
    auto &words = warp().words;
    for (int i = 0; i < 4; i++) words[i][lane()] = a[i];
    for (int i = 0; i < 2; i++) words[4 + i][lane()] = b[i];
    __syncwarp();
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    for (int i = 0; i < 4; i++) {
        const int row = g + (i >= 2 ? 8 : 0), col = 2 * t + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; k++) {
            const int holder = k % 8 / 2;
            const unsigned left = words[(row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0)][row % 8 * 4 + holder];
            const unsigned right = words[4 + (k >= 8 ? 1 : 0)][col * 4 + holder];
            sum += static_cast<double>(half_of(left, k % 2 == 1, ELEM)) * half_of(right, k % 2 == 1, ELEM);
        }
        d[i] = static_cast<float>(sum);
    }
    __syncwarp();
}
namespace emulated {
inline void ldmatrix(unsigned *r, const void *row, bool transposed) {
    auto &rows = warp().rows;
    rows[lane()] = row;
    __syncwarp();
    for (int tile = 0; tile < 4; tile++) {
        const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
        unsigned short low, high;
        if (transposed) {
            low = static_cast<const unsigned short *>(rows[tile * 8 + 2 * t])[g];
            high = static_cast<const unsigned short *>(rows[tile * 8 + 2 * t + 1])[g];
        } else {
            low = static_cast<const unsigned short *>(rows[tile * 8 + g])[2 * t];
            high = static_cast<const unsigned short *>(rows[tile * 8 + g])[2 * t + 1];
        }
        r[tile] = static_cast<unsigned>(low) | static_cast<unsigned>(high) << 16;
    }
    __syncwarp();
}
} // namespace emulated
inline void ldmatrix_x4(unsigned *r, const void *row) { emulated::ldmatrix(r, row, false); }
inline void ldmatrix_x4_trans(unsigned *r, const void *row) { emulated::ldmatrix(r, row, true); }
inline float exp2_ftz(float value) { const float power = std::exp2(value); return power < 1.17549435e-38f ? 0.0f : power; }
