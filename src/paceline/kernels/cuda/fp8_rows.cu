// out[m, n] = (sum_k x[m, k] * w[n, k]) * x_scale[m] * w_scale[n] + bias[n] for up to 64 * WARPGROUPS rows m, E4M3
// operands, sm_90a.
//
// At so few rows the product is bound by reading w once, so everything here serves one aim: that device memory never
// idles, within this kernel and across kernels.
// - One program a multiprocessor, each with the same share of w's rows. One warp only fetches: tiles of w and x through
//   the tensor memory accelerator into a ring of stages in shared memory, as deep as shared memory allows.
// - Weights are constants, so that warp fills the whole ring with them BEFORE it waits for the kernel that produces x
//   (griddepcontrol.wait). The memory is busy while the small kernels between two products run.
// - x is the left operand of wgmma, 64 rows for each warpgroup, padded by letting it read whatever lies behind: rows
//   past the end come out as garbage and are not stored. So a tile may have any multiple of 8 of w's rows, and shares come out even.
// - Each sum has one fixed order, given by TILE: a row has the same bits in any batch that is cut the same way (up to 16
//   rows, and from there to 64).
//
// - Each program starts at another place of k. Otherwise all of them would ask for the same piece of x at the same time,
//   and a line of the L2 is handed out to one multiprocessor after the other.
// - With many rows it is x that keeps the L2 busy, since every multiprocessor needs all of it. CLUSTER programs work at
//   the same k: each fetches its share of x's rows and hands it to all of them.
//
// Compiled for one configuration: TILE (rows of w a tile, a multiple of 8 up to 256), ATOMS (128-byte pieces of k a
// stage: 1, 2 or 4), WARPGROUPS (64 rows of x each), CLUSTER (1, 2 or 4), FLOAT_OUT. WGMMA_* come with TILE.

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap { u64 opaque[16]; };

constexpr u32 ATOM = 128;                      // bytes: one row of the 128-byte swizzle
constexpr u32 ACCUMULATORS = TILE / 2;         // float registers a thread: 64 x TILE over 128 threads
constexpr u32 CONSUMERS = 128 * WARPGROUPS;
// Registers are handed from the fetching warps to those that hold the sums, which only whole warpgroups can do.
constexpr u32 FETCHERS = WARPGROUPS == 1 ? 64 : 128;
constexpr u32 FETCHER_REGISTERS = WARPGROUPS == 2 ? 40 : 32;
constexpr u32 CONSUMER_REGISTERS = WARPGROUPS == 2 ? 232 : WARPGROUPS == 3 ? 160 : 112;
constexpr u32 W_STAGE = TILE * ATOM * ATOMS;   // bytes
constexpr u32 PITCH = TILE % 16 == 8 ? TILE : TILE + 8;  // of a row of sums in shared memory: no bank conflicts

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// A box of [pieces of k][rows][128 bytes]; coordinates from the innermost out.
__device__ __forceinline__ void fetch(u32 to, const TensorMap* map, u32 barrier, u32 row, u32 piece, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(piece), "l"(policy) : "memory");
}

// The same box for the program itself and every other of its cluster, at the same places.
__device__ __forceinline__ void fetch_for_all(u32 to, const TensorMap* map, u32 barrier, u32 row, u32 piece, u64 policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %7, %6;"
        ::"r"(to), "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(piece), "l"(policy),
          "h"((unsigned short)((1 << CLUSTER) - 1)) : "memory");
}

