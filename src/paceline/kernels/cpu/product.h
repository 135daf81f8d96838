// y = x Wᵀ + b for rows of float32 and packed weights.
//
// Contract: an output's sum runs over k in ascending order, one fused (or, without FMA, one rounded) step a k, in one
// accumulator. So a row has the same bits however many rows are computed with it, and however work is cut.
//
// Packed weights: panels of 16 outputs, k-major, [panel][k][16], the last one filled up with zeros. bfloat16 stores
// output j beside output j + 8, so that a shift and a mask widen eight each.
#pragma once

#include "vectors.h"

namespace paceline {

constexpr int PANEL = 16;  // outputs
constexpr int NEAR = 4;    // panels that all rows pass before the next ones
constexpr int FAR = 2;     // weights are fetched into the second cache, so far ahead that the nearest would lose them
constexpr int TILE = 6;    // rows: with two vectors of outputs they are 12 of the 16 registers of AVX2

enum Format { FLOAT32 = 0, BFLOAT16 = 1 };

struct Linear {
    const void *data;
    const float *bias;  // [16 * panels] or null
    int64_t outputs, inputs, format;
    int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }
};

struct Float32 {
    typedef float Number;
    const float *from;
    Float32(const Linear &w, int64_t panel) : from((const float *)w.data + panel * w.inputs * PANEL) {}
    void widen(int64_t k, f8 &low, f8 &high) const {
        low = load(from + k * PANEL);
        high = load(from + k * PANEL + LANES);
    }
    void fetch(int64_t k) const { __builtin_prefetch(from + k * PANEL, 0, FAR); }
    static constexpr int AHEAD = 512;  // of k: 32 KiB
};

struct BFloat16 {
    const uint16_t *from;
    BFloat16(const Linear &w, int64_t panel) : from((const uint16_t *)w.data + panel * w.inputs * PANEL) {}
    void widen(int64_t k, f8 &low, f8 &high) const {
        u8 pairs;
        std::memcpy(&pairs, from + k * PANEL, sizeof pairs);
        low = bits<f8>(pairs << 16);
        high = bits<f8>(pairs & 0xffff0000u);
    }
    void fetch(int64_t k) const { __builtin_prefetch(from + k * PANEL, 0, FAR); }
    static constexpr int AHEAD = 1024;  // 32 KiB as well
};

// ROWS rows times PANELS panels; `emit(row, panel, low, high)` gets the sums, panels of a row in ascending order.
template <class Weights, int ROWS, int PANELS, class Emit>
static inline void tile(const float *x, int64_t stride, const Linear &w, int64_t row, int64_t panel, Emit &emit) {
    f8 sums[ROWS][PANELS][2];
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < PANELS; p++) sums[r][p][0] = sums[r][p][1] = same(0.0f);
    const float *rows = x + row * stride;
    Weights first(w, panel);
    const Weights weights[4] = {first, Weights(w, panel + (PANELS > 1)), Weights(w, panel + 2 * (PANELS > 2)),
                                Weights(w, panel + 3 * (PANELS > 3))};
    const int64_t inputs = w.inputs;
    for (int64_t k = 0; k < inputs; k++) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
            f8 low, high;
            weights[p].widen(k, low, high);
            weights[p].fetch(k + Weights::AHEAD);
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; r++) {
                f8 factor = same(rows[r * stride + k]);
                sums[r][p][0] += factor * low;
                sums[r][p][1] += factor * high;
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < PANELS; p++) emit(row + r, panel + p, sums[r][p][0], sums[r][p][1]);
}

// A tile of some rows for each of the panels [panel, last), several panels at a time where the rows alone would leave
// additions waiting for each other.
template <class Weights, int ROWS, class Emit>
static inline void tiles(const float *x, int64_t stride, const Linear &w, int64_t row, int64_t panel, int64_t last,
                         Emit &emit) {
    constexpr int TOGETHER = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
    for (; panel + TOGETHER <= last; panel += TOGETHER) tile<Weights, ROWS, TOGETHER>(x, stride, w, row, panel, emit);
    for (; panel < last; panel++) tile<Weights, ROWS, 1>(x, stride, w, row, panel, emit);
}

