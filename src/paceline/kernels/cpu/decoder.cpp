// One forward pass of a Llama-family decoder on a CPU, in one call: embedding, layers, final norm, head.
//
// Activations are float32 whatever the weights and the cache are. Each phase of a layer (pool.h) is cut into chunks of
// rows and outputs; no sum is ever cut, so neither threads nor other rows change a row's bits. Models and batches are
// described by plain structures, the counterparts of those in cpu_decoder.py.
#include <algorithm>
#include <memory>
#include <vector>

#include "attention.h"
#include "pool.h"

namespace paceline {

struct Layer {
    Linear qkv, o, gate_up, down;
    const float *input_norm, *post_norm, *q_norm, *k_norm;  // the last two null without norms of heads
    int64_t window;                                         // 0: all positions
};

struct Model {
    int64_t vocab_size, hidden_size, inner_size, num_layers, num_heads, num_kv_heads, head_dim;
    const Layer *layers;
    const float *norm;
    const float *rotary;  // [positions, 2, head_dim]: cos, signed sin
    const void *embedding;  // [vocab_size, hidden_size]
    int64_t embedding_is_bfloat16;
    Linear head;
    const int64_t *head_tokens;  // [head.outputs] of a reduced head, or null
    double norm_epsilon;
};

struct Batch {
    int64_t num_tokens, num_rows, num_logits, table_width, block_size, pool_is_bfloat16;
    const int64_t *token_ids, *positions, *slots, *tables, *query_lens, *logits_indices;
    void *const *pool;   // a pointer a layer
    float *logits;       // [num_logits, vocab_size]
    float *peaks;        // [num_logits]: the largest of each row, NaN if there is one in it
    int64_t *likeliest;  // [num_logits]: the first token that has it
    float *hidden;       // [num_tokens, hidden_size]: final hidden states, or null
    uint8_t *finite;     // [num_rows], set to 1 by the caller
};

constexpr int64_t PIECE = 384;            // tokens that go through the layers together: bounds the activations
constexpr int64_t NEAR_BYTES = 192 << 10;  // of a product's input rows, which stay in the cache while weights pass
constexpr int64_t FEW_ROWS = 4;            // of a chunk of norms or rotations
constexpr int64_t MOST_HEADS = 8;          // key-value heads of a chunk of attention
constexpr int64_t CHUNKS = 6;              // for each thread, where there is enough to do

static int64_t cut(int64_t count, int64_t by) { return (count + by - 1) / by; }

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

// Rows and panels of one product as chunks: the rows of a chunk stay in the cache.
struct Cuts {
    int64_t rows = 0, panels = 0, rows_each = 1, panels_each = 1, row_cuts = 0, panel_cuts = 0;
    Cuts() = default;
    // `unit`: neighbouring panels that belong together.
    Cuts(int64_t num_rows, const Linear &w, int64_t unit, int64_t threads) : rows(num_rows), panels(w.panels()) {
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
        product(x, w.inputs, row, std::min(rows, row + rows_each), w, panel, std::min(panels, panel + panels_each), emit);
    }
};

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

// The largest of `size` numbers (NaN if one is among them) and the first place that holds it.
static float peak_of(const float *from, int64_t size, int64_t *place) {
    f8 most = same(-INFINITY);
    i8 at = {0, 1, 2, 3, 4, 5, 6, 7}, where = at, wrong = at ^ at;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES, at += LANES) {
        const f8 some = load(from + i);
        const i8 better = some > most;
        most = better ? some : most;
        where = better ? at : where;
        wrong |= some != some;
    }
    float best = -INFINITY;
    *place = 0;
    bool is_nan = false;
    for (int lane = 0; lane < LANES; lane++) {
        is_nan |= wrong[lane] != 0;
        if (most[lane] > best || (most[lane] == best && where[lane] < *place)) best = most[lane], *place = where[lane];
    }
    for (; i < size; i++) {
        is_nan |= from[i] != from[i];
        if (from[i] > best) best = from[i], *place = i;
    }
    return is_nan ? NAN : best;
}

// Logits of `rows` final hidden states; those of a reduced head go to their tokens, all others are minus infinity.
class HeadJob final : public Job {
  public:
    HeadJob(const Model &m, const float *x, int64_t rows, const Batch &b, int64_t threads)
        : m_(m), b_(b), x_(x), rows_(rows), logits_(b.logits), cuts_(rows, m.head, 1, threads) {}

