// One layer's attention for short chunks (decode and verification) over the paged bfloat16 cache, from the fused
// projection on: rotate queries and keys, store the new keys and values, attend, put splits together. sm_90a.
//
// The grid is rows x splits x key-value heads; a program has WARPS warps, STREAM_WARPS (1, 2 or 4) of them to a
// stream, which share out the queries of the heads that share a key-value head in tiles of 16.
// - A stream takes every STREAMS-th block of 16 keys and has a ring of STAGES blocks of its own, so no warp waits for
//   another while it reads the cache.
// - Old positions of the cache were written by kernels that have ended long ago, so the rings are filled BEFORE the wait
//   for the kernel that makes the projection (griddepcontrol.wait).
// - The chunk's own keys and values never take the way through the cache: they go from the projection to shared memory
//   and, in the split that attends to them, to their slots.
// - Splits: each leaves its sums in memory, and the program that ends last puts a head's together.
// - Beside the result goes the largest magnitude of each token's heads, which the quantisation that follows needs.
//
// Compiled for D (64 or 128), GROUP (query heads a key-value head), Q (queries a row, GROUP * Q <= 64), ROTARY_FLOAT,
// WARPS, STREAM_WARPS and STAGES.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr u32 BLOCK = 16;  // keys; the cache's block size
constexpr u32 M = GROUP * Q;
constexpr u32 TILES = (M + 15) / 16;
static_assert(WARPS % STREAM_WARPS == 0, "a stream's warps belong to one program");
static_assert(TILES <= 2 * STREAM_WARPS, "more than two tiles a warp do not fit into its registers");
constexpr u32 OWN_TILES = (TILES + STREAM_WARPS - 1) / STREAM_WARPS;  // of a warp
constexpr u32 STREAMS = WARPS / STREAM_WARPS;
constexpr u32 ROWS = 16 * OWN_TILES * STREAM_WARPS;
constexpr u32 ROW_BYTES = 2 * D;
constexpr u32 CHUNKS = ROW_BYTES / 16;
constexpr u32 HALF_BLOCK = BLOCK * ROW_BYTES;  // the keys, or the values, of a block
constexpr u32 THREADS = 32 * WARPS;
#define NEVER __int_as_float(0xFF800000)  // minus infinity; NVRTC has no constant for it

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// 16-byte chunk of a row of D values; rows of eight lie in different banks.
__device__ __forceinline__ u32 place(u32 row, u32 chunk) { return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4); }

__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 bytes) {  // bytes below 16: the rest is zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float low_of(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(u32 both) { return __uint_as_float(both & 0xFFFF0000u); }
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint4 load_vector(const u16* from) { return *(const uint4*)from; }

// Eight neighbours of the rotary table.
__device__ __forceinline__ void load_angles(float (&to)[8], const void* table, u64 at) {
#if ROTARY_FLOAT
    const float4 a = *(const float4*)((const float*)table + at), b = *(const float4*)((const float*)table + at + 4);
    to[0] = a.x; to[1] = a.y; to[2] = a.z; to[3] = a.w; to[4] = b.x; to[5] = b.y; to[6] = b.z; to[7] = b.w;
#else
    const uint4 v = load_vector((const u16*)table + at);
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) { to[2 * i] = low_of(words[i]); to[2 * i + 1] = high_of(words[i]); }
#endif
}

// Values [8 c, 8 c + 8) of a head and their partners half a head further, rotated by the token's position.
__device__ __forceinline__ void rotate(uint4& first, uint4& second, const void* table, long long position, u32 c) {
    float cos1[8], cos2[8], sin1[8], sin2[8];
    const u64 entry = (u64)position * (2 * D) + 8 * c;
    load_angles(cos1, table, entry);
    load_angles(cos2, table, entry + D / 2);
    load_angles(sin1, table, entry + D);
    load_angles(sin2, table, entry + D + D / 2);
    u32* a = (u32*)&first;
    u32* b = (u32*)&second;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float x0 = low_of(a[i]), x1 = high_of(a[i]), y0 = low_of(b[i]), y1 = high_of(b[i]);
        a[i] = pack(x0 * cos1[2 * i] + y0 * sin1[2 * i], x1 * cos1[2 * i + 1] + y1 * sin1[2 * i + 1]);
        b[i] = pack(y0 * cos2[2 * i] + x0 * sin2[2 * i], y1 * cos2[2 * i + 1] + x1 * sin2[2 * i + 1]);
    }
}

