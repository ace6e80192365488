#include "lockstep/parallel/tensor/head.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "lockstep/nn/gemm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/parallel/tensor/cross_entropy.h"

namespace lockstep::parallel {

using nn::flatten_rows;

VocabParallelHead::VocabParallelHead(std::unique_ptr<nn::Norm> norm, nn::Parameter weight, int64_t chunk_rows,
                                     TensorGroup& group, int64_t vocab_size)
    : Head(std::move(norm), std::move(weight), chunk_rows),
      group_(group),
      vocab_size_(vocab_size),
      tokens_(mesh::shard_range(vocab_size, group.size(), group.rank())) {}

at::Tensor VocabParallelHead::all_rows(const at::Tensor& h, int64_t rows) {
  return group_.sequence_parallel() ? group_.gather_rows(h, rows, calls_.with(program::CallPhase::kForward))() : flatten_rows(h);
}

at::Tensor VocabParallelHead::own_rows(const at::Tensor& dh) { return group_.reduce_output(dh, calls_.with(program::CallPhase::kBackward))(); }

at::Tensor VocabParallelHead::chunk_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor part = cross_entropy_part_(logits, targets, tokens_.begin);
  const at::Tensor parts = group_.all_gather(part, calls_.with(program::CallPhase::kSoftmax)).view({group_.size(), targets.size(0), 3});
  return cross_entropy_whole_(logits, targets, tokens_.begin, {.parts = parts, .mine = group_.rank()});
}

at::Tensor VocabParallelHead::logits(const at::Tensor& x) {
  const at::Tensor local = Head::logits(x);  // [..., V/tp]
  const int64_t rows = local.numel() / local.size(-1), ranks = group_.size();
  // Equal parts for the collective: the first rank's is the largest.
  const int64_t largest = mesh::shard_range(vocab_size_, group_.size(), 0).size();
  at::Tensor mine = flatten_rows(local);
  if (mine.size(1) < largest) {
    mine = at::zeros({rows, largest}, local.options());
    mine.narrow(1, 0, local.size(-1)).copy_(flatten_rows(local));
  }
  const at::Tensor all = group_.all_gather(mine, calls_.with(program::CallPhase::kLogits)).view({ranks, rows, largest});
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group_.size(); ++rank)
    parts.push_back(all.select(0, rank).narrow(1, 0, mesh::shard_range(vocab_size_, group_.size(), rank).size()));
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = vocab_size_;
  return at::cat(parts, 1).view(shape);
}

}  // namespace lockstep::parallel
