// A feed-forward branch of many gated MLPs, the experts, of which each token passes a few (Shazeer et al. 2017; Fedus et al., Switch
// Transformer, 2021; Dai et al., DeepSeekMoE, 2024, for shared experts):
//   y_t = sum over the experts e chosen for t of weight_te W_down,e (silu(W_gate,e x_t) * W_up,e x_t)  + shared(x_t)
// arch::ExpertSizes says whether the router's logits and an expert's products have biases, and whether an expert's nonlinearity is another
// (ClampedGlu). The shared expert has neither.
//
// Shapes: T own rows of a microbatch of B S, or of its part of every sequence where several ranks have parts; E experts of all ranks, G
// here, F inner width here, N assignments of own rows that were not dropped, R rows that come to the experts here. The router is fp32 and
// runs on the host (routing.h); on a GPU whose messages have slots it runs there (device_routing.h), and no pass waits for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/config/run_config.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/branch.h"
#include "lockstep/nn/expert_exchange.h"
#include "lockstep/nn/grouped_bias.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/mlp.h"
#include "lockstep/nn/own_rows.h"
#include "lockstep/nn/permute.h"
#include "lockstep/nn/routing.h"

namespace lockstep::nn {

// What take_loads of an experts branch gives: assignments of own rows to each expert before dropping [E], then the dropped ones, the sum
// of the auxiliary loss and that of the z-loss, both without their coefficients; with moe.imbalance_limit further rounds in which it ran
// (arch::load_extras).
using arch::kLoadExtras;

struct ExpertShape {
  arch::ExpertSizes sizes{};  // of the whole layer
  config::MoeSection moe{};
};

struct ExpertParameters {
  Parameter router_weight;  // [E, D]
  Parameter router_bias;    // [E], or undefined; only its sign is used: the gradient is E count_e - sum of counts
  Parameter gate_up;        // [G 2F, D]: gate, then up of each expert
  Parameter down;           // [G D, F]
  // Undefined where ExpertSizes says so.
  Parameter logit_bias{};    // [E], trained as the router's weight is: with rows of this rank alone
  Parameter gate_up_bias{};  // [G 2F], in the order of gate_up
  Parameter down_bias{};     // [G C], of each expert the C columns that ExpertExchange::own_columns says
};

class Experts : public Branch {
 public:
  // Kept by forward, but for the host's vectors of `routing`. Of a plan in rounds x and logits alone: backward brings the rows of each round
  // once more, and computes what it needs of them.
  struct Saved : Branch::Saved {
    at::Tensor x;         // [T, D]: a view of the branch's x
    at::Tensor logits;    // [T, E] fp32, where the routing is. Backward puts its gradient here.
    std::shared_ptr<const Routing> routing{};
    std::shared_ptr<const ExpertExchange::Plan> plan{};
    at::Tensor received;  // [R, D]
    at::Tensor h;         // [R, 2F]: before the nonlinearity. Backward overwrites it with its gradient.
    at::Tensor inner;     // [R, F]
    // [N, D], back at the source, T k of a routing on a device; where tokens are spread [R, D]. backward_input releases it.
    at::Tensor outputs;
    at::Tensor dy;        // [R, D]: from backward_input, for backward_weight
    at::Tensor own_dy;    // [T, D]: the same of a plan in rounds
    int64_t rows = 0;     // of the microbatch, here
    std::unique_ptr<Branch::Saved> shared{};
  };

  // `shared` may be null. Its halves run beside the exchanges: of a pass the first beside dispatch, the second beside combine.
  // `exchange` decides which rows and experts are here.
  Experts(ExpertShape shape, ExpertParameters parameters, std::unique_ptr<Mlp> shared, std::shared_ptr<ExpertExchange> exchange);

  std::unique_ptr<Branch::Saved> new_saved() const override;
  using Branch::forward;
  // Auxiliary and z-loss are sums over valid targets, made where something is kept and sequences.valid is defined; they act on
  // the gradient of the logits, and on take_loads, and not on the output.
  at::Tensor forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  at::Tensor backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  void backward_weight(Branch::Saved& saved) override;

  // Makes all calls of forward but the last, give_all: the gradient of the weights wants the outputs.
  void recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) override;
  // Only what the norm before the branch makes again is dropped, and what the shared expert drops.
  void forget(Branch::Saved& saved) override;
  void restore(const at::Tensor& x, Branch::Saved& saved) override;

  // experts_parts.cpp
  bool divides() const override { return true; }
  std::shared_ptr<DividedPass> begin_forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  std::shared_ptr<DividedPass> begin_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;

  std::vector<double> take_loads() override;
  // With [moe] scope "last_step" capacity and auxiliary loss go by these; before the first step all experts count alike.
  void set_last_loads(std::span<const double> routed) override;

