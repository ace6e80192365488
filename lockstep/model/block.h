// One transformer block, pre-norm: x + attention(norm(x)), then the same with the MLP (Radford et al. 2019, Touvron et
// al. 2023). GPT-2 and Llama differ in the parts given to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/mlp.h"
#include "lockstep/nn/norm.h"

namespace lockstep::model {

struct BlockSaved;

class Block : public nn::Layer {
 public:
  struct Parts {
    std::unique_ptr<nn::Norm> attention_norm;
    std::unique_ptr<nn::Attention> attention;
    nn::Dropout attention_dropout;
    std::unique_ptr<nn::Norm> mlp_norm;
    std::unique_ptr<nn::Mlp> mlp;
    nn::Dropout mlp_dropout;
    bool overlap = false;  // in action B weight gradients run while the gradients of inputs are summed over ranks
  };

  explicit Block(Parts parts);
  at::Tensor forward(const at::Tensor& x, const nn::Microbatch& microbatch, std::unique_ptr<nn::Saved>* saved) override;
  at::Tensor backward_input(const at::Tensor& dy, nn::Saved& saved) override;
  void backward_weight(nn::Saved& saved) override;
  at::Tensor backward(const at::Tensor& dy, nn::Saved& saved) override;
  // Full: everything but the last linear map, which makes only the output. Selective: forget keeps what GEMMs and the
  // attention core left and the norms' statistics, and drops the outputs of norms and activation and the dropout masks.
  std::unique_ptr<nn::Saved> recompute(const at::Tensor& x, const nn::Microbatch& microbatch) override;
  void forget(nn::Saved& saved) override;
  void restore(nn::Saved& saved) override;

  // Generation, without dropout: see nn::Attention::decode. x [B, T, D] -> [B, T, D]
  at::Tensor decode(const at::Tensor& x, const nn::KvCacheLayer& cache, std::span<const nn::CacheSpan> spans);

 private:
  // The branch of the first half, before it is added to x.
  at::Tensor attend(const at::Tensor& x, const nn::Microbatch& microbatch, BlockSaved* saved);
  Parts parts_;
};

}  // namespace lockstep::model
