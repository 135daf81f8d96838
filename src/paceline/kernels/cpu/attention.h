// Attention of some queries of one row, all of one key-value head, over the paged pool.
//
// Contract: a query at position p takes the keys it sees in blocks of KEYS that begin at multiples of KEYS, in
// ascending order, with a running maximum (Milakov & Gimelshein 2018, arXiv 1805.02867). What it computes depends on
// its own position and its row's keys alone: whatever other queries share the blocks, a hidden key adds exactly 0.
//
// Scores are a product like any other (product.h): queries are its rows, and 16 keys, turned round, its panel. The pool
// holds keys turned round (pool_layer.h), so that a pass over them reads memory in order and moves nothing.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "pool_layer.h"

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

// scores[r][key] = queries[r] · keys[key] for 16 keys, k-major [dim][16], one fused step a k as in a product. Fetches as
// many lines from `later` on the way.
template <int ROWS>
static inline void score_tile(const float *queries, int64_t dim, const float *keys, const float *later, float *scores) {
    f8 sums[ROWS][2];
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = same(0.0f);
    for (int64_t k = 0; k < dim; k++) {
        const f8 low = load(keys + k * PANEL), high = load(keys + k * PANEL + LANES);
        __builtin_prefetch(later + k * PANEL);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const f8 factor = same(queries[r * dim + k]);
            sums[r][0] += factor * low;
            sums[r][1] += factor * high;
        }
    }
    for (int r = 0; r < ROWS; r++) {
        store(scores + r * KEYS, sums[r][0]);
        store(scores + r * KEYS + LANES, sums[r][1]);
    }
}