    int64_t chunks(int64_t phase) const override {
        if (phase == 0) return m_.head_tokens != nullptr ? rows_ : 0;
        if (phase == 1) return cuts_.count();
        return phase == 2 ? rows_ : -1;
    }

    void run(int64_t phase, int64_t chunk) override {
        if (phase == 0)
            std::fill_n(logits_ + chunk * m_.vocab_size, m_.vocab_size, -INFINITY);
        else if (phase == 2)
            b_.peaks[chunk] = peak_of(logits_ + chunk * m_.vocab_size, m_.vocab_size, b_.likeliest + chunk);
        else if (m_.head_tokens != nullptr)
            cuts_.run(chunk, x_, m_.head, Scatter{m_.head, logits_, m_.vocab_size, m_.head_tokens});
        else
            cuts_.run(chunk, x_, m_.head, Write<false>{m_.head, logits_, m_.vocab_size});
    }

  private:
    const Model &m_;
    const Batch &b_;
    const float *x_;
    const int64_t rows_;
    float *logits_;
    const Cuts cuts_;
};

// finite[row] = 0 if a token of it left the last layer with NaN or infinity: then the sum of its state is none.
static void note_failures(const Model &m, const Batch &b, const float *normed, int64_t first, int64_t count) {
    int64_t row = 0, end = b.query_lens[0];
    for (int64_t t = first; t < first + count; t++) {
        while (t >= end) end += b.query_lens[++row];
        float sum = 0.0f;
        for (int64_t i = 0; i < m.hidden_size; i++) sum += normed[(t - first) * m.hidden_size + i];
        if (!std::isfinite(sum)) b.finite[row] = 0;
    }
}

static void forward(const Model &m, const Batch &b, Activations &a, int threads) {
    Pool &pool = Pool::instance();
    const size_t row_bytes = size_t(m.hidden_size) * sizeof(float);
    std::vector<int64_t> wanted;  // tokens whose logits are asked for, each run of equal ones once
    for (int64_t i = 0; i < b.num_logits; i++)
        if (i == 0 || b.logits_indices[i] != b.logits_indices[i - 1]) wanted.push_back(b.logits_indices[i]);
    float *last = a.last.of(int64_t(wanted.size()) * m.hidden_size);
    for (int64_t first = 0; first < b.num_tokens; first += PIECE) {
        const int64_t count = std::min(PIECE, b.num_tokens - first);
        LayersJob layers(m, b, a, first, count, threads);
        pool.run(layers, threads);
        note_failures(m, b, layers.normed(), first, count);
        if (b.hidden != nullptr) std::memcpy(b.hidden + first * m.hidden_size, layers.normed(), size_t(count) * row_bytes);
        for (size_t i = 0; i < wanted.size(); i++)
            if (wanted[i] >= first && wanted[i] < first + count)
                std::memcpy(last + int64_t(i) * m.hidden_size, layers.normed() + (wanted[i] - first) * m.hidden_size, row_bytes);
    }
    HeadJob head(m, last, int64_t(wanted.size()), b, threads);
    if (!wanted.empty()) pool.run(head, threads);
    const size_t logits_bytes = size_t(m.vocab_size) * sizeof(float);
    int64_t from = int64_t(wanted.size()) - 1;  // spread out from the end: places only move up
    for (int64_t i = b.num_logits - 1; i >= 0; i--) {
        if (i != from) {
            std::memcpy(b.logits + i * m.vocab_size, b.logits + from * m.vocab_size, logits_bytes);
            b.peaks[i] = b.peaks[from];
            b.likeliest[i] = b.likeliest[from];
        }
        if (i > 0 && b.logits_indices[i] != b.logits_indices[i - 1]) from--;
    }
}

}  // namespace paceline

extern "C" {

void *paceline_activations() { return new (std::nothrow) paceline::Activations; }

void paceline_release(void *activations) { delete (paceline::Activations *)activations; }

// 0, or 1 if there is no memory for the activations.
int paceline_forward(const paceline::Model *model, const paceline::Batch *batch, void *activations, int threads) {
    try {
        paceline::forward(*model, *batch, *(paceline::Activations *)activations, threads);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}
}
