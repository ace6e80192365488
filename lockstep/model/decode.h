// Generation with a key/value cache: prompts at once, then token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/model/block.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/head.h"
#include "lockstep/nn/layer.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::model {

// Keys and values of every block for the sequences of `slots` slots, each of its own length and at most `capacity` tokens.
class KvCache {
 public:
  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t slot) const { return lengths_.at(static_cast<size_t>(slot)); }
  int64_t capacity() const { return capacity_; }
  // Forgets the tokens of a slot from `length` on.
  void truncate(int64_t slot, int64_t length);

 private:
  friend class Decoder;
  KvCache(int64_t slots, int64_t capacity) : lengths_(static_cast<size_t>(slots)), capacity_(capacity) {}
  std::vector<std::vector<nn::KvCacheLayer>> blocks_;  // by branches
  std::vector<int64_t> lengths_;
  int64_t capacity_ = 0;
};

// The training layers' parts over the same parameters, without dropout; experts drop no token. Holds views of the parameters, not
// copies.
class Decoder {
 public:
  // `tensor`: the ranks that hold the model together, without sequence parallelism. Null: one rank. `experts`: those of them that
  // share out its experts, of which `source` has this rank's. Null: each rank has all experts. Both outlive this.
  Decoder(const arch::ModelConfig& model, nn::ParameterSource& source, parallel::TensorGroup* tensor = nullptr,
          parallel::ExpertGroup* experts = nullptr);

  // A cache on the parameters' device and in their dtype, of this rank's key/value heads. capacity <= max_seq_len.
  KvCache new_cache(int64_t slots, int64_t capacity) const;

  // Collective over `tensor`: the same call on every rank, which all get all logits.
  // Appends row b of tokens [B, T] int64 to the sequence in slots[b] (all different) and returns the logits after each
  // row's last token, fp32 [B, V]. In fp32 on the CPU with B <= nn::kFewRows and T = 1 a sequence's logits do not depend,
  // to the bit, on those beside it.
  at::Tensor append(const at::Tensor& tokens, std::span<const int64_t> slots, KvCache& cache);

 private:
  arch::ModelConfig model_;
  at::TensorOptions options_;
  std::unique_ptr<nn::Embedding> embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<nn::Head> head_;
};

}  // namespace lockstep::model