struct Sums {  // of a warp: its tiles of 16 queries
    float o[OWN_TILES][D / 8][4];
    float peak[OWN_TILES][2];
    float total[OWN_TILES][2];
};

// Sixteen keys and values in shared memory. Of an old block `seen` keys count; of the chunk's own, which are the last Q
// positions, query i sees the keys up to its own, from `first_real` on (those before have negative positions).
__device__ __forceinline__ void attend(
    Sums& sums, u32 q_at, u32 keys, u32 values, u32 seen, bool is_own, u32 first_real, float scale) {
    const u32 lane = threadIdx.x % 32;
    float s[OWN_TILES][2][4] = {};
    const u32 key_row = (lane & 7) + (lane >> 4) * 8, key_chunk = (lane >> 3) & 1;
    const u32 q_row = (lane & 7) + ((lane >> 3) & 1) * 8, q_chunk = lane >> 4;
#pragma unroll
    for (u32 step = 0; step < D / 16; step++) {
        u32 k[4];
        load_matrices(k, keys + place(key_row, 2 * step + key_chunk));
#pragma unroll
        for (u32 t = 0; t < OWN_TILES; t++) {
            u32 q[4];
            load_matrices(q, q_at + place(16 * t + q_row, 2 * step + q_chunk));
            multiply(s[t][0], q, k[0], k[1]);
            multiply(s[t][1], q, k[2], k[3]);
        }
    }
    const u32 column = 2 * (lane % 4);
    u32 p[OWN_TILES][4];
#pragma unroll
    for (u32 t = 0; t < OWN_TILES; t++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {  // rows lane / 4 and eight further
            const u32 row = 16 * (t + OWN_TILES * (threadIdx.x / 32 % STREAM_WARPS)) + lane / 4 + 8 * half;
            const u32 last = is_own ? row / GROUP : seen - 1;
            float top = NEVER;
#pragma unroll
            for (u32 n = 0; n < 2; n++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    float& score = s[t][n][2 * half + e];
                    const u32 key = 8 * n + column + e;
                    if (key > last || (is_own && key < first_real)) score = NEVER;
                    top = fmaxf(top, score);
                }
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2)) * scale;
            const float peak = fmaxf(sums.peak[t][half], top);
            const float base = peak == NEVER ? 0.0f : peak;
            const float shrink = exp2_of(sums.peak[t][half] - base);
            float total = 0.0f;
#pragma unroll
            for (u32 n = 0; n < 2; n++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    float& score = s[t][n][2 * half + e];
                    score = exp2_of(score * scale - base);
                    total += score;
                }
            sums.total[t][half] = sums.total[t][half] * shrink + total;
            sums.peak[t][half] = peak;
            if (shrink != 1.0f) {
#pragma unroll
                for (u32 n = 0; n < D / 8; n++) {
                    sums.o[t][n][2 * half] *= shrink;
                    sums.o[t][n][2 * half + 1] *= shrink;
                }
            }
        }
        p[t][0] = pack(s[t][0][0], s[t][0][1]);
        p[t][1] = pack(s[t][0][2], s[t][0][3]);
        p[t][2] = pack(s[t][1][0], s[t][1][1]);
        p[t][3] = pack(s[t][1][2], s[t][1][3]);
    }
    const u32 value_row = (lane & 7) + ((lane >> 3) & 1) * 8, value_chunk = lane >> 4;
#pragma unroll
    for (u32 pair = 0; pair < D / 16; pair++) {
        u32 v[4];
        load_matrices_transposed(v, values + place(value_row, 2 * pair + value_chunk));
#pragma unroll
        for (u32 t = 0; t < OWN_TILES; t++) {
            multiply(sums.o[t][2 * pair], p[t], v[0], v[1]);
            multiply(sums.o[t][2 * pair + 1], p[t], v[2], v[3]);
        }
    }
}

