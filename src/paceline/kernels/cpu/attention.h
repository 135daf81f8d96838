// Attention of some queries of one row, all of one key-value head, over the paged pool.
//
// Contract: a query at position p takes the keys it sees in blocks of KEYS that begin at multiples of KEYS, in
// ascending order, with a running maximum (Milakov & Gimelshein 2018, arXiv 1805.02867). What it computes depends on
// its own position and its row's keys alone: whatever other queries share the blocks, a hidden key adds exactly 0.
//
// Scores are a product like any other (product.h): queries are its rows and 16 keys, turned round, its panel.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>

#include "product.h"
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace paceline {

constexpr int64_t KEYS = 64;      // of a block
constexpr int64_t QUERIES = 144;  // at most, of one call
constexpr int64_t SOME = 24;      // queries that pass a block of keys together: they and it stay in the nearest cache

// Memory of one thread or one model that grows and is kept, aligned to a line of the cache.
class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    ~Scratch() { std::free(memory_); }
    float *of(int64_t count) {
        if (count <= size_) return memory_;
        std::free(memory_);
        memory_ = nullptr;
        size_ = 0;
        void *found = nullptr;
        if (posix_memalign(&found, 64, size_t(count) * sizeof(float)) != 0) throw std::bad_alloc();
        memory_ = (float *)found;
        size_ = count;
        return memory_;
    }

  private:
    float *memory_ = nullptr;
    int64_t size_ = 0;
};

// One layer of the pool, [blocks, block_size, 2, kv_heads, head_dim].
struct PoolLayer {
    void *data;
    int64_t block_size, kv_heads, head_dim;
    bool is_bfloat16;

    int64_t key_of(int64_t slot, int64_t head) const { return (slot * 2 * kv_heads + head) * head_dim; }
    int64_t value_of(int64_t slot, int64_t head) const { return key_of(slot, head) + kv_heads * head_dim; }
    void write(int64_t at, const float *from) const {
        if (!is_bfloat16)
            std::memcpy((float *)data + at, from, size_t(head_dim) * sizeof(float));
        else
            for (int64_t d = 0; d < head_dim; d++) ((uint16_t *)data)[at + d] = narrowed(from[d]);
    }
    // The numbers at `at` as float32: where they are, or widened into `room`.
    const float *read(int64_t at, float *room) const {
        if (!is_bfloat16) return (const float *)data + at;
        for (int64_t d = 0; d < head_dim; d++) room[d] = widened(((const uint16_t *)data)[at + d]);
        return room;
    }
};

#if defined(__AVX__)
// Eight rows of eight numbers, turned round: to[d * PANEL + row].
static inline void turn_eight(const float *const *rows, int64_t d, float *to) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(rows[i] + d);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * PANEL, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * PANEL, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#else
static inline void turn_eight(const float *const *rows, int64_t d, float *to) {
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < 8; i++) to[i * PANEL + row] = rows[row][d + i];
}
#endif

