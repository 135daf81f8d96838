// The layers of a decoder: embedding, then eight phases a layer, then the final norm.
//
// Of most of a prompt's tokens only the last layer's keys and values are wanted, no logits: its queries, attention and
// MLP are then computed for the others alone (decoder.cpp): 3 % of a prompt's time in a model of thirty layers, and a
// quarter in a draft of three.
#pragma once

#include "cuts.h"
#include "pool.h"
#include "tokens.h"

namespace paceline {

constexpr int64_t FEW_ROWS = 4;            // of a chunk of norms
constexpr int64_t SOME_ROWS = 8;           // of a chunk of rotations: tokens of one row share lines of the pool's keys
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
    Scratch hidden, normed, qkv, mixed, inner, last, wanted, logits;
};

static float *thread_room(int64_t count) {
    static thread_local Scratch scratch;
    return scratch.of(count);
}

// All layers and the final norm, or some of it, for some tokens.
class LayersJob final : public Job {
  public:
    LayersJob(const Model &m, const Batch &b, Activations &a, const Tokens &tokens, int64_t threads)
        : m_(m), b_(b), tokens_(tokens), count_(tokens.count()), width_((m.num_heads + 2 * m.num_kv_heads) * m.head_dim),
          hidden_(a.hidden.of(count_ * m.hidden_size)), normed_(a.normed.of(count_ * m.hidden_size)),
          qkv_(a.qkv.of(count_ * width_)), mixed_(a.mixed.of(count_ * m.num_heads * m.head_dim)),
          inner_(a.inner.of(count_ * m.inner_size)), end_(m.num_layers * PHASES + 1) {
        rows_each_ = std::max(FEW_ROWS, cut(count_, CHUNKS * threads));
        rotated_each_ = std::max(SOME_ROWS, rows_each_);
        const Layer &layer = m.layers[0];
        cuts_[1] = Cuts(count_, layer.qkv, 1, threads);
        cuts_[4] = Cuts(count_, layer.o, 1, threads);
        cuts_[6] = Cuts(count_, layer.gate_up, 2, threads);
        cuts_[7] = Cuts(count_, layer.down, 1, threads);
        keys_values_ = Cuts(count_, layer.qkv, 1, threads, first_key_panel());
        cut_rows(threads);
    }

    // To the last layer's keys and values: no queries, nothing behind them.
    void only_keys_of_last_layer() { end_ = last_layer() + 3; }
    // From there, with `hidden` [tokens, hidden_size] of the layer before.
    void only_last_layer(const float *hidden) {
        first_ = last_layer();
        std::memcpy(hidden_, hidden, size_t(count_ * m_.hidden_size) * sizeof(float));
    }

    const float *hidden() const { return hidden_; }
    const float *keys_values(int64_t token) const { return qkv_ + token * width_ + m_.num_heads * m_.head_dim; }
    int64_t keys_values_stride() const { return width_; }
    int64_t keys_values_size() const { return 2 * m_.num_kv_heads * m_.head_dim; }
    const float *normed() const { return normed_; }

    int64_t chunks(int64_t phase) const override {
        phase += first_;
        if (phase >= end_) return -1;
        if (phase == m_.num_layers * PHASES) return cut(count_, rows_each_);
        switch (phase % PHASES) {
        case 0: case 5: return cut(count_, rows_each_);
        case 2: return cut(count_, rotated_each_) * m_.num_kv_heads;
        case 1: return has_queries(phase) ? cuts_[1].count() : keys_values_.count();
        case 3: return int64_t(tiles_.size()) * head_cuts_;
        default: return cuts_[phase % PHASES].count();
        }
    }

    void run(int64_t phase, int64_t chunk) override {
        phase += first_;
        if (phase == m_.num_layers * PHASES) return norm(chunk, m_.norm);
        const Layer &layer = m_.layers[phase / PHASES];
        switch (phase % PHASES) {
        case 0:
            if (phase == 0) embed(chunk);
            return norm(chunk, layer.input_norm);
        case 1: {
            const Cuts &cuts = has_queries(phase) ? cuts_[1] : keys_values_;
            return cuts.run(chunk, normed_, layer.qkv, Write<false>{layer.qkv, qkv_, width_});
        }
        case 2: return rotate_and_store(chunk, layer, pool(phase / PHASES), has_queries(phase));
        case 3: return attend(chunk, layer, pool(phase / PHASES));
        case 4: return cuts_[4].run(chunk, mixed_, layer.o, Write<true>{layer.o, hidden_, m_.hidden_size});
        case 5: return norm(chunk, layer.post_norm);
        case 6: return cuts_[6].run(chunk, normed_, layer.gate_up, SiluMul{layer.gate_up, inner_, m_.inner_size, {}});
        default: return cuts_[7].run(chunk, inner_, layer.down, Write<true>{layer.down, hidden_, m_.hidden_size});
        }
    }