// The warps of a stream wait for each other: what one has copied all may read, what all have read may be overwritten.
__device__ __forceinline__ void stream_meets(u32 stream) {
    if (STREAM_WARPS == 1) __syncwarp();
    else asm volatile("bar.sync %0, %1;" ::"r"(1 + stream), "n"(32 * STREAM_WARPS) : "memory");
}

__device__ __forceinline__ float read_past_l1(const float* from) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
    return value;
}
__device__ __forceinline__ float4 read_four_past_l1(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}

// Eight values of one query and head, from their sums; and into `largest` the greatest magnitude among them, as bits.
__device__ __forceinline__ void put(const float (&sum)[8], float total, u16* to, u32* largest) {
    const float inverse = 1.0f / (total == 0.0f ? 1.0f : total);
    u32 words[4], top = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float a = sum[2 * i] * inverse, b = sum[2 * i + 1] * inverse;
        words[i] = pack(a, b);
        top = max(top, max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b))));  // NaN is the largest
    }
    *(uint4*)to = make_uint4(words[0], words[1], words[2], words[3]);
    atomicMax(largest, top);
}

extern "C" __global__ void __launch_bounds__(THREADS) decode_attention(
    const u16* qkv, const void* rotary, const long long* positions, const long long* slots, u16* cache,
    const int* block_tables, const int* kv_lens, u16* out, float* amax, float* partial, float* partial_peaks,
    float* partial_totals, u32* counters, u64 qkv_stride, u64 table_stride, u64 block_stride, u64 slot_stride,
    u64 value_offset, u32 num_kv_heads, u32 num_splits, float scale) {
    extern __shared__ __align__(128) unsigned char raw[];
    __shared__ u32 largest[Q];
    __shared__ u32 arrived;
    const u32 kv_head = blockIdx.x % num_kv_heads, split = blockIdx.x / num_kv_heads % num_splits;
    const u32 row = blockIdx.x / num_kv_heads / num_splits;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 stream = warp / STREAM_WARPS, member = threadIdx.x % (32 * STREAM_WARPS);
    const u32 q_at = shared_address(raw), own_keys = q_at + ROWS * ROW_BYTES, own_values = own_keys + HALF_BLOCK;
    const u32 ring = own_values + HALF_BLOCK + stream * (STAGES * 2 * HALF_BLOCK);
    const u32 num_heads = num_kv_heads * GROUP;

    asm volatile("griddepcontrol.launch_dependents;");
    const int kv_len = kv_lens[row];
    const u32 old = kv_len > (int)Q ? kv_len - Q : 0;
    const u32 first_real = kv_len >= (int)Q ? 0 : Q - (kv_len > 0 ? kv_len : 0);
    const u32 blocks = (old + BLOCK - 1) / BLOCK, share = (blocks + num_splits - 1) / num_splits;
    const u32 begin = min(split * share, blocks), end = min(begin + share, blocks);
    const bool has_own = split == 0;
    const int* table = block_tables + row * table_stride;

    auto fetch = [&](u32 block, u32 stage) {
        const u16* from = cache + (u64)table[block] * block_stride + kv_head * D;
        const u32 to = ring + stage * (2 * HALF_BLOCK);
#pragma unroll
        for (u32 i = member; i < BLOCK * CHUNKS; i += 32 * STREAM_WARPS) {
            const u32 key = i / CHUNKS, chunk = i % CHUNKS;
            const u32 bytes = block * BLOCK + key < old ? 16 : 0;
            const u16* at = from + key * slot_stride + 8 * chunk;
            copy_async(to + place(key, chunk), at, bytes);
            copy_async(to + HALF_BLOCK + place(key, chunk), at + value_offset, bytes);
        }
    };
    u32 next = begin + stream;
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) {
        if (next < end) fetch(next, stage);
        next += STREAMS;
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    if (threadIdx.x < Q) largest[threadIdx.x] = 0;
    asm volatile("griddepcontrol.wait;" ::: "memory");

    // All loads of queries before the first store: a store could alias what is loaded after it.
    constexpr u32 TURNS = (ROWS * (CHUNKS / 2) + THREADS - 1) / THREADS;
    uint4 firsts[TURNS], seconds[TURNS];
    long long at_position[TURNS];
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        const u32 i = threadIdx.x + turn * THREADS, m = i / (CHUNKS / 2), c = i % (CHUNKS / 2), query = m / GROUP;
        firsts[turn] = seconds[turn] = make_uint4(0, 0, 0, 0);
        at_position[turn] = -1;
        if (m < M && query >= first_real) {
            const u32 token = row * Q + query;
            const u16* from = qkv + token * qkv_stride + (kv_head * GROUP + m % GROUP) * D + 8 * c;
            firsts[turn] = load_vector(from);
            seconds[turn] = load_vector(from + D / 2);
            at_position[turn] = positions[token];
        }
    }
