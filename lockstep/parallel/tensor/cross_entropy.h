// Softmax cross-entropy of logits whose vocabulary the ranks of a group share (Shoeybi et al. 2019, section 3): for whoever has
// logits; VocabParallelHead (vocabulary.h) makes them too, a chunk of rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "lockstep/mesh/placement.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

class VocabParallelCrossEntropy {
 public:
  // The group outlives it. `name`: of its call in ledgers and messages.
  VocabParallelCrossEntropy(TensorGroup& group, int64_t vocab_size, std::string_view name = "cross_entropy");

  // The tokens whose logits are here: V need not divide (mesh::shard_range).
  const mesh::Range& tokens() const { return tokens_; }

  // logits [m, V/tp] fp32 or bf16, contiguous; targets [m] int64, token ids of the whole vocabulary, nn::kIgnoredTarget = not counted;
  // m and targets are the same on all ranks. Returns the sum of the losses of all rows, fp32 0-d, the same bits on every rank, and
  // leaves in `logits` the gradient of that sum: softmax - onehot of the tokens here.
  //   all_gather of 3 fp32 a row (largest logit, sum of exponentials, the target's logit) / backward: nothing
  // InternalError where the shapes do not fit.
  at::Tensor loss_(at::Tensor logits, const at::Tensor& targets);

 private:
  TensorGroup& group_;
  const mesh::Range tokens_;
  const program::CallId call_;
};

}  // namespace lockstep::parallel
