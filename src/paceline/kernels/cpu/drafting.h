// Drafting, one pass behind another: what the next pass reads, from what the last one found.
#pragma once

#include <cmath>
#include <vector>

#include "model.h"

namespace paceline {

class DraftPass {
  public:
    // `first`: the batch whose likeliest tokens are the first drafts, already found.
    DraftPass(const Batch &first, const Drafts &drafts)
        : first_(first), drafts_(drafts), tokens_(first.likeliest, first.likeliest + first.num_logits),
          peaks_(first.peaks, first.peaks + first.num_logits) {
        for (int64_t i = 0; i < first.num_logits; i++) active_.push_back(i);
    }

    // Keeps what the last pass found; false if nobody wants more. Else `batch()` is the next pass.
    bool next() {
        for (size_t i = 0; i < active_.size(); i++) {
            drafts_.token_ids[active_[i] * drafts_.most + step_] = tokens_[i];
            if (!std::isfinite(peaks_[i])) drafts_.finite[active_[i]] = 0;
        }
        step_++;
        std::vector<int64_t> active;
        ids_.clear();
        for (size_t i = 0; i < active_.size(); i++)
            if (drafts_.counts[active_[i]] > step_) {
                active.push_back(active_[i]);
                ids_.push_back(tokens_[i]);
            }
        active_ = active;
        if (active_.empty()) return false;
        lay_out();
        return true;
    }

    const Batch &batch() const { return batch_; }

  private:
    // One token a row, at the position behind the draft before it.
    void lay_out() {
        const size_t count = active_.size(), width = size_t(first_.table_width);
        positions_.resize(count), slots_.resize(count), places_.resize(count), finite_.assign(count, 1);
        tables_.resize(count * width), lengths_.assign(count, 1), tokens_.resize(count), peaks_.resize(count);
        for (size_t i = 0; i < count; i++) {
            const int64_t *table = first_.tables + drafts_.rows[active_[i]] * first_.table_width;
            const int64_t position = drafts_.starts[active_[i]] + step_ - 1, size = first_.block_size;
            std::copy_n(table, width, tables_.begin() + int64_t(i * width));
            positions_[i] = position;
            slots_[i] = table[position / size] * size + position % size;
            places_[i] = int64_t(i);
        }
        batch_ = first_;
        batch_.num_tokens = batch_.num_rows = batch_.num_logits = int64_t(count);
        batch_.token_ids = ids_.data(), batch_.positions = positions_.data(), batch_.slots = slots_.data();
        batch_.tables = tables_.data(), batch_.query_lens = lengths_.data(), batch_.logits_indices = places_.data();
        batch_.peaks = peaks_.data(), batch_.likeliest = tokens_.data(), batch_.finite = finite_.data();
    }

    const Batch &first_;
    const Drafts &drafts_;
    Batch batch_ = {};
    int64_t step_ = 0;
    std::vector<int64_t> active_, ids_, tokens_, positions_, slots_, places_, tables_, lengths_;
    std::vector<float> peaks_;
    std::vector<uint8_t> finite_;
};

}  // namespace paceline