#pragma unroll
    for (u32 turn = 0; turn < TURNS; turn++) {
        const u32 i = threadIdx.x + turn * THREADS, m = i / (CHUNKS / 2), c = i % (CHUNKS / 2);
        if (at_position[turn] >= 0) rotate(firsts[turn], seconds[turn], rotary, at_position[turn], c);
        if (m < ROWS) {
            *(uint4*)(raw + place(m, c)) = firsts[turn];
            *(uint4*)(raw + place(m, c + CHUNKS / 2)) = seconds[turn];
        }
    }
    if (has_own) {
        unsigned char* keys = raw + ROWS * ROW_BYTES;
        unsigned char* values = keys + HALF_BLOCK;
        for (u32 i = threadIdx.x; i < BLOCK * (CHUNKS / 2); i += THREADS) {
            const u32 key = i / (CHUNKS / 2), c = i % (CHUNKS / 2);
            uint4 k1 = make_uint4(0, 0, 0, 0), k2 = k1, v1 = k1, v2 = k1;
            if (key < Q && key >= first_real) {
                const u32 token = row * Q + key;
                const u16* from = qkv + token * qkv_stride + (num_heads + kv_head) * D + 8 * c;
                k1 = load_vector(from);
                k2 = load_vector(from + D / 2);
                rotate(k1, k2, rotary, positions[token], c);
                v1 = load_vector(from + num_kv_heads * D);
                v2 = load_vector(from + num_kv_heads * D + D / 2);
                const long long slot = slots[token];
                if (slot >= BLOCK) {  // otherwise the null block's: nobody reads it
                    u16* to = cache + (u64)slot * slot_stride + kv_head * D + 8 * c;
                    *(uint4*)to = k1;
                    *(uint4*)(to + D / 2) = k2;
                    *(uint4*)(to + value_offset) = v1;
                    *(uint4*)(to + value_offset + D / 2) = v2;
                }
            }
            *(uint4*)(keys + place(key, c)) = k1;
            *(uint4*)(keys + place(key, c + CHUNKS / 2)) = k2;
            *(uint4*)(values + place(key, c)) = v1;
            *(uint4*)(values + place(key, c + CHUNKS / 2)) = v2;
        }
    }
    __syncthreads();

    Sums sums = {};
