// The embedding cut by vocabulary: rank i holds the rows of part i of the V tokens (Shoeybi et al. 2019, section 3).
#pragma once

#include <string>

#include "lockstep/nn/embedding.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// tokens [V/tp, D] (V need not divide: mesh::shard_range), positions [max_seq_len, D] on every rank or undefined.
//   without sequence parallelism   -> [B, S, D]      forward: all_reduce / backward: nothing
//   with it                        -> [B S / tp, D]  forward: reduce_scatter(rows) / backward: all_gather(rows); the
//                                  gradient of positions is that of this rank's rows (Partial)
class VocabParallelEmbedding : public nn::Embedding {
 public:
  // first_token: of this rank's rows.
  VocabParallelEmbedding(nn::Parameter tokens, nn::Parameter positions, nn::Dropout dropout, TensorGroup& group,
                         int64_t first_token);

  void backward_weight(nn::Saved& saved) override;
  // For generation too, where nothing is cut by rows: tokens [B, S] -> [B, S, D].
  at::Tensor embed(const at::Tensor& tokens, int64_t start) const override;

 protected:
  at::Tensor rows_of(const at::Tensor& tokens) const override;

 private:
  at::Tensor look_up(const at::Tensor& tokens) const;
  at::Tensor positions_here(const at::Tensor& tokens) const;
  void accumulate_here(const at::Tensor& local, const at::Tensor& dy) const;

  TensorGroup& group_;
  const program::CallId calls_{.purpose = program::Purpose::kLayer, .owner = program::Owner::kEmbedding};
  const int64_t first_token_;
};

}  // namespace lockstep::parallel
