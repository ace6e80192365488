// Generation with a key/value cache: prompts at once, then token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/model/block.h"
#include "lockstep/model/decode_context.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/head.h"
#include "lockstep/nn/layer.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::model {

// Keys and values of every block for the sequences of `slots` slots, each of its own length and at most `capacity` tokens; of those, where
// the ranks of cp hold them in parts, the ones that this rank keeps. Of a state space the state behind the last token of each slot, whole on
// every rank.
class KvCache {
 public:
  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t slot) const { return lengths_.at(static_cast<size_t>(slot)); }  // on all ranks together, as is capacity
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const;  // on this rank
  // A state cannot be taken back to fewer tokens, but to none.
  bool can_truncate(int64_t slot, int64_t length) const;
  // Forgets the tokens of a slot from `length` on. InternalError where can_truncate says no.
  void truncate(int64_t slot, int64_t length);

 private:
  friend class Decoder;
  KvCache(int64_t slots, int64_t capacity) : lengths_(static_cast<size_t>(slots)), capacity_(capacity) {}
  std::vector<std::vector<nn::KvCacheLayer>> blocks_;  // by branches
  std::vector<int64_t> lengths_;
  std::vector<TokenOwners> owners_{};  // by slot; none: all tokens are here
  bool has_states_ = false;
  int64_t capacity_ = 0;
};

// The training layers' parts over the same parameters, without dropout; experts drop no token. Holds views of the parameters, not
// copies.
class Decoder {
 public:
  // `tensor`: the ranks that hold the model together, without sequence parallelism. Null: one rank. `experts`: those of them that
  // share out its experts, of which `source` has this rank's. Null: each rank has all experts. `context`: the ranks that have the same
  // part of the parameters and hold the tokens of every sequence in parts. Null: each rank has whole sequences. All outlive this.
  Decoder(const arch::ModelConfig& model, nn::ParameterSource& source, parallel::TensorGroup* tensor = nullptr,
          parallel::ExpertGroup* experts = nullptr, parallel::ContextGroup* context = nullptr);

  // A cache on the parameters' device and in their dtype, of this rank's key/value heads and of its part of the tokens, capacity / cp and
  // at most 2 more; states in fp32, of this rank's heads. capacity <= max_seq_len.
  KvCache new_cache(int64_t slots, int64_t capacity) const;

  // Collective over all ranks: the same call with the same tokens on every rank, which all get all logits, over `context` the same bits.
  // Appends row b of tokens [B, T] int64 to the sequence in slots[b] (all different) and returns the logits after each
  // row's last token, fp32 [B, V]. In fp32 on the CPU with B <= nn::kFewRows and T = 1 a sequence's logits do not depend,
  // to the bit, on those beside it.
  // Over `context`, where all slots are empty and T is at least 2 cp, each rank runs a part of the tokens (data/token_split.h); else all
  // of them run on every rank, each is kept on one, and queries see the tokens of all ranks. A state goes on alike on every rank.
  at::Tensor append(const at::Tensor& tokens, std::span<const int64_t> slots, KvCache& cache);

 private:
  // tokens [B, T] -> the rows of this rank, [B, T or fewer, D].
  at::Tensor embedded(const at::Tensor& tokens, std::span<const nn::CacheSpan> spans, bool cut) const;
  arch::ModelConfig model_;
  at::TensorOptions options_;
  parallel::ContextGroup* context_;  // null with one rank
  std::unique_ptr<nn::Embedding> embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<nn::Head> head_;
};

}  // namespace lockstep::model
