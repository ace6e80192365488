// A branch of which somebody gives the forward pass alone: LibTorch's autograd makes the backward pass. For blocks of a user's own
// (model/forward_block.h, docs/own_model.md); ours write their derivatives themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/branch.h"

namespace lockstep::nn {

// (parameters, x) -> y. parameters as the branch was given them and x [B, S, D], all of the compute dtype (fp32 or bf16); y as x. Of
// LibTorch's differentiable operators; it writes into none of its arguments, and gives the same bits whenever it is called with the same
// ones: it draws no random numbers. Called by one thread at a time for each branch.
using ForwardFunction = std::function<at::Tensor(const std::vector<at::Tensor>& parameters, const at::Tensor& x)>;

struct AutogradOptions {
  std::string name{};  // in messages: "blocks.3.my_mlp"
  // y of a token depends on x of that token alone. Where it does not, the branch takes whole sequences of one document, and cannot
  // continue a text.
  bool by_token = false;
};

// The graph of a microbatch is made in forward, or in recompute and restore, and used up in backward_input, which makes the gradients of
// x and of all parameters; backward_weight adds the latter. Selective recomputation drops all of the graph.
class AutogradBranch : public Branch {
 public:
  AutogradBranch(ForwardFunction function, std::vector<Parameter> parameters, AutogradOptions options);

  std::unique_ptr<Branch::Saved> new_saved() const override;
  using Branch::forward;
  // ConfigError LS1124 where sequences come in parts or hold several documents, and the function is not by token. InternalError where y
  // is not as x.
  at::Tensor forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  at::Tensor backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  void backward_weight(Branch::Saved& saved) override;

  void recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) override;
  void forget(Branch::Saved& saved) override;
  void restore(const at::Tensor& x, Branch::Saved& saved) override;

  // ConfigError LS1124 where the function is not by token.
  at::Tensor decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) override;

 private:
  struct Kept;
  void require_whole(const Sequences& sequences) const;
  at::Tensor run(const at::Tensor& x, Kept* kept) const;

  ForwardFunction function_;
  std::vector<Parameter> parameters_;
  AutogradOptions options_;
};

}  // namespace lockstep::nn
