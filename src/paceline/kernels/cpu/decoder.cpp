// One forward pass of a Llama-family decoder on a CPU, in one call: embedding, layers, final norm, head.
//
// Activations are float32 whatever the weights and the cache are. Each phase of a layer (pool.h) is cut into chunks of
// rows and outputs; no sum is ever cut, so neither threads nor other rows change a row's bits.
#include <memory>

#include "drafting.h"
#include "head.h"
#include "layers.h"

namespace paceline {

constexpr int64_t PIECE = 384;            // tokens that go through the layers together: bounds the activations

constexpr int64_t WORTH_LEAVING_OUT = 16;  // tokens: fewer cost less than to read the last layer's weights twice

// finite[row] = 0 if one of its tokens has NaN or infinity among its `size` numbers: then their sum is none.
static void note_failures(const Batch &b, const Tokens &tokens, const float *from, int64_t stride, int64_t size) {
    for (int64_t t = 0; t < tokens.count(); t++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < size; i++) sum += from[t * stride + i];
        if (!std::isfinite(sum)) b.finite[tokens.rows[size_t(t)]] = 0;
    }
}

// Tokens through all layers; of those that are not among `places` nothing is wanted but keys and values. What was wanted
// stands in the returned final states [places], or without `places` all of them.
static const float *through_layers(const Model &m, const Batch &b, Activations &a, const Tokens &tokens,
                                   const std::vector<int64_t> *places, int threads) {
    Pool &pool = Pool::instance();
    LayersJob layers(m, b, a, tokens, threads);
    if (places == nullptr) {
        pool.run(layers, threads);
        note_failures(b, tokens, layers.normed(), m.hidden_size, m.hidden_size);
        return layers.normed();
    }
    layers.only_keys_of_last_layer();
    pool.run(layers, threads);
    note_failures(b, tokens, layers.normed(), m.hidden_size, m.hidden_size);
    note_failures(b, tokens, layers.keys_values(0), layers.keys_values_stride(), layers.keys_values_size());
    if (places->empty()) return nullptr;
    float *hidden = a.wanted.of(int64_t(places->size()) * m.hidden_size);
    for (size_t i = 0; i < places->size(); i++)
        std::memcpy(hidden + int64_t(i) * m.hidden_size, layers.hidden() + (*places)[i] * m.hidden_size,
                    size_t(m.hidden_size) * sizeof(float));
    const Tokens wanted(tokens, *places);
    LayersJob last(m, b, a, wanted, threads);
    last.only_last_layer(hidden);
    pool.run(last, threads);
    note_failures(b, wanted, last.normed(), m.hidden_size, m.hidden_size);
    return last.normed();
}

// Final states [wanted, hidden_size] of the tokens at places `wanted` of the batch, through all layers.
static const float *final_states(const Model &m, const Batch &b, Activations &a, const std::vector<int64_t> &wanted,
                                 int threads) {
    const size_t row_bytes = size_t(m.hidden_size) * sizeof(float);
    float *last = a.last.of(int64_t(wanted.size()) * m.hidden_size);
    for (int64_t first = 0; first < b.num_tokens; first += PIECE) {
        const int64_t count = std::min(PIECE, b.num_tokens - first);
        const Tokens tokens(b, first, count);
        std::vector<int64_t> places, rows;  // of what is wanted: in the piece, and in `last`
        for (size_t i = 0; i < wanted.size(); i++)
            if (wanted[i] >= first && wanted[i] < first + count) {
                places.push_back(wanted[i] - first);
                rows.push_back(int64_t(i));
            }
        const bool leaves_out = b.hidden == nullptr && count - int64_t(places.size()) >= WORTH_LEAVING_OUT
            && std::is_sorted(places.begin(), places.end());
        const float *normed = through_layers(m, b, a, tokens, leaves_out ? &places : nullptr, threads);
        if (b.hidden != nullptr) std::memcpy(b.hidden + first * m.hidden_size, normed, size_t(count) * row_bytes);
        for (size_t i = 0; i < places.size(); i++)
            std::memcpy(last + rows[i] * m.hidden_size, normed + (leaves_out ? int64_t(i) : places[i]) * m.hidden_size,
                        row_bytes);
    }
    return last;
}

static void forward(const Model &m, const Batch &b, Activations &a, int threads) {
    std::vector<int64_t> wanted;  // tokens whose logits are asked for, each run of equal ones once
    for (int64_t i = 0; i < b.num_logits; i++)
        if (i == 0 || b.logits_indices[i] != b.logits_indices[i - 1]) wanted.push_back(b.logits_indices[i]);
    HeadJob head(m, final_states(m, b, a, wanted, threads), int64_t(wanted.size()), b, threads);
    if (!wanted.empty()) Pool::instance().run(head, threads);
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

// The likeliest token behind each of the batch's `logits_indices`, no two alike; no logits are kept.
static void likeliest_tokens(const Model &m, const Batch &b, Activations &a, int threads) {
    const std::vector<int64_t> wanted(b.logits_indices, b.logits_indices + b.num_logits);
    const float *states = final_states(m, b, a, wanted, threads);
    PeaksJob head(m, states, b, a.logits.of(b.num_logits * m.head.outputs), threads);
    Pool::instance().run(head, threads);
}

// Greedy drafts: the batch's pass, then a pass a draft over the tokens found by the one before it. Rows leave when
// they have theirs.
static void draft(const Model &m, const Batch &b, const Drafts &d, Activations &a, int threads) {
    likeliest_tokens(m, b, a, threads);
    DraftPass pass(b, d);
    while (pass.next()) likeliest_tokens(m, pass.batch(), a, threads);
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

// As above; `batch` has one logits index a drafting row, and no room for logits.
int paceline_draft(const paceline::Model *model, const paceline::Batch *batch, const paceline::Drafts *drafts,
                   void *activations, int threads) {
    try {
        paceline::draft(*model, *batch, *drafts, *(paceline::Activations *)activations, threads);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}
}
