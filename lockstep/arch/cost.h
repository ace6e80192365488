// What a layer costs, folded from its description: FLOPs, MFU, memory prediction and simulation derive from it, and tests
// hold it against what the running layer does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "lockstep/arch/params.h"
#include "lockstep/config/run_config.h"

namespace lockstep::arch {

// F, B or I of a block whose experts lie on several ranks, divided where rows leave for the experts and where they come back.
struct PartCost {
  std::array<double, 3> flops{};       // of each part
  std::array<int64_t, 2> between{};    // bytes alive beside Saved from one part to the next, with what is on its way; of F its x is in them
  std::array<int64_t, 3> workspace{};  // peak inside a part, less the larger of what is alive before and behind it
};

// What one layer does for one microbatch of [B, S] tokens on one rank. Scratch inside kernels is that of the CPU's. Bytes of experts are
// those of the worst case: all tokens of the ranks that share them come to this one.
struct LayerCost {
  // Of matrix products, attention's causal half counted as such (of a rank of cp its share of the pairs, of a contiguous split that of the last rank), and experts as if all got as many tokens. The head's F makes none: its I makes loss and gradients (nn/head.h).
  double forward_flops = 0;
  double backward_flops = 0;   // of I and W
  double weight_flops = 0;     // of W
  double input_flops() const { return backward_flops - weight_flops; }  // of I
  int64_t memory_traffic = 0;  // bytes of pointwise work, forward; of the head: of the loss
  int64_t kept = 0;            // bytes alive for backward after forward, under CostInput::recompute: everything in its
                               // Saved, so a block's and the head's input x is in it and the output is not (it is the
                               // next layer's input).
                               // Tokens and targets belong to the microbatch and are not counted.
  int64_t output = 0;          // bytes of the layer's output: the activation handed on, and of its gradient. The head has none.
  int64_t forward_workspace = 0;   // peak inside a training forward, less x, kept (x in it counted once) and output
  int64_t restored = 0;            // bytes that RECOMPUTE adds to `kept`, under CostInput::recompute
  int64_t recompute_workspace = 0;  // peak inside RECOMPUTE, less kept and restored
  int64_t backward_workspace = 0;  // peak inside I then W, less what was kept and restored, dy and dx
  // I and W apart (zero-bubble schedules: Qi et al. 2023).
  int64_t held = 0;                // bytes in Saved between them: operands of the weight gradients. dy is one of them where
                                   // the last linear takes it as it comes, so without dropout and sequence parallelism.
  int64_t input_workspace = 0;     // peak inside I, less what was kept and restored, dy and dx
  int64_t weight_workspace = 0;    // peak inside W, less held
  // Zeros where a layer is not divided.
  PartCost forward_parts{};
  PartCost backward_parts{};       // of B, its W in the last part
  PartCost input_parts{};          // of I
};

using config::Recompute;

// How a rank of cp holds its part of every sequence.
struct ContextShard {
  int ranks = 1;  // of cp
  config::ContextKind kind = config::ContextKind::kRing;
  int inner = 1;  // of 2d: ranks that exchange heads for tokens
  config::ContextSplit split = config::ContextSplit::kZigzag;
  bool documents = false;  // tokens see their own alone, whose work zigzag balances: its pieces are not equal then
  // Tokens of a sequence of `length` that each rank holds, filled up where they do not divide: 2 pieces of equal size with zigzag.
  int64_t tokens_here(int64_t length) const {
    if (ranks == 1) return length;
    const int64_t pieces = split == config::ContextSplit::kZigzag ? 2 * int64_t{ranks} : ranks;
    return (length + pieces - 1) / pieces * (pieces / ranks);
  }
  int pieces() const { return split == config::ContextSplit::kZigzag ? 2 : 1; }  // of a rank
  // In a ring of so many ranks with `tokens` of a sequence each: how many tokens before a piece its queries see, where they are all in
  // the piece before it and every rank has equal, consecutive pieces. Those alone are sent, to the neighbours. 0: they go round.
  int64_t window_ends(int ring, int64_t tokens, int64_t window) const {
    const bool equal = split == config::ContextSplit::kContiguous || !documents;
    return ring > 1 && window > 1 && window - 1 <= tokens / pieces() && equal ? window - 1 : 0;
  }
  // Else: how far keys and values go round in a ring of so many ranks with `tokens` of a sequence each: beyond no query sees them, whatever the
  // documents are. `window`: tokens that a query sees; 0: all. With zigzag the neighbours of a piece are on both sides, so all the way.
  int ring_hops(int ring, int64_t tokens, int64_t window) const {
    if (window <= 0 || (window > 1 && split == config::ContextSplit::kZigzag)) return ring - 1;
    return window == 1 ? 0 : static_cast<int>(std::min<int64_t>(ring - 1, (window - 2) / tokens + 1));
  }
};

struct CostInput {
  int64_t batch = 1;         // B: sequences of the microbatch
  int64_t seq_len = 1;       // S, of whole sequences
  int64_t element_size = 4;  // of activations and compute weights: 4 fp32, 2 bf16
  int threads = 1;           // compute threads: kernels have a scratch area per thread
  TensorShard tensor{};      // whose part of the layer
  config::MoeSection moe{};  // of a layer with experts: what they drop, which losses they make, how much room a rank has
  config::Dispatcher dispatcher = config::Dispatcher::kAllToAll;  // of ep x etp
  int node_ranks = 1;        // of a hierarchical dispatcher: ranks of ep x etp on a node
  Recompute recompute = Recompute::kNone;  // of a block
  ContextShard context{};    // which part of each sequence is here
  bool places = false;       // of documents, or of parts of sequences (nn::TokenPlaces)
  bool overlap = false;      // with tp: in action B weight gradients run beside the communication, not behind it
};

LayerCost layer_cost(const ModelConfig& model, const LayerSpec& layer, const CostInput& input);

// Rows of logits the head holds at a time, of a vocabulary cut over `ranks`: as many as fit 16 MiB of fp32, yet enough that adding
// to the gradient of the weight costs less than the product.
int64_t head_chunk_rows(int64_t vocab_size, int ranks = 1);

// Model FLOPs of training: 6 x MACs, of attention its causal half, as far as the window of each layer lets see, of experts those that a
// token goes through, of state spaces the products of the scan in whole chunks.
class ModelFlops {
 public:
  explicit ModelFlops(const ModelConfig& model);
  // Of one token on average, in a document of so many that see nothing else.
  double per_token(int64_t length) const;

 private:
  double of_one_ = 0;  // of a token that sees itself alone
  std::map<int64_t, double> per_pair_{};  // by window, 0 for all: what each further token that it sees adds
};
// The same of sequences that are one document each.
double model_flops_per_token(const ModelConfig& model, int64_t seq_len);

}  // namespace lockstep::arch
