// One transformer block: the sums x + branch(norm(x)) of its branches, one after the other (Radford et al. 2019, Touvron et al.
// 2023) or beside each other (Wang and Komatsuzaki 2021, Chowdhery et al. 2022), with norms before them or behind them (OLMo Team
// 2024). Which they are is data (arch::BlockSpec).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/nn/branch.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/norm.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::model {

struct BlockSaved;

class Block : public nn::Layer {
 public:
  struct Part {
    std::unique_ptr<nn::Norm> norm;  // null: none
    std::unique_ptr<nn::Branch> branch;
    std::unique_ptr<nn::Norm> norm_behind;
    nn::Dropout dropout;
    bool beside = false;         // adds to the same x as the part before it
    bool shares_input = false;   // and reads what that one reads
  };

  // At least one part. `tensor`: the ranks that hold the block together; outlives it. Null: one rank.
  explicit Block(std::vector<Part> parts, parallel::TensorGroup* tensor = nullptr);
  at::Tensor forward(const at::Tensor& x, const nn::Microbatch& microbatch, std::unique_ptr<nn::Saved>* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, nn::Saved& saved) override;
  void backward_weight(nn::Saved& saved) override;
  void set_last_loads(std::span<const double> routed) override;
  // With overlap over `tensor` weight gradients run while the gradients of inputs are summed over its ranks.
  at::Tensor backward(const at::Tensor& dy, nn::Saved& saved) override;
  // Full: everything but the last linear maps that make only the output. Selective: forget keeps what GEMMs and the
  // attention core left and the norms' statistics, and drops the outputs of norms and activation and the dropout masks.
  std::unique_ptr<nn::Saved> recompute(const at::Tensor& x, const nn::Microbatch& microbatch) override;
  void forget(nn::Saved& saved) override;
  void restore(nn::Saved& saved) override;
  std::vector<double> take_loads() override;
  // Divided at the first branch that is (nn::Branch::divides), block_parts.cpp.
  std::shared_ptr<nn::DividedPass> begin_forward(const at::Tensor& x, const nn::Microbatch& microbatch,
                                                 std::unique_ptr<nn::Saved>* saved) override;
  std::shared_ptr<nn::DividedPass> begin_backward_input(const at::Tensor& dy, nn::Saved& saved) override;

  // Generation, without dropout: x [B, T, D] -> [B, T, D]. A cache for each branch, see nn::Branch.
  std::vector<nn::KvCacheLayer> new_caches(int64_t slots, int64_t capacity, const at::TensorOptions& options) const;
  at::Tensor decode(const at::Tensor& x, std::span<const nn::KvCacheLayer> caches, std::span<const nn::CacheSpan> spans);

 private:
  class ForwardParts;
  class BackwardParts;
  // Between two branches.
  struct Stream {
    at::Tensor x;    // what the branches of a group read
    at::Tensor sum;  // what they have made; the next group adds it to x, in place
    at::Tensor h;    // what the branch before read, where the next one shares it
  };
  // Of the tensors of a Stream, from the last branch to the first. `x` begins as that of the group's sum, and each branch adds its own.
  struct Gradients {
    at::Tensor sum, x, h;
  };
  size_t divided_part() const;  // parts_.size(): none
  bool shares_next(size_t part) const { return part + 1 < parts_.size() && parts_[part + 1].shares_input; }
  at::Tensor read(size_t part, Stream& stream, BlockSaved* saved);  // what the branch reads: through its norm
  at::Tensor norm_behind(size_t part, const at::Tensor& y, BlockSaved* saved);
  at::Tensor branch(size_t part, Stream& stream, const nn::Microbatch& microbatch, BlockSaved* saved);  // with the norm behind
  void run(size_t part, Stream& stream, const nn::Microbatch& microbatch, BlockSaved* saved);
  void add(size_t part, const at::Tensor& of_branch, Stream& stream, const nn::Microbatch& microbatch, BlockSaved* saved);
  at::Tensor branch_gradient(size_t part, const at::Tensor& dsum, BlockSaved& saved);
  void add_gradient(size_t part, at::Tensor dh, Gradients& gradients, BlockSaved& saved);
  void branch_backward_weight(size_t part, BlockSaved& saved);  // with the norm behind
  void norm_backward_weight(size_t part, BlockSaved& saved);    // before the branch
  std::unique_ptr<BlockSaved> new_saved(const nn::Microbatch& microbatch) const;
  // How the rows lie, which the ranks of `tensor` are told as well.
  nn::Sequences begin(const nn::Microbatch& microbatch);

  std::vector<Part> parts_;
  parallel::TensorGroup* tensor_;
};

}  // namespace lockstep::model
