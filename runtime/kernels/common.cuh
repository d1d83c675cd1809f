// Shared by every kernel file: element types, roundings, warp and block reductions, and thin names for the few instructions that
// C++ has no word for. The same text compiles with NVRTC for a GPU and, with EMULATED defined, as plain C++ on a CPU (emulate.h),
// where every name below has a second body of the same meaning.
//
// Element types are compile-time settings: ELEM for activations and weights, CACHE for the KV cache; 0 = f32, 1 = f16, 2 = bf16.
// Values are held in f32 inside kernels; `narrow_*` rounds to nearest even where a kernel's header says so.

#ifdef EMULATED
#include "emulate.h"
#else
#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name)                                                                                             \
    extern __shared__ __align__(128) unsigned char name##_bytes[];                                                             \
    type *name = reinterpret_cast<type *>(name##_bytes)
#define INFINITY_F __int_as_float(0x7f800000)
#define LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

#ifndef ELEM
#define ELEM 0
#endif
#ifndef CACHE
#define CACHE ELEM
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

struct alignas(16) vec16 {
    u32 x, y, z, w;
};

// ---- roundings ---------------------------------------------------------------------------------------------------------------

#ifndef EMULATED
DEVICE float f16_to_f32(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEVICE u16 f32_to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE u16 f32_to_bf16(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE float bits_to_f32(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 f32_to_bits(float value) { return __float_as_uint(value); }
#endif
DEVICE float bf16_to_f32(u16 bits) { return bits_to_f32(static_cast<u32>(bits) << 16); }

#if ELEM == 0
typedef float elem;
DEVICE float widen_e(elem value) { return value; }
DEVICE elem narrow_e(float value) { return value; }
#elif ELEM == 1
typedef u16 elem;
DEVICE float widen_e(elem value) { return f16_to_f32(value); }
DEVICE elem narrow_e(float value) { return f32_to_f16(value); }
#else
typedef u16 elem;
DEVICE float widen_e(elem value) { return bf16_to_f32(value); }
DEVICE elem narrow_e(float value) { return f32_to_bf16(value); }
#endif
// The value that a tensor of type `elem` would hold.
DEVICE float rounded_e(float value) { return widen_e(narrow_e(value)); }

#if CACHE == 0
typedef float celem;
DEVICE float widen_c(celem value) { return value; }
DEVICE celem narrow_c(float value) { return value; }
#elif CACHE == 1
typedef u16 celem;
DEVICE float widen_c(celem value) { return f16_to_f32(value); }
DEVICE celem narrow_c(float value) { return f32_to_f16(value); }
#else
typedef u16 celem;
DEVICE float widen_c(celem value) { return bf16_to_f32(value); }
DEVICE celem narrow_c(float value) { return f32_to_bf16(value); }
#endif
DEVICE float rounded_c(float value) { return widen_c(narrow_c(value)); }

// Two 16-bit elements of one 32-bit word, low half first.
#if ELEM == 1
DEVICE float low_e(u32 word) { return f16_to_f32(static_cast<u16>(word)); }
DEVICE float high_e(u32 word) { return f16_to_f32(static_cast<u16>(word >> 16)); }
#else
DEVICE float low_e(u32 word) { return bits_to_f32(word << 16); }
DEVICE float high_e(u32 word) { return bits_to_f32(word & 0xffff0000u); }
#endif
#if ELEM != 0
DEVICE u32 pack_e(float low, float high) {
#ifdef EMULATED
    return static_cast<u32>(narrow_e(low)) | static_cast<u32>(narrow_e(high)) << 16;
#else
    u32 word;
#if ELEM == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
    return word;
#endif
}
#endif

// ---- memory ------------------------------------------------------------------------------------------------------------------

#ifndef EMULATED
// Data that is read once: kept out of L1.
DEVICE vec16 load_stream(const void *address) {
    vec16 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}
// Data that another block of the same launch wrote: read from L2.
DEVICE float load_l2(const float *address) { return __ldcg(address); }
// Two of them, at an address of whole pairs.
DEVICE void load_pair_l2(float *to, const float *address) {
    asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "l"(address));
}
DEVICE void cp_async16(void *shared, const void *global, bool valid) {
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0; // the rest is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- programmatic dependent launch: work before grid_wait() may not touch what the launch before writes -----------------------
DEVICE void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void grid_release() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- matrix instructions -------------------------------------------------------------------------------------------------------
// d[16 x 8] += a[16 x 16] * b[16 x 8], f32 sums. With g = lane / 4, t = lane % 4: a = {(g, 2t..2t+1), (g + 8, 2t..), (g, 2t + 8..),
// (g + 8, 2t + 8..)}, b = {(2t..2t+1, g), (2t + 8.., g)}, d = {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}.
DEVICE void mma_16x8x16(float *d, const u32 *a, const u32 *b) {
#if ELEM == 1
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Four 8 x 8 tiles of 16-bit elements; lane l gives the address of row l % 8 of tile l / 8 (16 bytes).
DEVICE void ldmatrix_x4(u32 *r, const void *row) {
    const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
// The same, each tile transposed.
DEVICE void ldmatrix_x4_trans(u32 *r, const void *row) {
    const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
// 2 to the power of `value`, within 2^-22 of it relatively; subnormal results are 0.
DEVICE float exp2_ftz(float value) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}
#endif

// ---- reductions in a fixed order -----------------------------------------------------------------------------------------------

#define FULL_WARP 0xffffffffu

// Butterfly over the 32 lanes; every lane gets the sum.
DEVICE float warp_sum(float value) {
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}
DEVICE float warp_max(float value) {
    for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, step));
    return value;
}
// Sum over a block of whole warps (at most 32); every thread gets it. `slots` holds 33 floats in shared memory; may be used again
// after the call.
DEVICE float block_sum(float value, float *slots) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) slots[warp] = value;
    __syncthreads();
    if (warp == 0) {
        const float sum = warp_sum(lane < warps ? slots[lane] : 0.0f);
        if (lane == 0) slots[32] = sum;
    }
    __syncthreads();
    return slots[32];
}

// One output of the splitmix64 generator from this state (traces/src/hash.rs).
DEVICE u64 splitmix64(u64 state) {
    u64 z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The elements of 16 bytes, widened.
#define VECTOR_E (16 / static_cast<int>(sizeof(elem)))
DEVICE void unpack_e(float *to, const vec16 &v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if ELEM == 0
        to[i] = bits_to_f32(words[i]);
#else
        to[2 * i] = low_e(words[i]), to[2 * i + 1] = high_e(words[i]);
#endif
    }
}

// ---- rows of logits ---------------------------------------------------------------------------------------------------------------

// Smaller for larger logits, equal for +0 and -0, largest for NaN. With the id below it, a key that orders logits descending, lower id
// first.
DEVICE u32 rank_of(float logit) {
    if (logit != logit) return 0xffffffffu;
    const u32 bits = f32_to_bits(logit + 0.0f);
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}
DEVICE float logit_of_rank(u32 rank) { return bits_to_f32(rank >> 31 ? rank : ~rank & 0x7fffffffu); }
DEVICE u64 key_of(float logit, u32 id) { return static_cast<u64>(rank_of(logit)) << 32 | id; }
#define NO_KEY 0xffffffffffffffffull

// Elements at..at + 7 of a row of `count`, widened; -inf beyond its end.
DEVICE void load_8(const elem *row, u32 at, u32 count, float *to) {
    if (at + 8 <= count && (reinterpret_cast<u64>(row + at) & 15) == 0) {
        for (int i = 0; i < 8 / VECTOR_E; i++) unpack_e(to + VECTOR_E * i, reinterpret_cast<const vec16 *>(row + at)[i]);
        return;
    }
    for (u32 i = 0; i < 8; i++) to[i] = at + i < count ? widen_e(row[at + i]) : -INFINITY_F;
}

// ---- sequences ---------------------------------------------------------------------------------------------------------------------
// One sequence of a decode batch. K and V lie as [layers][kv_heads][capacity][head_dim] of `celem` from k_base and v_base on; `rows` rows
// of each head are live. Absolute positions of the rows lie as [kv_heads][capacity] u32, or as [layers][kv_heads][capacity] where layers
// may keep different rows. Lies in device memory, so that a recorded graph reads it anew at every replay.
struct Slot {
    u64 k_base, v_base;
    u64 positions;       // address, 0: not kept
    u32 rows;            // live rows before this step's row is appended
    u32 capacity;        // rows from one head to the next
    u32 position;        // absolute position of the token fed
    u32 rope_index;      // rotary index of the token fed
    u32 token;           // token fed
    u32 active;          // 0: this slot of the batch is empty; its outputs are left alone
    u32 position_layers; // layers that have positions of their own; 1: the first layer's serve all
    u32 unused;
};
