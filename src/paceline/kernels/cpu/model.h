// What a model and a batch are, as plain structures: the counterparts of those in cpu_decoder.py.
#pragma once

#include "attention.h"

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

// What is drafted behind a batch, for each of its `num_logits` rows that draft, in order.
struct Drafts {
    int64_t most;            // of any row
    const int64_t *rows;     // [num_logits]: the row of the batch
    const int64_t *counts;   // [num_logits]: drafts wanted, at least 1
    const int64_t *starts;   // [num_logits]: position of the first
    int64_t *token_ids;      // [num_logits, most]; of each row the first `counts` are written
    uint8_t *finite;         // [num_logits], set to 1 by the caller; 0: a logit was NaN or infinite
};

}  // namespace paceline