// Rows [first_row, last_row) times panels [first, last). A few panels at a time are kept near for all rows.
template <class Weights, class Emit>
static void product_of(const float *x, int64_t stride, int64_t first_row, int64_t last_row, const Linear &w,
                       int64_t first, int64_t last, Emit &emit) {
    for (int64_t panel = first; panel < last; panel += NEAR) {
        const int64_t end = panel + NEAR < last ? panel + NEAR : last;
        for (int64_t row = first_row, rows; row < last_row; row += rows) {
            rows = last_row - row < TILE ? last_row - row : TILE;
            switch (rows) {
            case 1: tiles<Weights, 1>(x, stride, w, row, panel, end, emit); break;
            case 2: tiles<Weights, 2>(x, stride, w, row, panel, end, emit); break;
            case 3: tiles<Weights, 3>(x, stride, w, row, panel, end, emit); break;
            case 4: tiles<Weights, 4>(x, stride, w, row, panel, end, emit); break;
            case 5: tiles<Weights, 5>(x, stride, w, row, panel, end, emit); break;
            default: tiles<Weights, 6>(x, stride, w, row, panel, end, emit);
            }
        }
    }
}

template <class Emit>
static void product(const float *x, int64_t stride, int64_t first_row, int64_t last_row, const Linear &w,
                    int64_t first, int64_t last, Emit &emit) {
    switch (w.format) {
    case FLOAT32: return product_of<Float32>(x, stride, first_row, last_row, w, first, last, emit);
    default: return product_of<BFloat16>(x, stride, first_row, last_row, w, first, last, emit);
    }
}

// What becomes of the sums. `bias` is added first.

static inline void with_bias(const Linear &w, int64_t panel, f8 &low, f8 &high) {
    if (w.bias == nullptr) return;
    low += load(w.bias + panel * PANEL);
    high += load(w.bias + panel * PANEL + LANES);
}

// y = sums, or y += sums.
template <bool ADD> struct Write {
    const Linear &w;
    float *y;
    int64_t stride;
    void operator()(int64_t row, int64_t panel, f8 low, f8 high) {
        with_bias(w, panel, low, high);
        float *to = y + row * stride + panel * PANEL;
        const int64_t left = w.outputs - panel * PANEL;
        if (left >= PANEL) {
            store(to, ADD ? load(to) + low : low);
            store(to + LANES, ADD ? load(to + LANES) + high : high);
            return;
        }
        float sums[PANEL];
        store(sums, low);
        store(sums + LANES, high);
        for (int64_t j = 0; j < left; j++) to[j] = ADD ? to[j] + sums[j] : sums[j];
    }
};

// y[tokens[j]] = sums[j]
struct Scatter {
    const Linear &w;
    float *y;
    int64_t stride;
    const int64_t *tokens;
    void operator()(int64_t row, int64_t panel, f8 low, f8 high) {
        with_bias(w, panel, low, high);
        float sums[PANEL];
        store(sums, low);
        store(sums + LANES, high);
        const int64_t left = w.outputs - panel * PANEL;
        for (int64_t j = 0; j < (left < PANEL ? left : PANEL); j++) y[row * stride + tokens[panel * PANEL + j]] = sums[j];
    }
};

// Panels alternate between gate and up: y = silu(gate) * up. y has whole panels.
struct SiluMul {
    const Linear &w;
    float *y;
    int64_t stride;
    f8 gates[TILE][2];
    void operator()(int64_t row, int64_t panel, f8 low, f8 high) {
        with_bias(w, panel, low, high);
        f8 *gate = gates[row % TILE];
        if (panel % 2 == 0) {
            gate[0] = low;
            gate[1] = high;
            return;
        }
        float *to = y + row * stride + panel / 2 * PANEL;
        store(to, silu(gate[0]) * low);
        store(to + LANES, silu(gate[1]) * high);
    }
};

}  // namespace paceline
