// The layers of a decoder: embedding, then eight phases a layer, then the final norm.
#pragma once

#include <vector>

#include "cuts.h"
#include "model.h"
#include "pool.h"

namespace paceline {

constexpr int64_t FEW_ROWS = 4;            // of a chunk of norms or rotations
constexpr int64_t MOST_HEADS = 8;          // key-value heads of a chunk of attention

// y = x / sqrt(mean(x²) + epsilon) * weight
static void rms_norm(const float *x, const float *weight, float epsilon, int64_t size, float *y) {
    f8 squares[2] = {same(0.0f), same(0.0f)};
    int64_t i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES)
        for (int v = 0; v < 2; v++) squares[v] += load(x + i + v * LANES) * load(x + i + v * LANES);
    float sum = sum_of(squares[0] + squares[1]);
    for (; i < size; i++) sum += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum / float(size) + epsilon);
    for (i = 0; i + LANES <= size; i += LANES) store(y + i, load(x + i) * scale * load(weight + i));
    for (; i < size; i++) y[i] = x[i] * scale * weight[i];
}

// Neighbouring tokens of one row, whose queries share the pass over the keys.
struct Tile {
    int64_t row, first, count;
};

// The scratch of a model: activations of PIECE tokens at most.
struct Activations {
    Scratch hidden, normed, qkv, mixed, inner, last;
};

static float *thread_room(int64_t count) {
    static thread_local Scratch scratch;
    return scratch.of(count);
}

// The layers and the final norm, for tokens [first, first + count) of the batch.
class LayersJob final : public Job {
  public:
    LayersJob(const Model &m, const Batch &b, Activations &a, int64_t first, int64_t count, int64_t threads)
        : m_(m), b_(b), ids_(b.token_ids + first), positions_(b.positions + first), slots_(b.slots + first),
          count_(count), width_((m.num_heads + 2 * m.num_kv_heads) * m.head_dim),
          hidden_(a.hidden.of(count * m.hidden_size)), normed_(a.normed.of(count * m.hidden_size)),
          qkv_(a.qkv.of(count * width_)), mixed_(a.mixed.of(count * m.num_heads * m.head_dim)),
          inner_(a.inner.of(count * m.inner_size)) {
        rows_each_ = std::max(FEW_ROWS, cut(count, CHUNKS * threads));
        const Layer &layer = m.layers[0];
        cuts_[1] = Cuts(count, layer.qkv, 1, threads);
        cuts_[4] = Cuts(count, layer.o, 1, threads);
        cuts_[6] = Cuts(count, layer.gate_up, 2, threads);
        cuts_[7] = Cuts(count, layer.down, 1, threads);
        cut_rows(first, threads);
    }

    const float *normed() const { return normed_; }

    int64_t chunks(int64_t phase) const override {
        if (phase > m_.num_layers * 8) return -1;
        if (phase == m_.num_layers * 8) return cut(count_, rows_each_);
        switch (phase % 8) {
        case 0: case 2: case 5: return cut(count_, rows_each_);
        case 3: return int64_t(tiles_.size()) * head_cuts_;
        default: return cuts_[phase % 8].count();
        }
    }

    void run(int64_t phase, int64_t chunk) override {
        if (phase == m_.num_layers * 8) return norm(chunk, m_.norm);
        const Layer &layer = m_.layers[phase / 8];
        switch (phase % 8) {
        case 0:
            if (phase == 0) embed(chunk);
            return norm(chunk, layer.input_norm);
        case 1: return cuts_[1].run(chunk, normed_, layer.qkv, Write<false>{layer.qkv, qkv_, width_});
        case 2: return rotate_and_store(chunk, layer, pool(phase / 8));
        case 3: return attend(chunk, layer, pool(phase / 8));
        case 4: return cuts_[4].run(chunk, mixed_, layer.o, Write<true>{layer.o, hidden_, m_.hidden_size});
        case 5: return norm(chunk, layer.post_norm);
        case 6: return cuts_[6].run(chunk, normed_, layer.gate_up, SiluMul{layer.gate_up, inner_, m_.inner_size, {}});
        default: return cuts_[7].run(chunk, inner_, layer.down, Write<true>{layer.down, hidden_, m_.hidden_size});
        }
    }

  private:
    PoolLayer pool(int64_t layer) const {
        return {b_.pool[layer], b_.block_size, m_.num_kv_heads, m_.head_dim, b_.pool_is_bfloat16 != 0};
    }

    void cut_rows(int64_t first, int64_t threads) {
        const int64_t most = std::max<int64_t>(1, QUERIES / (m_.num_heads / m_.num_kv_heads));
        const int64_t each = std::clamp<int64_t>(cut(count_ * m_.num_kv_heads, 4 * threads), 1, most);
        int64_t start = 0;  // of a row, in the whole batch
        for (int64_t row = 0; row < b_.num_rows; start += b_.query_lens[row++]) {
            const int64_t from = std::max(start, first), to = std::min(start + b_.query_lens[row], first + count_);
            for (int64_t t = from; t < to; t += each) tiles_.push_back({row, t - first, std::min(each, to - t)});
        }
        units_ = m_.num_kv_heads * cut(m_.num_heads / m_.num_kv_heads, QUERIES);
        const bool shares = threads > 1 && int64_t(tiles_.size()) < 2 * threads;  // too few tiles for all threads
        heads_each_ = shares ? 1 : std::min(units_, MOST_HEADS);
        head_cuts_ = cut(units_, heads_each_);
    }