#pragma unroll
    for (u32 t = 0; t < OWN_TILES; t++) sums.peak[t][0] = sums.peak[t][1] = NEVER;
    const u32 warp_q = q_at + (warp % STREAM_WARPS) * (16 * OWN_TILES * ROW_BYTES);
    u32 stage = 0;
    for (u32 block = begin + stream; block < end; block += STREAMS) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        stream_meets(stream);
        if (next < end) fetch(next, stage == 0 ? STAGES - 1 : stage - 1);
        next += STREAMS;
        asm volatile("cp.async.commit_group;" ::: "memory");
        const u32 at = ring + stage * (2 * HALF_BLOCK);
        attend(sums, warp_q, at, at + HALF_BLOCK, min(BLOCK, old - block * BLOCK), false, 0, scale);
        if (++stage == STAGES) stage = 0;
    }
    if (has_own && stream == (end - begin) % STREAMS)
        attend(sums, warp_q, own_keys, own_values, 0, true, first_real, scale);

    // The streams' sums meet in shared memory, where the rings were.
    float* merged = (float*)(raw + ROWS * ROW_BYTES + 2 * HALF_BLOCK);  // [STREAMS][ROWS][D]
    float* peaks = merged + STREAMS * ROWS * D;                         // [STREAMS][ROWS]
    float* totals = peaks + STREAMS * ROWS;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (u32 t = 0; t < OWN_TILES; t++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            float total = sums.total[t][half];
            total += __shfl_xor_sync(0xffffffff, total, 1);
            total += __shfl_xor_sync(0xffffffff, total, 2);
            const u32 m = 16 * (t + OWN_TILES * (warp % STREAM_WARPS)) + lane / 4 + 8 * half;
            const u32 at = stream * ROWS + m;
            if (lane % 4 == 0) { peaks[at] = sums.peak[t][half]; totals[at] = total; }
#pragma unroll
            for (u32 n = 0; n < D / 8; n++)
                *(float2*)(merged + at * D + 8 * n + 2 * (lane % 4)) =
                    make_float2(sums.o[t][n][2 * half], sums.o[t][n][2 * half + 1]);
        }
    __syncthreads();

    const u64 first_token = (u64)row * Q;
    // Element e = eight values of one query and head: what the streams, or behind them the splits, make of it.
    for (u32 e = threadIdx.x; e < M * (D / 8); e += THREADS) {
        const u32 m = e / (D / 8), c = e % (D / 8);
        float peak = NEVER;
        for (u32 s = 0; s < STREAMS; s++) peak = fmaxf(peak, peaks[s * ROWS + m]);
        const float base = peak == NEVER ? 0.0f : peak;
        float sum[8] = {}, total = 0.0f;
        for (u32 s = 0; s < STREAMS; s++) {
            const float weight = exp2_of(peaks[s * ROWS + m] - base);
            total += weight * totals[s * ROWS + m];
            const float* from = merged + (s * ROWS + m) * D + 8 * c;
#pragma unroll
            for (u32 i = 0; i < 8; i++) sum[i] += weight * from[i];
        }
        const u64 token = first_token + m / GROUP, head = kv_head * GROUP + m % GROUP;
        if (num_splits == 1) {
            put(sum, total, out + (token * num_heads + head) * D + 8 * c, &largest[m / GROUP]);
        } else {
            const u64 at = (token * num_heads + head) * num_splits + split;
            float4* to = (float4*)(partial + at * D + 8 * c);
            to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
            if (c == 0) { partial_peaks[at] = peak; partial_totals[at] = total; }
        }
    }
    if (num_splits > 1) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            arrived = atomicAdd(counters + row * num_kv_heads + kv_head, 1);
            if (arrived == num_splits - 1) counters[row * num_kv_heads + kv_head] = 0;  // for the next layer
        }
        __syncthreads();
        if (arrived != num_splits - 1) return;
        __threadfence();
        for (u32 e = threadIdx.x; e < M * (D / 8); e += THREADS) {
            const u32 m = e / (D / 8), c = e % (D / 8);
            const u64 token = first_token + m / GROUP, head = kv_head * GROUP + m % GROUP;
            const u64 first = (token * num_heads + head) * num_splits;
            float peak = NEVER;
            for (u32 s = 0; s < num_splits; s++) peak = fmaxf(peak, read_past_l1(partial_peaks + first + s));
            const float base = peak == NEVER ? 0.0f : peak;
            float sum[8] = {}, total = 0.0f;
            for (u32 s = 0; s < num_splits; s++) {
                const float weight = exp2_of(read_past_l1(partial_peaks + first + s) - base);
                total += weight * read_past_l1(partial_totals + first + s);
                const float* from = partial + (first + s) * D + 8 * c;
                const float4 a = read_four_past_l1(from), b = read_four_past_l1(from + 4);
                const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                for (u32 i = 0; i < 8; i++) sum[i] += weight * values[i];
            }
            put(sum, total, out + (token * num_heads + head) * D + 8 * c, &largest[m / GROUP]);
        }
    }
    __syncthreads();
    if (threadIdx.x < Q) amax[(first_token + threadIdx.x) * num_kv_heads + kv_head] = __uint_as_float(largest[threadIdx.x]);
}
