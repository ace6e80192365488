// The last layer cut by vocabulary: final norm, projection to this rank's part of the V tokens, softmax cross-entropy over
// all of them, in chunks of rows (Shoeybi et al. 2019, section 3). Logits of other ranks are never seen: of each row the
// ranks exchange the maximum, the sum of exponentials below it, and the target's logit, in one all_gather a chunk.
#pragma once

#include "lockstep/nn/head.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// weight [V/tp, D] (V need not divide: no row is padded, so none can receive probability or gradient). M = B S rows.
// x [B, S, D], with sequence parallelism [M/tp, D].
//   the loss:        all_gather(rows) of norm(x) with sequence parallelism; all_gather of 3 fp32 a row and chunk.
//                    Every rank has the whole loss.
//   backward_input:  the loss, then all_reduce of dh, with sequence parallelism reduce_scatter(rows)
class VocabParallelHead : public nn::Head {
 public:
  VocabParallelHead(std::unique_ptr<nn::Norm> norm, nn::Parameter weight, int64_t chunk_rows, TensorGroup& group,
                    int64_t vocab_size);

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

}  // namespace lockstep::parallel
