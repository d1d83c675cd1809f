// Cache rows by keep-set, from one buffer to another. K and V lie as [layers][kv_heads][capacity][row_bytes]; keep is [lists][count], the
// list of a layer and KV head being layer * layer_step + head * head_step. Bytes are moved as they are.
//
// gather_rows       K and V. `planted` 1: V takes rows 0 .. count instead; 2: in the last layer's last head the last slot whose row moves
//                   keeps what lies in that slot. Rows go in 16-byte pieces where their length allows, else in 4-byte ones.
//                   Grid: (slots / 64, layers * kv_heads), 256 threads.
// gather_positions  u32 positions, [kv_heads][capacity] or [layers][kv_heads][capacity] on either side: from_heads, to_heads = kv_heads
//                   or layers * kv_heads. Grid: (slots / 256, to_heads), 256 threads.

#define SLOTS 64

// The last slot whose row moves; `count` where none does.
DEVICE u32 last_moved(const u32 *keep, u32 count) {
    for (u32 slot = count; slot > 0; slot--)
        if (keep[slot - 1] != slot - 1) return slot - 1;
    return count;
}

// Four pieces under way in each thread: reads of all of them come before the writes.
template <class Piece>
DEVICE void move_rows(const Piece *from, Piece *to, const u32 *keep, u32 pieces, u32 begin, u32 end, u32 stale, bool in_place) {
    const u32 total = (end - begin) * pieces;
    for (u32 start = threadIdx.x; start < total; start += blockDim.x * 4) {
        Piece held[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 at = start + i * blockDim.x;
            if (at >= total) break;
            const u32 slot = begin + at / pieces;
            const u32 row = in_place || slot == stale ? slot : keep[slot];
            held[i] = from[static_cast<u64>(row) * pieces + at % pieces];
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 at = start + i * blockDim.x;
            if (at >= total) break;
            to[static_cast<u64>(begin) * pieces + at] = held[i];
        }
    }
}

template <class Piece>
DEVICE void move_both(u64 k_from, u64 v_from, u64 k_to, u64 v_to, const u32 *keep, u32 row_bytes, u32 begin, u32 end, u32 stale, bool in_place) {
    const u32 pieces = row_bytes / sizeof(Piece);
    move_rows(reinterpret_cast<const Piece *>(k_from), reinterpret_cast<Piece *>(k_to), keep, pieces, begin, end, stale, false);
    move_rows(reinterpret_cast<const Piece *>(v_from), reinterpret_cast<Piece *>(v_to), keep, pieces, begin, end, stale, in_place);
}

KERNEL gather_rows(u64 k_from, u64 v_from, u64 k_to, u64 v_to, const u32 *__restrict__ keep, u32 count, u32 kv_heads, u32 layer_step,
                   u32 head_step, u32 from_capacity, u32 to_capacity, u32 row_bytes, u32 planted) {
    const u32 unit = blockIdx.y;
    const u32 *own = keep + static_cast<u64>(unit / kv_heads * layer_step + unit % kv_heads * head_step) * count;
    const u64 from = static_cast<u64>(unit) * from_capacity * row_bytes, to = static_cast<u64>(unit) * to_capacity * row_bytes;
    const u32 begin = blockIdx.x * SLOTS, end = min(count, begin + SLOTS);
    const u32 stale = planted == 2 && unit + 1 == gridDim.y ? last_moved(own, count) : count;
    if (row_bytes % 16 == 0) move_both<vec16>(k_from + from, v_from + from, k_to + to, v_to + to, own, row_bytes, begin, end, stale, planted == 1);
    else move_both<u32>(k_from + from, v_from + from, k_to + to, v_to + to, own, row_bytes, begin, end, stale, planted == 1);
}

KERNEL gather_positions(const u32 *__restrict__ from, u32 *__restrict__ to, const u32 *__restrict__ keep, u32 count, u32 kv_heads,
                        u32 layer_step, u32 head_step, u32 from_heads, u32 from_capacity, u32 to_capacity) {
    const u32 slot = blockIdx.x * blockDim.x + threadIdx.x, unit = blockIdx.y;
    if (slot >= count) return;
    const u32 *own = keep + static_cast<u64>(unit / kv_heads * layer_step + unit % kv_heads * head_step) * count;
    to[static_cast<u64>(unit) * to_capacity + slot] = from[static_cast<u64>(unit % from_heads) * from_capacity + own[slot]];
}
