// The first and the last layer cut by vocabulary (Shoeybi et al. 2019, section 3): rank i has part i of the V tokens. V need not
// divide (mesh::shard_range).
#pragma once

#include "lockstep/nn/embedding.h"
#include "lockstep/nn/head.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// tokens [V/tp, D], positions [max_seq_len, D] on every rank or undefined.
//   without sequence parallelism   -> [B, S, D]      forward: all_reduce / backward: nothing
//   with it                        -> [B S / tp, D]  forward: reduce_scatter(rows) / backward: all_gather(rows); the
//                                  gradient of positions is that of this rank's rows (Partial)
class VocabParallelEmbedding : public nn::Embedding {
 public:
  VocabParallelEmbedding(nn::Parameter tokens, nn::Parameter positions, nn::Dropout dropout, TensorGroup& group,
                         int64_t vocab_size, double scale = 1);

  void backward_weight(nn::Saved& saved) override;

 protected:
  // Of all rows, as generation has them too, where nothing is cut by rows.
  at::Tensor words(const at::Tensor& tokens) const override;
  at::Tensor rows_of(const nn::Microbatch& microbatch) const override;

 private:
  at::Tensor look_up(const at::Tensor& tokens) const;
  at::Tensor positions_here(const at::Tensor& tokens, const nn::TokenPlaces* places) const;
  void accumulate_here(const at::Tensor& local, const at::Tensor& dy) const;

  TensorGroup& group_;
  const program::CallId calls_{.purpose = program::Purpose::kLayer, .owner = program::Owner::kEmbedding};
  const int64_t first_token_;  // of this rank's rows
};

// Final norm, projection to this rank's part of the tokens, softmax cross-entropy over all of them, in chunks of rows. Logits of
// other ranks are never seen: of each row the ranks exchange the maximum, the sum of exponentials below it, and the target's
// logit, in one all_gather a chunk.
// weight [V/tp, D] (no row is padded, so none can receive probability or gradient). M = B S rows.
// x [B, S, D], with sequence parallelism [M/tp, D].
//   the loss:        all_gather(rows) of norm(x) with sequence parallelism; all_gather of 3 fp32 a row and chunk.
//                    Every rank has the whole loss.
//   backward_input:  the loss, then all_reduce of dh, with sequence parallelism reduce_scatter(rows)
class VocabParallelHead : public nn::Head {
 public:
  VocabParallelHead(std::unique_ptr<nn::Norm> norm, nn::Parameter weight, int64_t chunk_rows, TensorGroup& group,
                    int64_t vocab_size, double factor = 1);

  // For generation, where nothing is cut by rows: [..., D] -> all logits [..., V] on every rank.
  at::Tensor logits(const at::Tensor& x) override;

 protected:
  at::Tensor all_rows(const at::Tensor& h, int64_t rows) override;
  at::Tensor own_rows(const at::Tensor& dh) override;
  at::Tensor chunk_loss(const at::Tensor& logits, const at::Tensor& targets) override;

 private:
  TensorGroup& group_;
  const program::CallId calls_{.purpose = program::Purpose::kLayer, .owner = program::Owner::kHead};
  const int64_t vocab_size_;  // V
  const mesh::Range tokens_;  // of this rank
};

// nn::cross_entropy_ of logits [m, V/tp], of the ids from `first_token` (cross_entropy.cpp). In between the ranks exchange what
// cross_entropy_part_ returns:
// [m, 3] fp32: the row's largest logit, the sum of e^(logit - largest), the target's logit (-infinity: not here).
// `logits` then belong to cross_entropy_whole_, which leaves the gradient of this part in them.
at::Tensor cross_entropy_part_(at::Tensor logits, const at::Tensor& targets, int64_t first_token);
// The whole loss, the same bits on every rank: parts [ranks, m, 3], that of these logits at `rank`, are put together in
// the order of the ranks.
at::Tensor cross_entropy_whole_(at::Tensor logits, const at::Tensor& targets, int64_t first_token,
                                const at::Tensor& parts, int rank);

}  // namespace lockstep::parallel