    void embed(int64_t chunk) {
        const int64_t size = m_.hidden_size;
        for (int64_t t = chunk * rows_each_; t < std::min(count_, (chunk + 1) * rows_each_); t++) {
            float *to = hidden_ + t * size;
            if (!m_.embedding_is_bfloat16)
                std::memcpy(to, (const float *)m_.embedding + ids_[t] * size, size_t(size) * sizeof(float));
            else
                for (int64_t i = 0; i < size; i++) to[i] = widened(((const uint16_t *)m_.embedding)[ids_[t] * size + i]);
        }
    }

    void norm(int64_t chunk, const float *weight) {
        for (int64_t t = chunk * rows_each_; t < std::min(count_, (chunk + 1) * rows_each_); t++)
            rms_norm(hidden_ + t * m_.hidden_size, weight, float(m_.norm_epsilon), m_.hidden_size,
                     normed_ + t * m_.hidden_size);
    }

    // Keys and values of a token whose slot lies in the null block are in the pool already, or wanted by nobody.
    void rotate_and_store(int64_t chunk, const Layer &layer, const PoolLayer &pool) {
        const int64_t dim = m_.head_dim;
        const float scale = 1.0f / std::sqrt(float(dim));
        for (int64_t t = chunk * rows_each_; t < std::min(count_, (chunk + 1) * rows_each_); t++) {
            float *heads = qkv_ + t * width_;
            for (int64_t h = 0; h < m_.num_heads; h++) rotate(heads + h * dim, positions_[t], layer.q_norm, scale);
            if (slots_[t] < b_.block_size) continue;
            float *keys = heads + m_.num_heads * dim, *values = keys + m_.num_kv_heads * dim;
            for (int64_t h = 0; h < m_.num_kv_heads; h++) {
                rotate(keys + h * dim, positions_[t], layer.k_norm, 1.0f);
                pool.write(pool.key_of(slots_[t], h), keys + h * dim);
                pool.write(pool.value_of(slots_[t], h), values + h * dim);
            }
        }
    }

    void rotate(float *head, int64_t position, const float *norm, float scale) const {
        const int64_t dim = m_.head_dim, half = dim / 2;
        if (norm != nullptr) rms_norm(head, norm, float(m_.norm_epsilon), dim, head);
        const float *cos = m_.rotary + position * 2 * dim, *sin = cos + dim;
        for (int64_t i = 0; i < half; i++) {
            const float low = head[i], high = head[i + half];
            head[i] = (low * cos[i] + high * sin[i]) * scale;
            head[i + half] = (high * cos[i + half] + low * sin[i + half]) * scale;
        }
    }

    void attend(int64_t chunk, const Layer &layer, const PoolLayer &pool) {
        const Tile &tile = tiles_[size_t(chunk / head_cuts_)];
        const int64_t first = chunk % head_cuts_ * heads_each_, last = std::min(units_, first + heads_each_);
        const int64_t dim = m_.head_dim;
        float *room = thread_room(2 * heads_each_ * QUERIES * dim + RowAttention::size(dim));
        HeadQueries heads[MOST_HEADS];
        for (int64_t unit = first; unit < last; unit++, room += 2 * QUERIES * dim)
            ask(heads[unit - first], unit, tile, room);
        RowAttention(pool, layer.window, b_.tables + tile.row * b_.table_width, room).attend(heads, last - first);
        for (int64_t unit = first; unit < last; unit++)
            each_query(unit, tile, [&](int64_t q, int64_t t, int64_t head) {
                std::memcpy(mixed_ + (t * m_.num_heads + head) * dim, heads[unit - first].mixed + q * dim,
                            size_t(dim) * sizeof(float));
            });
    }

    // A unit is a key-value head with as many of its query heads as one pass over the keys takes, most often all.
    template <class Each> void each_query(int64_t unit, const Tile &tile, Each each) const {
        const int64_t group = m_.num_heads / m_.num_kv_heads, parts = cut(group, QUERIES);
        const int64_t first = unit % parts * QUERIES, some = std::min(QUERIES, group - first);
        for (int64_t t = 0; t < tile.count; t++)
            for (int64_t h = 0; h < some; h++) each(t * some + h, tile.first + t, unit / parts * group + first + h);
    }

    void ask(HeadQueries &asked, int64_t unit, const Tile &tile, float *room) const {
        const int64_t dim = m_.head_dim;
        asked.kv_head = unit / cut(m_.num_heads / m_.num_kv_heads, QUERIES);
        asked.count = 0;
        asked.queries = room;
        asked.mixed = room + QUERIES * dim;
        each_query(unit, tile, [&](int64_t q, int64_t t, int64_t head) {
            asked.positions[q] = positions_[t];
            asked.count = q + 1;
            std::memcpy(room + q * dim, qkv_ + t * width_ + head * dim, size_t(dim) * sizeof(float));
        });
    }

    const Model &m_;
    const Batch &b_;
    const int64_t *ids_, *positions_, *slots_;
    const int64_t count_, width_;
    float *hidden_, *normed_, *qkv_, *mixed_, *inner_;
    int64_t rows_each_, units_, heads_each_, head_cuts_;
    Cuts cuts_[8];
    std::vector<Tile> tiles_;
};

}  // namespace paceline