// mixed[q][dims] += weights[q] · values, for some queries and 8 or 16 dimensions; keys in ascending order.
template <int ROWS, int VECTORS>
static inline void mix_tile(const float *weights, const float *const *values, int64_t num_keys, int64_t d,
                            float *mixed, int64_t stride) {
    f8 sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = load(mixed + r * stride + d + v * LANES);
    for (int64_t key = 0; key < num_keys; key++) {
        f8 value[VECTORS];
        for (int v = 0; v < VECTORS; v++) value[v] = load(values[key] + d + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            f8 factor = same(weights[r * KEYS + key]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] += factor * value[v];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(mixed + r * stride + d + v * LANES, sums[r][v]);
}

template <int ROWS>
static inline void mix_rows(const float *weights, const float *const *values, int64_t num_keys, float *mixed,
                            int64_t head_dim) {
    int64_t d = 0;
    for (; d + PANEL <= head_dim; d += PANEL) mix_tile<ROWS, 2>(weights, values, num_keys, d, mixed, head_dim);
    if (d < head_dim) mix_tile<ROWS, 1>(weights, values, num_keys, d, mixed, head_dim);
}

static inline void mix(const float *weights, int64_t queries, const float *const *values, int64_t num_keys,
                       float *mixed, int64_t head_dim) {
    for (int64_t q = 0; q < queries;) {
        const int64_t rows = queries - q < TILE ? queries - q : TILE;
        const float *from = weights + q * KEYS;
        float *to = mixed + q * head_dim;
        switch (rows) {
        case 1: mix_rows<1>(from, values, num_keys, to, head_dim); break;
        case 2: mix_rows<2>(from, values, num_keys, to, head_dim); break;
        case 3: mix_rows<3>(from, values, num_keys, to, head_dim); break;
        case 4: mix_rows<4>(from, values, num_keys, to, head_dim); break;
        case 5: mix_rows<5>(from, values, num_keys, to, head_dim); break;
        default: mix_rows<6>(from, values, num_keys, to, head_dim);
        }
        q += rows;
    }
}

// Some query heads of one key-value head, for the tokens of a tile: what they ask and what they have found so far.
struct HeadQueries {
    int64_t kv_head, count;
    float *queries;  // [count, head_dim], scaled
    float *mixed;    // [count, head_dim]
    int64_t positions[QUERIES];  // ascending
    float highest[QUERIES], total[QUERIES];
};

// Neighbouring key-value heads of one row together, block of keys by block of keys, so that the pool is read in order.
class RowAttention {
  public:
    // `room`: at least `size(head_dim)` numbers.
    RowAttention(const PoolLayer &layer, int64_t window, const int64_t *table, float *room)
        : layer_(layer), table_(table), window_(window), dim_(layer.head_dim), turned_(room),
          scores_(turned_ + KEYS * dim_), keys_(scores_ + SOME * KEYS), values_(keys_ + KEYS * dim_),
          zeros_(values_ + KEYS * dim_) {
        std::memset(zeros_, 0, size_t(dim_) * sizeof(float));
    }

    static int64_t size(int64_t head_dim) { return (3 * KEYS + 1) * head_dim + SOME * KEYS; }

    // Fills `mixed` of `heads`, all for the same tokens. `table`: the row's blocks; `window`: positions that a token
    // sees, itself included, or 0 for all.
    void attend(HeadQueries *heads, int64_t num_heads) {
        for (HeadQueries *head = heads; head < heads + num_heads; head++) {
            std::fill_n(head->highest, head->count, -INFINITY);
            std::fill_n(head->total, head->count, 0.0f);
            std::memset(head->mixed, 0, size_t(head->count * dim_) * sizeof(float));
        }
        const int64_t start = heads->positions[0], end = heads->positions[heads->count - 1] + 1;
        const int64_t seen = window_ > 0 && start >= window_ ? start - window_ + 1 : 0;
        for (int64_t first = seen / KEYS * KEYS; first < end; first += KEYS) {
            for (HeadQueries *head = heads; head < heads + num_heads; head++)
                take(*head, first, std::min(KEYS, end - first));
        }
        for (HeadQueries *head = heads; head < heads + num_heads; head++)
            for (int64_t q = 0; q < head->count; q++)
                for (float *at = head->mixed + q * dim_; at < head->mixed + (q + 1) * dim_; at += LANES)
                    store(at, load(at) / head->total[q]);
    }

  private:
    // Calls `each(key, slot)` for the positions first + key, key < count; one division for all of them.
    template <class Each> void slots(int64_t first, int64_t count, Each each) const {
        const int64_t size = layer_.block_size;
        const int64_t *block = table_ + first / size;
        for (int64_t key = 0, offset = first % size; key < count; block++, offset = 0)
            for (; key < count && offset < size; key++, offset++) each(key, *block * size + offset);
    }

    // The keys first .. first + num_keys: one block, or what the row has of it. Queries see no keys behind their own
    // position, so the first of them need not look at the last ones.
    void take(HeadQueries &head, int64_t first, int64_t num_keys) {
        find(head, first, num_keys);
        for (int64_t q = 0; q < head.count; q += SOME) {
            const int64_t some = std::min(SOME, head.count - q);
            const int64_t seen = std::min(num_keys, head.positions[q + some - 1] + 1 - first);
            if (seen <= 0) continue;
            const int64_t panels = (seen + PANEL - 1) / PANEL;
            const Linear keys = {turned_, nullptr, panels * PANEL, dim_, FLOAT32};
            Write<false> to = {keys, scores_, KEYS};
            product_of<Float32>(head.queries + q * dim_, dim_, 0, some, keys, 0, panels, to);
            for (int64_t i = 0; i < some; i++) weigh(head, q + i, scores_ + i * KEYS, first);
            mix(scores_, some, value_rows_, seen, head.mixed + q * dim_, dim_);
        }
    }

    void find(const HeadQueries &head, int64_t first, int64_t num_keys) {
        const float *keys[KEYS];
        const bool copies = head.count > SOME;  // lines of a pool lie so far apart that they crowd each other out
        slots(first, num_keys, [&](int64_t key, int64_t slot) {
            float *values = values_ + key * dim_;
            keys[key] = layer_.read(layer_.key_of(slot, head.kv_head), keys_ + key * dim_);
            value_rows_[key] = layer_.read(layer_.value_of(slot, head.kv_head), values);
            if (!copies || value_rows_[key] == values) return;
            std::memcpy(values, value_rows_[key], size_t(dim_) * sizeof(float));
            value_rows_[key] = values;
        });
        for (int64_t key = num_keys; key < KEYS; key++) keys[key] = zeros_;
        for (int64_t panel = 0; panel * PANEL < num_keys; panel++)
            for (int64_t half = 0; half < PANEL; half += LANES)
                for (int64_t d = 0; d < dim_; d += LANES)
                    turn_eight(keys + panel * PANEL + half, d, turned_ + (panel * dim_ + d) * PANEL + half);
    }

    // Turns a query's scores into weights relative to its highest score so far, and rescales what it has mixed.
    void weigh(HeadQueries &head, int64_t q, float *scores, int64_t first) {
        const int64_t after = head.positions[q] + 1 - first;  // keys of the block that it sees: those in [before, after)
        const int64_t before = window_ > 0 ? after - window_ : 0;
        if (after <= 0 || before >= KEYS) {
            std::memset(scores, 0, KEYS * sizeof(float));
            return;
        }
        for (int64_t key = 0; key < before; key++) scores[key] = -INFINITY;
        for (int64_t key = after; key < KEYS; key++) scores[key] = -INFINITY;
        f8 most = load(scores);
        for (int64_t key = LANES; key < KEYS; key += LANES) most = larger(load(scores + key), most);
        const float found = largest_of(most), highest = found > head.highest[q] ? found : head.highest[q];
        const float shrink = exponential(same(head.highest[q] - highest))[0];
        f8 sum = same(0.0f);
        for (int64_t key = 0; key < KEYS; key += LANES) {
            const f8 weight = exponential(load(scores + key) - highest);
            store(scores + key, weight);
            sum += weight;
        }
        head.total[q] = head.total[q] * shrink + sum_of(sum);
        head.highest[q] = highest;
        if (shrink == 1.0f) return;
        float *row = head.mixed + q * dim_;
        for (int64_t d = 0; d < dim_; d += LANES) store(row + d, load(row + d) * shrink);
    }

    const PoolLayer layer_;
    const int64_t *const table_;
    const int64_t window_, dim_;
    float *const turned_, *const scores_, *const keys_, *const values_, *const zeros_;
    const float *value_rows_[KEYS];
};

}  // namespace paceline
