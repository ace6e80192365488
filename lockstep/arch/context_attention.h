// Attention of sequences that the ranks of cp hold in parts, in the order in which parallel/context allocates, calls and releases.
#pragma once

#include <cstdint>

#include "lockstep/arch/layer_builder.h"

namespace lockstep::arch {

// Of this rank, before heads are exchanged for tokens.
struct AttentionHeads {
  int64_t queries = 0, keys = 0;            // heads
  int64_t key_width = 0, value_width = 0;
  // > 0: width of the latent that keys and values are made of, with that of the key that all heads share: a ring sends these.
  int64_t latent = 0, shared_key = 0;
  int64_t made() const { return key_width - shared_key + value_width; }  // of a head, of the latent
};

// Where queries, keys and values of a rank come together.
struct ContextPlan {
  ContextPlan() = default;
  ContextPlan(const Sizes& s, const AttentionHeads& heads);
  int exchanged = 1;  // ranks that exchange heads for tokens
  int ring = 1;       // ranks among which keys and values go round
  int hops = 0;       // how far they go: a window may reach less than all
  int64_t ends = 0;   // > 0: nothing goes round, but so many tokens of the end of each piece to who has the next (ContextShard)
  int pieces = 0;     // of a rank that sends ends
  int gathered = 1;   // ranks whose keys and values are gathered
  int64_t queries = 0, keys = 0;  // heads that a rank works on: as many as the rank with most, empty ones included
  int64_t rows = 0;   // M: of all tokens that it works on queries of
  int64_t of_sequence = 0;  // of each sequence
  // Keys that such a query sees, on average and rounded down; of a contiguous split those of the last tokens, of the rank with most.
  int64_t keys_seen = 0;
};

// Of whole sequences: which keys each token sees, as attention keeps them; 0 where that is all before it.
int64_t span_bytes(const Sizes& s);

class ContextAttention {
 public:
  // Makes what is kept beside q, k, v and the output, where heads are exchanged. Of several ranks.
  ContextAttention(LayerBuilder& b, const AttentionHeads& heads);

  void make_forward_calls(LayerBuilder& b, const Branch& branch);
  void make_backward_calls(LayerBuilder& b, const Branch& branch);
  // From q, k, v to `out`, and to `logsumexp` where heads are not exchanged; both are taken.
  void forward(LayerBuilder& b, int out, int logsumexp) const;
  void backward(LayerBuilder& b) const;  // to the gradients, in the place of q, k, v

  const ContextPlan plan;
  // Latents go round: keys and values are made of each block, forward and backward, with all of the weight's gradient.
  bool sends_latents() const { return heads_.latent > 0 && !exchanges() && plan.ring > 1; }

 private:
  bool exchanges() const { return plan.exchanged > 1; }
  void take_heads(LayerBuilder& b) const;
  void give_output(LayerBuilder& b, int out) const;
  void ring_forward(LayerBuilder& b) const;
  void ring_backward(LayerBuilder& b) const;
  void ends_forward(LayerBuilder& b) const;
  void ends_backward(LayerBuilder& b) const;
  void gathered_backward(LayerBuilder& b) const;
  void give_gradients(LayerBuilder& b) const;
  int64_t rectangle_bytes(LayerBuilder& b) const;
  void attend_forward(LayerBuilder& b) const;
  void attend_backward(LayerBuilder& b) const;

  const AttentionHeads heads_;
  int64_t block_ = 0;              // numbers of the keys and values of one rank
  int64_t end_ = 0;                // of the end of one piece
  int64_t taken_ = 0, given_ = 0;  // numbers of q, k, v of all heads and tokens that are exchanged, and of the output
  int64_t repeated_ = 0;           // numbers of keys and values of a block, one for each query head, where these are made or copied
  int rows_ = kNoValue, out_ = kNoValue, logsumexp_ = kNoValue;  // of exchanged heads, kept
  // Alive within a pass: fp32 sums, blocks of keys and values, messages; and their gradients.
  int shared_ = kNoValue, sums_ = kNoValue, block_here_ = kNoValue, coming_ = kNoValue, all_ = kNoValue, sent_ = kNoValue, output_ = kNoValue;
  int end_sent_ = kNoValue, end_came_ = kNoValue, dend_ = kNoValue;  // of one piece
  int dq_ = kNoValue, dblock_ = kNoValue, dall_ = kNoValue, dkeys_ = kNoValue;
  static constexpr int kNone = LayerBuilder::kNoCall;
  int heads_forward_ = kNone, heads_back_ = kNone, dout_exchange_ = kNone, dheads_exchange_ = kNone;
  int gather_forward_ = kNone, gather_again_ = kNone, scatter_ = kNone;
  struct EndCalls {
    int forward = kNone, again = kNone, home = kNone;
  };
  EndCalls ends_[2];  // of an early piece; of a late one
  int ring_forward_ = kNone, ring_again_ = kNone, ring_backward_ = kNone, ring_home_ = kNone;
};

}  // namespace lockstep::arch
