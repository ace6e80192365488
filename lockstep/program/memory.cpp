#include "lockstep/program/memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/arch/cost.h"
#include "lockstep/base/check.h"

namespace lockstep::program {
namespace {

constexpr int64_t kFp32 = 4;
constexpr int64_t kTokenId = 8;

// What is alive while the actions of one rank run, in bytes.
class Walk {
 public:
  Walk(const Layout& layout, int rank, const std::vector<Action>& actions) : actions_(actions) {
    const arch::CostInput input{
        .batch = layout.micro_batch, .seq_len = layout.seq_len, .element_size = layout.element_size(),
        .threads = layout.threads, .tensor = layout.tensor_shard(rank), .overlap = layout.overlap};
    std::map<arch::LayerKind, arch::LayerCost> of_kind;  // all blocks cost the same
    for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) {
      if (!of_kind.contains(layer.kind)) of_kind[layer.kind] = arch::layer_cost(layout.model, layer, input);
      costs_.push_back(of_kind[layer.kind]);
    }
    // Token ids and targets of all microbatches of the step.
    tokens_ = 2 * layout.num_microbatches() * layout.micro_batch * layout.seq_len * kTokenId;
  }

  void run() {
    for (const Action& action : actions_) {
      if (action.kind == ActionKind::kForward) forward(action);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput) backward_input(action);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) backward_weight(action);
      largest_activations_ = std::max(largest_activations_, tokens_ + kept_ + all_flowing());
    }
    LOCKSTEP_CHECK_EQ(kept_, 0, "bytes kept for a backward that never came");
  }

  int64_t largest_activations() const { return largest_activations_; }
  int64_t largest_workspace() const { return largest_workspace_; }

 private:
  const arch::LayerCost& cost(const Action& action) const { return costs_[static_cast<size_t>(action.layer)]; }

  void forward(const Action& action) {
    kept_ += cost(action).kept;
    flowing_[action.microbatch] = cost(action).output;
    largest_workspace_ = std::max(largest_workspace_, cost(action).forward_workspace);
  }

  void backward_input(const Action& action) {
    const bool last = action.layer + 1 == static_cast<int>(costs_.size());
    if (last) flowing_[action.microbatch] = 0;  // the head's own gradient is 1
    const int64_t dx = action.layer == 0 ? 0 : costs_[static_cast<size_t>(action.layer) - 1].output;
    largest_workspace_ = std::max(largest_workspace_, cost(action).backward_workspace);
    flowing_[action.microbatch] = dx;
  }

  void backward_weight(const Action& action) { kept_ -= cost(action).kept; }

  int64_t all_flowing() const {
    int64_t total = 0;
    for (const auto& [microbatch, bytes] : flowing_) total += bytes;
    return total;
  }

  const std::vector<Action>& actions_;
  std::vector<arch::LayerCost> costs_;
  std::map<int, int64_t> flowing_;  // microbatch -> output of its last F, or gradient of its last I
  int64_t tokens_ = 0;
  int64_t kept_ = 0;
  int64_t largest_activations_ = 0;
  int64_t largest_workspace_ = 0;
};

}  // namespace

std::string_view category_name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kBuffers:
      return "buffers";
    case MemoryCategory::kHost:
      return "host";
  }
  throw InternalError("no such category");
}

int64_t MemoryBytes::total() const {
  int64_t sum = 0;
  for (int64_t value : bytes) sum += value;
  return sum - bytes[static_cast<size_t>(MemoryCategory::kHost)];
}

MemoryBytes predict_memory(const Layout& layout, const Program& program, int rank) {
  const int64_t numel = arch::flat_layout(layout.param_table(rank)).numel;
  const bool owner = layout.owns_optimizer(rank);
  const bool master = layout.precision == config::Precision::kBf16;
  Walk walk(layout, rank, program.ranks.at(static_cast<size_t>(rank)));
  walk.run();

  MemoryBytes bytes;
  bytes[MemoryCategory::kParameters] = numel * layout.element_size();
  bytes[MemoryCategory::kGradients] = numel * kFp32;
  bytes[MemoryCategory::kOptimizer] = owner ? (master ? 3 : 2) * numel * kFp32 : 0;
  bytes[MemoryCategory::kActivations] = walk.largest_activations();
  bytes[MemoryCategory::kBuffers] = walk.largest_workspace();
  return bytes;
}

}  // namespace lockstep::program
