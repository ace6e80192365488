#include "lockstep/nn/autograd_branch.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::nn {

using torch::autograd::Edge;
namespace graph = torch::autograd::impl;

struct AutogradBranch::Kept : Branch::Saved {
  at::Tensor x;                        // until W, as layers of linears have it
  std::vector<at::Tensor> leaves;      // x, and then the parameters: of the same memory
  Edge output;                         // where the graph begins; y itself is not kept
  std::vector<at::Tensor> gradients;   // of the parameters, from I to W; undefined where the function does not use one
};

namespace {

// The same memory, with a version of its own: the values of a parameter may leave and come back between forward and backward.
at::Tensor leaf_of(const at::Tensor& tensor) { return tensor.variable_data().set_requires_grad(true); }

// Nobody else's, so that it may be written into: autograd hands on what it has, and a graph may keep what it made.
at::Tensor alone(at::Tensor tensor) {
  const bool shared = tensor.use_count() > 1 || tensor.storage().use_count() > 1;
  return shared ? tensor.clone(at::MemoryFormat::Contiguous) : tensor.contiguous();
}

[[noreturn]] void refuse(const std::string& name, const char* what, const char* way_out) {
  throw ConfigError({.code = "LS1124", .what = cat(name, " is a function of whole sequences, and ", what), .way_out = way_out});
}

std::vector<at::Tensor> values_of(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : parameters) values.push_back(parameter.value);
  return values;
}

}  // namespace

AutogradBranch::AutogradBranch(ForwardFunction function, std::vector<Parameter> parameters, AutogradOptions options)
    : function_(std::move(function)), parameters_(std::move(parameters)), options_(std::move(options)) {}

std::unique_ptr<Branch::Saved> AutogradBranch::new_saved() const { return std::make_unique<Kept>(); }

void AutogradBranch::require_whole(const Sequences& sequences) const {
  if (sequences.places && !options_.by_token)
    refuse(options_.name, "these come in parts or hold several documents",
           "say by_token where it looks at each token alone; else leave context parallelism and packing out");
}

at::Tensor AutogradBranch::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) {
  require_whole(sequences);
  return run(x, static_cast<Kept*>(saved));
}

at::Tensor AutogradBranch::run(const at::Tensor& x, Kept* kept) const {
  const at::AutoGradMode mode(kept != nullptr);
  at::Tensor y;
  if (kept) {
    kept->x = x;
    kept->leaves = {leaf_of(x)};
    for (const Parameter& parameter : parameters_) kept->leaves.push_back(leaf_of(parameter.value));
    y = function_({kept->leaves.begin() + 1, kept->leaves.end()}, kept->leaves[0]);
  } else {
    y = function_(values_of(parameters_), x);
  }
  LOCKSTEP_CHECK(y.defined() && y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type(), options_.name, ": of x ", x.sizes(), " ",
                 x.scalar_type(), " the function made y ", y.sizes(), " ", y.scalar_type());
  if (kept && y.requires_grad()) kept->output = graph::gradient_edge(y);
  at::Tensor result = y.variable_data();
  y.reset();
  return alone(std::move(result));
}

at::Tensor AutogradBranch::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  const std::vector<at::Tensor> leaves = std::exchange(kept.leaves, {});
  const Edge output = std::exchange(kept.output, {});
  std::vector<at::Tensor> gradients(leaves.size());
  if (output.is_valid()) {
    torch::autograd::edge_list inputs;
    for (const at::Tensor& leaf : leaves) inputs.push_back(graph::gradient_edge(leaf));
    gradients = torch::autograd::Engine::get_default_engine().execute({output}, {dy}, /*keep_graph=*/false, /*create_graph=*/false,
                                                                      /*accumulate_grad=*/false, inputs);
  }
  at::Tensor dx = std::exchange(gradients[0], {});
  kept.gradients.assign(gradients.begin() + 1, gradients.end());
  gradients.clear();
  for (at::Tensor& gradient : kept.gradients)
    if (gradient.defined()) gradient = alone(std::exchange(gradient, {}));
  return dx.defined() ? alone(std::exchange(dx, {})) : at::zeros_like(kept.x);
}

Pending AutogradBranch::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return [dx = backward_input(dy, saved)] { return dx; };
}

void AutogradBranch::backward_weight(Branch::Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (kept.gradients.at(i).defined()) at::Tensor(parameters_[i].grad).add_(kept.gradients[i]);
  kept.gradients.clear();
  kept.x.reset();
}

void AutogradBranch::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) {
  require_whole(sequences);
  run(x, &static_cast<Kept&>(saved));
}

void AutogradBranch::forget(Branch::Saved& saved) {
  auto& kept = static_cast<Kept&>(saved);
  kept.x.reset();
  kept.leaves.clear();
  kept.output = {};
}

void AutogradBranch::restore(const at::Tensor& x, Branch::Saved& saved) { run(x, &static_cast<Kept&>(saved)); }

at::Tensor AutogradBranch::decode(const at::Tensor& x, const KvCacheLayer&, std::span<const CacheSpan>) {
  if (!options_.by_token)
    refuse(options_.name, "a text is continued token by token", "say by_token where it looks at each token alone");
  return run(x, nullptr);
}

}  // namespace lockstep::nn
