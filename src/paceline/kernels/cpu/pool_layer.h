// One layer of the paged pool, as the C++ forward lays it out.
//
// A block has, for each key-value head, its keys and behind those of all heads its values. Values lie token by token,
// [block_size][head_dim]. Keys lie in panels of 16 tokens, k-major, [block_size / 16][head_dim][16], the form that a
// product wants its weights in (product.h); blocks of fewer tokens are one narrower panel. cpu_pool.py has the same.
#pragma once

#include <algorithm>

#include "product.h"

namespace paceline {

struct Place {
    int64_t block, offset;
};

struct PoolLayer {
    void *data;
    int64_t block_size, kv_heads, head_dim;
    bool is_bfloat16;

    // Tokens of a panel.
    int64_t width() const { return std::min<int64_t>(block_size, PANEL); }
    // Whole panels of float32 can be computed with where they are.
    bool is_direct() const { return !is_bfloat16 && block_size >= PANEL; }
    Place place(const int64_t *table, int64_t position) const {
        return {table[position / block_size], position % block_size};
    }

    // Of places that begin a panel.
    const float *panel(Place at, int64_t head) const { return (const float *)data + key_at(at, head); }
    const float *values(Place at, int64_t head) const { return (const float *)data + value_at(at, head); }

    void write(int64_t slot, int64_t head, const float *key, const float *value) const {
        const Place at = {slot / block_size, slot % block_size};
        const int64_t keys = key_at(at, head), values = value_at(at, head), step = width();
        if (!is_bfloat16) {
            for (int64_t d = 0; d < head_dim; d++) ((float *)data)[keys + d * step] = key[d];
            std::memcpy((float *)data + values, value, size_t(head_dim) * sizeof(float));
            return;
        }
        for (int64_t d = 0; d < head_dim; d++) {
            ((uint16_t *)data)[keys + d * step] = narrowed(key[d]);
            ((uint16_t *)data)[values + d] = narrowed(value[d]);
        }
    }

    // The panel that begins `at`, as float32, into columns of a panel of 16.
    void read_keys(Place at, int64_t head, float *to) const {
        const int64_t from = key_at(at, head), step = width();
        for (int64_t d = 0; d < head_dim; d++)
            for (int64_t key = 0; key < step; key++) {
                const int64_t i = from + d * step + key;
                to[d * PANEL + key] = is_bfloat16 ? widened(((const uint16_t *)data)[i]) : ((const float *)data)[i];
            }
    }

    // A token's value as float32: where it is, or widened into `room`.
    const float *read_value(Place at, int64_t head, float *room) const {
        const int64_t from = value_at(at, head);
        if (!is_bfloat16) return (const float *)data + from;
        for (int64_t d = 0; d < head_dim; d++) room[d] = widened(((const uint16_t *)data)[from + d]);
        return room;
    }

  private:
    int64_t keys_of(int64_t block, int64_t head) const { return (block * 2 * kv_heads + head) * block_size * head_dim; }
    int64_t key_at(Place at, int64_t head) const {
        return keys_of(at.block, head) + at.offset / width() * width() * head_dim + at.offset % width();
    }
    int64_t value_at(Place at, int64_t head) const {
        return keys_of(at.block, head + kv_heads) + at.offset * head_dim;
    }
};

}  // namespace paceline
