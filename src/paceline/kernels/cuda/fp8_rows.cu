// out[m, n] = (sum_k x[m, k] * w[n, k]) * x_scale[m] * w_scale[n] + bias[n] for at most 64 rows m, E4M3 operands, sm_90a.
//
// At so few rows the product is bound by reading w once, so everything here serves one aim: that device memory never
// idles, within this kernel and across kernels.
// - One program a multiprocessor, each with the same share of w's rows. One warp only fetches: tiles of w and x through
//   the tensor memory accelerator into a ring of stages in shared memory, as deep as shared memory allows.
// - Weights are constants, so that warp fills the whole ring with them BEFORE it waits for the kernel that produces x
//   (griddepcontrol.wait). The memory is busy while the small kernels between two products run.
// - x is the left operand of wgmma, padded to its 64 rows by letting it read whatever lies behind: rows past the end
//   come out as garbage and are not stored. So a tile may have any multiple of 8 of w's rows, and shares come out even.
// - Each sum has one fixed order, given by TILE: a row has the same bits in any batch that is cut the same way (up to 16
//   rows, and from there to 64).
//
// - Each program starts at another place of k. Otherwise all of them would ask for the same piece of x at the same time,
//   and a line of the L2 is handed out to one multiprocessor after the other.
//
// Compiled for one configuration: TILE (rows of w a tile, a multiple of 8 up to 256), ATOMS (128-byte pieces of k a
// stage: 1, 2 or 4), FLOAT_OUT. WGMMA_* come with TILE.

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap { u64 opaque[16]; };

constexpr u32 ATOM = 128;                      // bytes: one row of the 128-byte swizzle
constexpr u32 ACCUMULATORS = TILE / 2;         // float registers a thread: 64 x TILE over 128 threads
constexpr u32 CONSUMERS = 128;
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
    const TensorMap& map, u32 ring, u32 full, u32 empty, u32 bytes, u32 mine, u32 first_step, u32 steps, u32 stages) {
    u64 often;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(often));
    asm volatile("griddepcontrol.wait;" ::: "memory");
    u32 step = first_step, stage = 0, parity = 1;
    for (u32 i = 0; i < mine; i++) {
        barrier_wait(empty + 8 * stage, parity);
        barrier_expect(full + 8 * stage, bytes);
        fetch(ring + stage * bytes, &map, full + 8 * stage, 0, step * ATOMS, often);
        if (++step == steps) step = 0;
        if (++stage == stages) { stage = 0; parity ^= 1; }
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 64, 1) fp8_rows(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const float* x_scale,
    const float* w_scale, const float* bias, void* out, u32 rows, u32 box_rows, u32 outputs, u32 tiles, u32 steps,
    u32 stages, u32 depth) {
    extern __shared__ unsigned char raw[];
    const u32 base = (shared_address(raw) + 1023) & ~1023u;
    const u32 x_stage = box_rows * ATOM * ATOMS;
    const u32 w_base = base + stages * x_stage;  // behind x: what wgmma reads past x's rows is inside the ring
    const u32 w_full = w_base + stages * W_STAGE, x_full = w_full + 8 * stages, empty = x_full + 8 * stages;
    unsigned char* behind = raw + (empty + 8 * stages - shared_address(raw));
    float* sums = (float*)behind;            // [rows][PITCH]
    float* w_scales = sums + rows * PITCH;   // [TILE]
    float* x_scales = w_scales + TILE;       // [rows]
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 mine = (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x * steps;  // stages this program fills in all
    // In units of 4 pieces, so that the order of a sum does not depend on ATOMS.
    const u32 first_step = (u32)((u64)blockIdx.x * (steps * ATOMS / 4) / gridDim.x) * 4 / ATOMS;

    if (threadIdx.x == 0) {
        for (u32 s = 0; s < stages; s++) {
            barrier_init(w_full + 8 * s, 1);
            barrier_init(x_full + 8 * s, 1);
            barrier_init(empty + 8 * s, 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (warp == 4) {
        if (lane == 0) fetch_weights(w_map, w_base, w_full, empty, mine, first_step, steps, stages, depth);
        return;
    }
    if (warp == 5) {
        if (lane == 0) fetch_rows(x_map, base, x_full, empty, x_stage, mine, first_step, steps, stages);
        return;
    }

    const u32 m0 = warp * 16 + lane / 4, m1 = m0 + 8;  // this thread's two rows of x
    float d[ACCUMULATORS] = {};
    u32 stage = 0, parity = 0;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const u32 n0 = tile * TILE;
        for (u32 i = threadIdx.x; i < TILE; i += CONSUMERS) w_scales[i] = n0 + i < outputs ? w_scale[n0 + i] : 0.0f;
        if (tile == blockIdx.x) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            if (threadIdx.x < rows) x_scales[threadIdx.x] = x_scale[threadIdx.x];
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
                const u64 a = operand(x_at + atom * box_rows * ATOM), b = operand(w_at + atom * TILE * ATOM);
#pragma unroll
                for (u32 k = 0; k < 4; k++) {  // 32 bytes of k each
                    multiply(d, a + 2 * k, b + 2 * k, accumulate);
                    accumulate = 1;
                }
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // One batch stays in flight: a stage is free when the next one's batch is under way.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (i > 0 && lane == 0) barrier_arrive(empty + 8 * previous);
            previous = stage;
            if (++stage == stages) { stage = 0; parity ^= 1; }
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        hand_over(d);
        if (lane == 0) barrier_arrive(empty + 8 * previous);

#pragma unroll
        for (u32 j = 0; j < TILE / 8; j++) {
            const u32 c = 8 * j + 2 * (lane % 4);
            if (m0 < rows) *(float2*)(sums + m0 * PITCH + c) = make_float2(d[4 * j], d[4 * j + 1]);
            if (m1 < rows) *(float2*)(sums + m1 * PITCH + c) = make_float2(d[4 * j + 2], d[4 * j + 3]);
        }
        consumers_meet();  // sums and scales are written
        for (u32 i = threadIdx.x; i < rows * (TILE / 2); i += CONSUMERS) {
            const u32 m = i / (TILE / 2), c = i % (TILE / 2) * 2, n = n0 + c;
            if (n >= outputs) continue;
            const float2 sum = *(float2*)(sums + m * PITCH + c);
            const float b0 = bias ? bias[n] : 0.0f, b1 = bias ? bias[n + 1] : 0.0f;
            store_pair(
                out, (u64)m * outputs + n, sum.x * (w_scales[c] * x_scales[m]) + b0,
                sum.y * (w_scales[c + 1] * x_scales[m]) + b1);
        }
        if (tile + gridDim.x < tiles) consumers_meet();  // they are read: the next tile may write its own
    }
}