__device__ __forceinline__ u32 rank_in_cluster() {
    if (CLUSTER == 1) return 0;
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Without `.release.cluster`, which would flush all memory in every step: what was read here was read by wgmma, which
// has ended.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n.reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
        ::"r"(barrier), "r"(rank) : "memory");
}
// A warp has done with a stage: its own weights, and the rows that every program of the cluster waits to overwrite.
__device__ __forceinline__ void release(u32 w_empty, u32 x_empty) {
    const u32 lane = threadIdx.x % 32;
    if (lane == 0) barrier_arrive(w_empty);
    if (CLUSTER == 1) {
        if (lane == 0) barrier_arrive(x_empty);
    } else if (lane < CLUSTER) {
        barrier_arrive_at(x_empty, lane);
    }
}
// Every thread of the cluster does both, in turn. At the start: all barriers are ready (they were fenced). At the end: nobody leaves while
// another may still write to its memory.
__device__ __forceinline__ void cluster_arrive() {
    if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    if (CLUSTER > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// wgmma's description of a K-major operand in the 128-byte swizzle: 8 rows are 1024 bytes.
__device__ __forceinline__ u64 operand(u32 address) {
    return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

__device__ __forceinline__ void multiply(float (&d)[ACCUMULATORS], u64 a, u64 b, u32 accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" WGMMA_ACCUMULATE ", 0;\n"
        "wgmma.mma_async.sync.aligned.m64n" WGMMA_N "k32.f32.e4m3.e4m3 {" WGMMA_D "}, %" WGMMA_A ", %" WGMMA_B
        ", p, 1, 1;\n}"
        : WGMMA_OUTPUTS
        : "l"(a), "l"(b), "r"(accumulate));
}

// wgmma writes d behind the compiler's back: nothing may move across the points where d is handed over.
__device__ __forceinline__ void hand_over(float (&d)[ACCUMULATORS]) {
#pragma unroll
    for (u32 i = 0; i < ACCUMULATORS; i++) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void store_pair(void* out, u64 at, float v0, float v1) {
    if (FLOAT_OUT) {
        asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"((float*)out + at), "f"(v0), "f"(v1) : "memory");
    } else {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(v1), "f"(v0));
        asm volatile("st.global.b32 [%0], %1;" ::"l"((unsigned short*)out + at), "r"(both) : "memory");
    }
}

// Weights are constants: this starts at once. At most `depth` stages are on their way at a time: more would not be
// faster, and would queue before the loads of the small kernels that everything else waits for.
__device__ __forceinline__ void fetch_weights(
    const TensorMap& map, u32 ring, u32 full, u32 empty, u32 mine, u32 first_step, u32 steps, u32 stages, u32 depth) {
    u64 once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    u32 row = blockIdx.x * TILE, step = first_step, stage = 0, parity = 1;  // a fresh barrier counts as released
    u32 behind = 0, behind_parity = 0;                                     // the stage issued `depth` stages ago
    for (u32 i = 0; i < mine; i++) {
        if (i + 1 == mine) asm volatile("griddepcontrol.launch_dependents;");
        barrier_wait(empty + 8 * stage, parity);
        if (i >= depth) {
            barrier_wait(full + 8 * behind, behind_parity);
            if (++behind == stages) { behind = 0; behind_parity ^= 1; }
        }
        barrier_expect(full + 8 * stage, W_STAGE);
        fetch(ring + stage * W_STAGE, &map, full + 8 * stage, row, step * ATOMS, once);
        if (++step == steps) step = 0;
        if (step == first_step) row += gridDim.x * TILE;
        if (++stage == stages) { stage = 0; parity ^= 1; }
    }
}

// The rows come from the kernel before this one.
__device__ __forceinline__ void fetch_rows(
    const TensorMap& map, u32 ring, u32 full, u32 empty, u32 box_rows, u32 mine, u32 first_step, u32 steps,
    u32 stages) {
    u64 often;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(often));
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const u32 piece = box_rows * ATOM, bytes = piece * ATOMS;
    const u32 share = box_rows / CLUSTER, first_row = rank_in_cluster() * share;
    u32 step = first_step, stage = 0, parity = 1;
    for (u32 i = 0; i < mine; i++) {
        barrier_wait(empty + 8 * stage, parity);
        barrier_expect(full + 8 * stage, bytes);
        if (CLUSTER == 1) {
            fetch(ring + stage * bytes, &map, full + 8 * stage, 0, step * ATOMS, often);
        } else {
#pragma unroll
            for (u32 atom = 0; atom < ATOMS; atom++)
                fetch_for_all(
                    ring + stage * bytes + atom * piece + first_row * ATOM, &map, full + 8 * stage, first_row,
                    step * ATOMS + atom, often);
        }
        if (++step == steps) step = 0;
        if (++stage == stages) { stage = 0; parity ^= 1; }
    }
}

__device__ __forceinline__ u32 pack(float v0, float v1) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(v1), "f"(v0));
    return both;
}

