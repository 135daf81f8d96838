// One forward pass of a Llama-family decoder on a CPU, in one call: embedding, layers, final norm, head.
//
// Activations are float32 whatever the weights and the cache are. Each phase of a layer (pool.h) is cut into chunks of
// rows and outputs; no sum is ever cut, so neither threads nor other rows change a row's bits.
#include <memory>

#include "head.h"
#include "layers.h"

namespace paceline {

constexpr int64_t PIECE = 384;            // tokens that go through the layers together: bounds the activations

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