  private:
    static constexpr int64_t PHASES = 8;  // of a layer

    int64_t last_layer() const { return (m_.num_layers - 1) * PHASES; }
    bool has_queries(int64_t phase) const { return end_ > m_.num_layers * PHASES || phase < last_layer(); }
    // Panels from here on have all keys and values, the first of them perhaps some of the queries.
    int64_t first_key_panel() const { return m_.num_heads * m_.head_dim / PANEL; }

    PoolLayer pool(int64_t layer) const {
        return {b_.pool[layer], b_.block_size, m_.num_kv_heads, m_.head_dim, b_.pool_is_bfloat16 != 0};
    }

    void cut_rows(int64_t threads) {
        const int64_t most = std::max<int64_t>(1, QUERIES / (m_.num_heads / m_.num_kv_heads));
        const int64_t each = std::clamp<int64_t>(cut(count_ * m_.num_kv_heads, 4 * threads), 1, most);
        for (int64_t t = 0, end; t < count_; t = end) {
            for (end = t + 1; end < count_ && end < t + each && tokens_.rows[size_t(end)] == tokens_.rows[size_t(t)];) end++;
            tiles_.push_back({tokens_.rows[size_t(t)], t, end - t});
        }
        units_ = m_.num_kv_heads * cut(m_.num_heads / m_.num_kv_heads, QUERIES);
        // One head at a time where there are too few tiles for all threads, or where the keys of one are work enough.
        const bool shares = threads > 1 && int64_t(tiles_.size()) < 2 * threads;
        const bool is_long = each * (m_.num_heads / m_.num_kv_heads) > SOME;
        heads_each_ = shares || is_long ? 1 : std::min(units_, MOST_HEADS);
        head_cuts_ = cut(units_, heads_each_);
    }

    void embed(int64_t chunk) {
        const int64_t size = m_.hidden_size;
        for (int64_t t = chunk * rows_each_; t < std::min(count_, (chunk + 1) * rows_each_); t++) {
            float *to = hidden_ + t * size;
            if (!m_.embedding_is_bfloat16)
                std::memcpy(to, (const float *)m_.embedding + tokens_.ids[size_t(t)] * size, size_t(size) * sizeof(float));
            else
                for (int64_t i = 0; i < size; i++) to[i] = widened(((const uint16_t *)m_.embedding)[tokens_.ids[size_t(t)] * size + i]);
        }
    }

    void norm(int64_t chunk, const float *weight) {
        for (int64_t t = chunk * rows_each_; t < std::min(count_, (chunk + 1) * rows_each_); t++)
            rms_norm(hidden_ + t * m_.hidden_size, weight, float(m_.norm_epsilon), m_.hidden_size,
                     normed_ + t * m_.hidden_size);
    }

    // Of one key-value head and its queries. Keys and values of a token whose slot lies in the null block are in the
    // pool already, or wanted by nobody.
    void rotate_and_store(int64_t chunk, const Layer &layer, const PoolLayer &pool, bool has_queries) {
        const int64_t dim = m_.head_dim, group = m_.num_heads / m_.num_kv_heads;
        const int64_t head = chunk % m_.num_kv_heads, first = chunk / m_.num_kv_heads * rotated_each_;
        const float scale = 1.0f / std::sqrt(float(dim));
        for (int64_t t = first; t < std::min(count_, first + rotated_each_); t++) {
            float *heads = qkv_ + t * width_;
            const int64_t position = tokens_.positions[size_t(t)], slot = tokens_.slots[size_t(t)];
            for (int64_t h = head * group; has_queries && h < (head + 1) * group; h++)
                rotate(heads + h * dim, position, layer.q_norm, scale);
            if (slot < b_.block_size) continue;
            float *key = heads + (m_.num_heads + head) * dim, *value = key + m_.num_kv_heads * dim;
            rotate(key, position, layer.k_norm, 1.0f);
            pool.write(slot, head, key, value);
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
        const Tile &tile = tiles_[tiles_.size() - 1 - size_t(chunk / head_cuts_)];  // the longest of a prompt first
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
            asked.positions[q] = tokens_.positions[size_t(t)];
            asked.count = q + 1;
            std::memcpy(room + q * dim, qkv_ + t * width_ + head * dim, size_t(dim) * sizeof(float));
        });
    }

    const Model &m_;
    const Batch &b_;
    const Tokens &tokens_;
    const int64_t count_, width_;
    float *hidden_, *normed_, *qkv_, *mixed_, *inner_;
    int64_t rows_each_, rotated_each_, units_, heads_each_, head_cuts_;
    int64_t first_ = 0, end_;  // phases
    Cuts cuts_[PHASES], keys_values_;
    std::vector<Tile> tiles_;
};

}  // namespace paceline