// One row of sums, of which this thread holds columns 8 j + 2 (lane % 4) and the next, goes out in 16-byte pieces: four
// neighbours exchange what they hold of four j. No shared memory, and nobody waits for another warp.
__device__ __forceinline__ void store_row(
    const float (&d)[ACCUMULATORS], u32 half, unsigned short* out, const float* w_scales, const float* bias,
    float x_scale, u32 n0, u32 outputs, bool is_real) {
    const u32 lane = threadIdx.x % 32, own = lane % 4;
#pragma unroll
    for (u32 j0 = 0; j0 < TILE / 8; j0 += 4) {
        u32 held[4], got[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 j = j0 + i, c = 8 * j + 2 * own;
            if (j >= TILE / 8) { held[i] = 0; continue; }
            float b0 = 0.0f, b1 = 0.0f;
            if (bias && n0 + c < outputs) { b0 = bias[n0 + c]; b1 = bias[n0 + c + 1]; }
            held[i] = pack(
                d[4 * j + 2 * half] * (w_scales[c] * x_scale) + b0,
                d[4 * j + 2 * half + 1] * (w_scales[c + 1] * x_scale) + b1);
        }
        got[0] = got[1] = got[2] = got[3] = 0;
#pragma unroll
        for (u32 turn = 0; turn < 4; turn++) {  // with the neighbour own ^ turn: I give what is for it
            const u32 other = own ^ turn;
            const u32 mine = other == 0 ? held[0] : other == 1 ? held[1] : other == 2 ? held[2] : held[3];
            const u32 value = __shfl_xor_sync(0xffffffff, mine, turn);
            if (other == 0) got[0] = value;
            if (other == 1) got[1] = value;
            if (other == 2) got[2] = value;
            if (other == 3) got[3] = value;
        }
        const u32 j = j0 + own;
        if (is_real && j < TILE / 8 && n0 + 8 * j < outputs)
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                ::"l"(out + 8 * j), "r"(got[0]), "r"(got[1]), "r"(got[2]), "r"(got[3]) : "memory");
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + FETCHERS, 1) fp8_rows(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const float* x_scale,
    const float* w_scale, const float* bias, void* out, u32 rows, u32 box_rows, u32 outputs, u32 tiles, u32 steps,
    u32 stages, u32 depth) {
    extern __shared__ unsigned char raw[];
    const u32 base = (shared_address(raw) + 1023) & ~1023u;
    const u32 x_stage = box_rows * ATOM * ATOMS;
    const u32 w_base = base + stages * x_stage;  // behind x: what wgmma reads past x's rows is inside the ring
    const u32 w_full = w_base + stages * W_STAGE, x_full = w_full + 8 * stages;
    const u32 w_empty = x_full + 8 * stages, x_empty = w_empty + 8 * stages;
    unsigned char* behind = raw + (x_empty + 8 * stages - shared_address(raw));
    float* w_scales = (float*)behind;        // [TILE]
    float* sums = w_scales + TILE;           // [rows][PITCH], of one warpgroup alone
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Programs of a cluster take neighbouring tiles, each the same number of them (a tile past the end is zeros).
    const u32 lead = blockIdx.x / CLUSTER * CLUSTER;
    const u32 mine = (tiles - lead + gridDim.x - 1) / gridDim.x * steps;  // stages this program fills in all
    // In units of 4 pieces, so that the order of a sum does not depend on ATOMS.
    const u32 first_step = (u32)((u64)lead * (steps * ATOMS / 4) / gridDim.x) * 4 / ATOMS;

    if (threadIdx.x == 0) {
        for (u32 s = 0; s < stages; s++) {
            barrier_init(w_full + 8 * s, 1);
            barrier_init(x_full + 8 * s, 1);
            barrier_init(w_empty + 8 * s, 4 * WARPGROUPS);
            barrier_init(x_empty + 8 * s, 4 * WARPGROUPS * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cluster_arrive();

    if (warp >= 4 * WARPGROUPS) {
        if (WARPGROUPS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FETCHER_REGISTERS));
        if (warp == 4 * WARPGROUPS && lane == 0)
            fetch_weights(w_map, w_base, w_full, w_empty, mine, first_step, steps, stages, depth);
        __syncwarp();
        cluster_wait();
        if (warp == 4 * WARPGROUPS + 1 && lane == 0)
            fetch_rows(x_map, base, x_full, x_empty, box_rows, mine, first_step, steps, stages);
        __syncwarp();
        cluster_arrive();
        cluster_wait();
        return;
    }
    if (WARPGROUPS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    cluster_wait();

    const u32 m0 = warp * 16 + lane / 4, m1 = m0 + 8;  // this thread's two rows of x
    const u32 x_mine = warp / 4 * 64 * ATOM;           // the warpgroup's rows within a piece
    float x_scale0 = 0.0f, x_scale1 = 0.0f;
    float d[ACCUMULATORS] = {};
    u32 stage = 0, parity = 0;
    const u32 turns = mine / steps;
    for (u32 turn = 0; turn < turns; turn++) {
        const u32 n0 = (blockIdx.x + turn * gridDim.x) * TILE;
        for (u32 i = threadIdx.x; i < TILE; i += CONSUMERS) w_scales[i] = n0 + i < outputs ? w_scale[n0 + i] : 0.0f;
        if (turn == 0) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            if (m0 < rows) x_scale0 = x_scale[m0];
            if (m1 < rows) x_scale1 = x_scale[m1];
        }
        u32 accumulate = 0, previous = 0;
        hand_over(d);
        for (u32 i = 0; i < steps; i++) {
            barrier_wait(w_full + 8 * stage, parity);
            barrier_wait(x_full + 8 * stage, parity);
            const u32 x_at = base + stage * x_stage, w_at = w_base + stage * W_STAGE;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (u32 atom = 0; atom < ATOMS; atom++) {
                const u64 a = operand(x_at + x_mine + atom * box_rows * ATOM), b = operand(w_at + atom * TILE * ATOM);
#pragma unroll
                for (u32 k = 0; k < 4; k++) {  // 32 bytes of k each
                    multiply(d, a + 2 * k, b + 2 * k, accumulate);
                    accumulate = 1;
                }
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // One batch stays in flight: a stage is free when the next one's batch is under way.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (i > 0) release(w_empty + 8 * previous, x_empty + 8 * previous);
            previous = stage;
            if (++stage == stages) { stage = 0; parity ^= 1; }
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        hand_over(d);
        release(w_empty + 8 * previous, x_empty + 8 * previous);

        consumers_meet();  // the scales are written
        if (WARPGROUPS > 1) {
            unsigned short* to = (unsigned short*)out + n0;
            store_row(d, 0, to + (u64)m0 * outputs, w_scales, bias, x_scale0, n0, outputs, m0 < rows);
            store_row(d, 1, to + (u64)m1 * outputs, w_scales, bias, x_scale1, n0, outputs, m1 < rows);
        } else {
            // With few rows most threads hold none: all of them write what some have.
#pragma unroll
            for (u32 j = 0; j < TILE / 8; j++) {
                const u32 c = 8 * j + 2 * (lane % 4);
                const float s0 = w_scales[c], s1 = w_scales[c + 1];
                if (m0 < rows)
                    *(float2*)(sums + m0 * PITCH + c) =
                        make_float2(d[4 * j] * (s0 * x_scale0), d[4 * j + 1] * (s1 * x_scale0));
                if (m1 < rows)
                    *(float2*)(sums + m1 * PITCH + c) =
                        make_float2(d[4 * j + 2] * (s0 * x_scale1), d[4 * j + 3] * (s1 * x_scale1));
            }
            consumers_meet();
            for (u32 i = threadIdx.x; i < rows * (TILE / 2); i += CONSUMERS) {
                const u32 m = i / (TILE / 2), c = i % (TILE / 2) * 2, n = n0 + c;
                if (n >= outputs) continue;
                const float2 sum = *(float2*)(sums + m * PITCH + c);
                const float b0 = bias ? bias[n] : 0.0f, b1 = bias ? bias[n + 1] : 0.0f;
                store_pair(out, (u64)m * outputs + n, sum.x + b0, sum.y + b1);
            }
        }
        if (turn + 1 < turns) consumers_meet();  // all is read: the next tile may write its own
    }
    cluster_arrive();
    cluster_wait();
}