// mixed[q][dims] += weights[q] · values, for some queries and 8 or 16 dimensions; keys in ascending order. Fetches a
// line from `later` on a key.
template <int ROWS, int VECTORS>
static inline void mix_tile(const float *weights, const float *const *values, int64_t num_keys, int64_t d,
                            float *mixed, int64_t stride, const float *later) {
    f8 sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sums[r][v] = load(mixed + r * stride + d + v * LANES);
    for (int64_t key = 0; key < num_keys; key++) {
        f8 value[VECTORS];
        for (int v = 0; v < VECTORS; v++) value[v] = load(values[key] + d + v * LANES);
        __builtin_prefetch(later + key * PANEL);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            f8 factor = same(weights[r * KEYS + key]);
            for (int v = 0; v < VECTORS; v++) sums[r][v] += factor * value[v];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(mixed + r * stride + d + v * LANES, sums[r][v]);
}

// `panels`: keys to fetch on the way, those of the next block.
template <int ROWS>
static inline void mix_rows(const float *weights, const float *const *values, int64_t num_keys, float *mixed,
                            int64_t head_dim, const float *const *panels) {
    int64_t d = 0;
    for (int64_t line = 0; d + PANEL <= head_dim; d += PANEL, line += KEYS) {
        const float *later = panels[line / head_dim % (KEYS / PANEL)] + line % head_dim * PANEL;
        mix_tile<ROWS, 2>(weights, values, num_keys, d, mixed, head_dim, later);
    }
    if (d < head_dim) mix_tile<ROWS, 1>(weights, values, num_keys, d, mixed, head_dim, panels[0]);
}

// Calls `tile` with an integral constant, the number of rows, and the first of them: sixes, and a rest.
template <class Tile> static inline void each_tile(int64_t rows, Tile tile) {
    for (int64_t row = 0, some; row < rows; row += some) {
        some = std::min<int64_t>(TILE, rows - row);
        switch (some) {
        case 1: tile(std::integral_constant<int, 1>(), row); break;
        case 2: tile(std::integral_constant<int, 2>(), row); break;
        case 3: tile(std::integral_constant<int, 3>(), row); break;
        case 4: tile(std::integral_constant<int, 4>(), row); break;
        case 5: tile(std::integral_constant<int, 5>(), row); break;
        default: tile(std::integral_constant<int, 6>(), row);
        }
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

// Neighbouring key-value heads of one row together, block of keys by block of keys.
class RowAttention {
  public:
    // `room`: at least `size(head_dim)` numbers.
    RowAttention(const PoolLayer &layer, int64_t window, const int64_t *table, float *room)
        : layer_(layer), table_(table), window_(window), dim_(layer.head_dim), turned_(room),
          values_(turned_ + KEYS * dim_), scores_(values_ + KEYS * dim_) {}

    static int64_t size(int64_t head_dim) { return 2 * KEYS * head_dim + SOME * KEYS; }

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
                take(*head, first, end);
        }
        for (HeadQueries *head = heads; head < heads + num_heads; head++)
            for (int64_t q = 0; q < head->count; q++)
                for (float *at = head->mixed + q * dim_; at < head->mixed + (q + 1) * dim_; at += LANES)
                    store(at, load(at) / head->total[q]);
    }

  private:
    // A block of keys: panels [dim][16] and rows of values, where they are or copied into the room.
    struct Found {
        const float *panels[KEYS / PANEL], *values[KEYS];
    };

    // The keys from `first` on: one block, or what the row has of it. Queries see no keys behind their own position, so
    // the first of them need not look at the last ones.
    void take(HeadQueries &head, int64_t first, int64_t end) {
        Found block, next;
        find(head.kv_head, first, std::min(KEYS, end - first), block);
        if (layer_.is_direct() && first + KEYS < end)
            point_at_keys(head.kv_head, first + KEYS, std::min(KEYS, end - first - KEYS), next);
        else
            std::copy_n(block.panels, KEYS / PANEL, next.panels);
        for (int64_t q = 0; q < head.count; q += SOME) {
            const int64_t some = std::min(SOME, head.count - q);
            const int64_t seen = std::min(std::min(KEYS, end - first), head.positions[q + some - 1] + 1 - first);
            if (seen <= 0) continue;
            const float *queries = head.queries + q * dim_;
            float *mixed = head.mixed + q * dim_;
            for (int64_t panel = 0; panel * PANEL < seen; panel++)
                each_tile(some, [&](auto rows, int64_t row) {
                    score_tile<rows()>(queries + row * dim_, dim_, block.panels[panel], block.values[panel * PANEL],
                                       scores_ + row * KEYS + panel * PANEL);
                });
            for (int64_t i = 0; i < some; i++) weigh(head, q + i, scores_ + i * KEYS, first);
            each_tile(some, [&](auto rows, int64_t row) {
                mix_rows<rows()>(scores_ + row * KEYS, block.values, seen, mixed + row * dim_, dim_, next.panels);
            });
        }
    }

    void find(int64_t head, int64_t first, int64_t num_keys, Found &found) {
        if (layer_.is_direct()) return point_at(head, first, num_keys, found);
        for (int64_t panel = 0; panel < KEYS / PANEL; panel++) found.panels[panel] = turned_ + panel * PANEL * dim_;
        const int64_t width = layer_.width();
        for (int64_t key = 0; key < num_keys; key += width) {
            const Place place = layer_.place(table_, first + key);
            layer_.read_keys(place, head, turned_ + key / PANEL * PANEL * dim_ + key % PANEL);
            for (int64_t k = key; k < std::min(num_keys, key + width); k++)
                found.values[k] = layer_.read_value({place.block, place.offset + k - key}, head, values_ + k * dim_);
        }
    }

    void point_at(int64_t head, int64_t first, int64_t num_keys, Found &found) const {
        point_at_keys(head, first, num_keys, found);
        for (int64_t key = 0; key < num_keys; key += PANEL) {
            const float *rows = layer_.values(layer_.place(table_, first + key), head);
            for (int64_t k = key; k < std::min(num_keys, key + PANEL); k++) found.values[k] = rows + (k - key) * dim_;
        }
    }

    void point_at_keys(int64_t head, int64_t first, int64_t num_keys, Found &found) const {
        for (int64_t panel = 0; panel < KEYS / PANEL; panel++) {
            const int64_t key = panel * PANEL < num_keys ? panel * PANEL : 0;
            found.panels[panel] = layer_.panel(layer_.place(table_, first + key), head);
        }
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
    float *const turned_, *const values_, *const scores_;
};

}  // namespace paceline
