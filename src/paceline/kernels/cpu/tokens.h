// Tokens that go through layers together.
#pragma once

#include <vector>

#include "model.h"

namespace paceline {

// Some neighbours of a batch, or a choice of them, in order.
struct Tokens {
    std::vector<int64_t> ids, positions, slots, rows;
    int64_t count() const { return int64_t(ids.size()); }
    Tokens(const Batch &b, int64_t first, int64_t count)
        : ids(b.token_ids + first, b.token_ids + first + count), positions(b.positions + first, b.positions + first + count),
          slots(b.slots + first, b.slots + first + count) {
        rows.reserve(size_t(count));
        int64_t row = 0, end = b.query_lens[0];
        for (int64_t t = first; t < first + count; t++) {
            while (t >= end) end += b.query_lens[++row];
            rows.push_back(row);
        }
    }
    Tokens(const Tokens &all, const std::vector<int64_t> &places) {
        for (int64_t place : places) {
            ids.push_back(all.ids[size_t(place)]);
            positions.push_back(all.positions[size_t(place)]);
            slots.push_back(all.slots[size_t(place)]);
            rows.push_back(all.rows[size_t(place)]);
        }
    }
};

}  // namespace paceline
