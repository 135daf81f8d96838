// The head: logits of some final hidden states, and the likeliest token of each.
#pragma once

#include "cuts.h"
#include "model.h"
#include "pool.h"

namespace paceline {

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

// The likeliest token of each final hidden state and its logit, and nothing else: a reduced head's logits stay as they
// are, [num_logits, head.outputs]. Its tokens ascend, so the first of equals is the same as among all tokens.
class PeaksJob final : public Job {
  public:
    PeaksJob(const Model &m, const float *x, const Batch &b, float *logits, int64_t threads)
        : m_(m), b_(b), x_(x), logits_(logits), cuts_(b.num_logits, m.head, 1, threads) {}

    int64_t chunks(int64_t phase) const override {
        if (phase == 0) return cuts_.count();
        return phase == 1 ? b_.num_logits : -1;
    }

    void run(int64_t phase, int64_t chunk) override {
        const int64_t size = m_.head.outputs;
        if (phase == 0) return cuts_.run(chunk, x_, m_.head, Write<false>{m_.head, logits_, size});
        int64_t place;
        b_.peaks[chunk] = peak_of(logits_ + chunk * size, size, &place);
        b_.likeliest[chunk] = m_.head_tokens != nullptr ? m_.head_tokens[place] : place;
    }

  private:
    const Model &m_;
    const Batch &b_;
    const float *x_;
    float *logits_;
    const Cuts cuts_;
};

}  // namespace paceline