  // Nothing is dropped, whatever the capacity. ConfigError LS1340 with expert choice, where a token's experts depend on tokens that come
  // after it.
  at::Tensor decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) override;

 private:
  class Parts;
  class ForwardParts;
  class BackwardParts;
  using Plan = ExpertExchange::Plan;
  // Outputs of the experts, back at the source or where tokens are spread there; of a plan in rounds their sums [T, D].
  struct Product {
    at::Tensor outputs;
    std::shared_ptr<const Routing> routing;
    std::shared_ptr<const Plan> plan;
  };
  // What a pass does beside giving the output: decode drops nothing.
  struct Pass {
    const Sequences& sequences;
    bool drops = true;
    int64_t rows() const { return sequences.count * sequences.length; }
    int64_t parts() const { return sequences.places ? sequences.places->ranks() : 1; }
    int64_t length() const;  // S, of whole sequences
  };
  // What losses are of: all scores that are here, which of them are own ones, and the logits of these.
  struct Scored {
    const at::Tensor& all;
    const OwnRows& own;
    const at::Tensor& own_logits;
    at::Tensor own_scores() const { return all.size(0) == own.size() ? all : own.of(all); }
  };
  // What runs while rows are on their way to the experts, and back.
  struct Beside {
    std::function<void()> dispatch = [] {};
    std::function<void()> combine = [] {};
  };

  at::Tensor run(const at::Tensor& x, Saved* kept, const Pass& pass);
  // Of a plan in rounds nothing is sent yet, and nothing is run.
  Product run_experts(const at::Tensor& x, Saved* kept, const Pass& pass, const Beside& beside);
  // Own rows through the experts: their outputs.
  at::Tensor send_through(const at::Tensor& own, const Routing& routing, const Plan& plan, Saved* kept, const Beside& beside);
  at::Tensor multiply_experts(const at::Tensor& received, const Plan& plan, Saved* kept) const;
  at::Tensor sum_outputs(const at::Tensor& outputs, const Routing& routing, const Plan& plan, const Beside& beside);  // [T, D]
  at::Tensor sum_rounds(const at::Tensor& own, const Plan& plan, const Beside& beside);  // the same, round by round
  std::shared_ptr<const Routing> route(const at::Tensor& x, Saved* kept, const Pass& pass);
  void add_losses(Routing& routing, const Scored& scores, std::span<const Assignment> assignments, const Sequences& sequences) const;
  // Of those whose scores are here: all rows of whole sequences, or own ones alone.
  OwnRows own_rows(const Pass& pass, at::Device device) const;
  void locate(Routing& routing, const Pass& pass) const;  // own rows in their sequences: begin, length, parts
  // On a device (experts_device.cpp). logits [T, E] or, where routing looks at whole sequences, [B S, E].
  bool routes_on_device(const at::Tensor& logits, const Pass& pass) const;
  std::shared_ptr<const Routing> route_on_device(const at::Tensor& logits, Saved* kept, const Pass& pass) const;
  void add_losses_on_device(Routing& routing, DeviceRouting& placed, const Scored& scores, const at::Tensor& expert,
                            const at::Tensor& valid) const;
  void add_bias_gradient_on_device(const DeviceRouting& routing) const;
  void count_loads_on_device(const DeviceRouting& routing);
  void add_device_loads(std::vector<double>& loads);  // and forgets them; waits for the device

  bool wants_all_rows(const Pass& pass) const;
  bool has_aux_loss() const;
  std::vector<double> last_shares() const;  // [E]
  bool by_last_step() const { return shape_.moe.scope == config::MoeScope::kLastStep; }

  Pending input_gradient(const at::Tensor& dy, Saved& kept, bool weights_follow);
  // dx [R, D] here -> of own rows [T, D], and with what the router gives, or undefined.
  Pending return_gradients(at::Tensor here, const Saved& kept, at::Tensor of_router);
  Pending give_back(Pending own, Pending of_shared, const at::Tensor& dy, int64_t rows);  // [T, D] -> as dy
  // The shared expert's halves; undefined and null without one.
  at::Tensor begin_shared_gradient(const at::Tensor& dy, Saved& kept);
  Pending end_shared_gradient(const at::Tensor& begun, Saved& kept, bool weights_follow);
  // Of a plan in rounds (experts_rounds.cpp).
  Pending input_gradient_of_rounds(const at::Tensor& dy, Saved& kept, bool weights_follow);
  WeightedGradients send_gradients(const at::Tensor& own_dy, Saved& kept, const Beside& beside);
  Saved saved_of(const Saved& kept, const ExpertExchange::Round& round) const;
  void accumulate_experts(const Saved& kept);
  at::Tensor backward_experts(const at::Tensor& dy, Saved& kept) const;
  at::Tensor backward_router(const at::Tensor& dweights, Saved& kept) const;  // [T, D] fp32
  void add_bias_gradient(const Routing& routing) const;
  void count_loads(const Saved& kept);
  size_t load_numbers() const { return static_cast<size_t>(rules_.experts + arch::load_extras(shape_.moe)); }

  at::Tensor by_expert(const at::Tensor& fused) const { return fused.view({local_experts_, -1, fused.size(1)}); }
  // Of a bias [G n]: [G, n].
  at::Tensor bias_by_expert(const at::Tensor& fused) const { return fused.view({local_experts_, fused.numel() / local_experts_}); }
  GroupedBias bias_of(const Parameter& bias, int64_t first) const;
  void check_biases();
  at::Tensor router_weight() const { return parameters_.router_weight.value.to(at::kFloat); }

  ExpertShape shape_;
  RoutingRules rules_;
  ExpertParameters parameters_;
  int64_t local_experts_ = 0;  // G
  int64_t first_biased_ = 0;    // column of outputs that down_bias begins with
  std::unique_ptr<const Activation> activation_;
  std::unique_ptr<Mlp> shared_;
  std::shared_ptr<ExpertExchange> exchange_;
  std::vector<double> loads_;
  at::Tensor device_loads_;  // the same of routings on a device, fp64; undefined: none since the last take_loads
  std::vector<double> last_loads_;  // [E]
};

}  // namespace lockstep::nn
