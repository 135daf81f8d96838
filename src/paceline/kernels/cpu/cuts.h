// One product cut into chunks of rows and outputs. No sum is ever cut: chunks change no bits.
#pragma once

#include <algorithm>

#include "product.h"

namespace paceline {

constexpr int64_t NEAR_BYTES = 192 << 10;  // of a product's input rows, which stay in the cache while weights pass
constexpr int64_t CHUNKS = 6;              // for each thread, where there is enough to do

static int64_t cut(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Rows and panels of one product as chunks: the rows of a chunk stay in the cache.
struct Cuts {
    int64_t rows = 0, first = 0, panels = 0, rows_each = 1, panels_each = 1, row_cuts = 0, panel_cuts = 0;
    Cuts() = default;
    // `unit`: neighbouring panels that belong together; panels before `first_panel` are left out.
    Cuts(int64_t num_rows, const Linear &w, int64_t unit, int64_t threads, int64_t first_panel = 0)
        : rows(num_rows), first(first_panel), panels(w.panels() - first_panel) {
        if (rows == 0) return;
        const int64_t most = std::max<int64_t>(TILE, NEAR_BYTES / (w.inputs * int64_t(sizeof(float))) / TILE * TILE);
        rows_each = cut(cut(rows, cut(rows, most)), TILE) * TILE;
        row_cuts = cut(rows, rows_each);
        const int64_t wanted = cut(threads > 1 ? CHUNKS * threads : 1, row_cuts);
        panels_each = std::max<int64_t>(1, panels / unit / wanted) * unit;
        if (panels_each > NEAR) panels_each = panels_each / NEAR * NEAR;
        panel_cuts = cut(panels, panels_each);
    }
    int64_t count() const { return row_cuts * panel_cuts; }
    template <class Emit> void run(int64_t chunk, const float *x, const Linear &w, Emit emit) const {
        const int64_t row = chunk / panel_cuts * rows_each, panel = chunk % panel_cuts * panels_each;
        product(x, w.inputs, row, std::min(rows, row + rows_each), w, first + panel,
                first + std::min(panels, panel + panels_each), emit);
    }
};

}  // namespace paceline
