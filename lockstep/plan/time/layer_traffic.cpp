#include "lockstep/plan/time/layer_traffic.h"

#include "lockstep/arch/expert_branch.h"
#include "lockstep/arch/state_space_branch.h"

namespace lockstep::plan {
namespace {

constexpr double kOfBranch = 11;          // h: half of a block of two
constexpr double kOfGate = 8, kOfInner = 8;  // f
constexpr double kPermuted = 12, kOfScore = 16;

// By size of elements: constants are of 2 bytes.
double scale(const arch::CostInput& input) { return static_cast<double>(input.element_size) / 2; }

double of_activation(double width, bool gated) { return (kOfGate * (gated ? 2 : 1) + kOfInner) * width; }

// The branches of a block.
class BranchTraffic {
 public:
  BranchTraffic(const arch::ModelConfig& model, const arch::CostInput& input, double imbalance) : s_(model, input), model_(model), imbalance_(imbalance) {}

  void add(const arch::Branch& branch, std::array<double, 3>& bytes) const {
    const auto tokens = static_cast<double>(s_.tokens), hidden = static_cast<double>(model_.hidden);
    bytes[0] += kOfBranch * hidden * static_cast<double>(s_.rows);
    if (branch.kind == "mlp") bytes[0] += tokens * of_activation(static_cast<double>(s_.model.ffn), model_.gated_mlp());
    if (branch.kind == arch::kExperts) add_experts(bytes);
    if (branch.kind == arch::kStateSpace) add_state_space(bytes[0]);
  }

 private:
  void add_experts(std::array<double, 3>& bytes) const {
    const arch::ExpertSizes& experts = model_.experts;
    const arch::ExpertRows rows(s_.model, s_.input);
    const arch::ExpertShard& shard = s_.input.tensor.experts;
    const auto hidden = static_cast<double>(model_.hidden), own = static_cast<double>(rows.own);
    const double ffn = static_cast<double>(mesh::shard_range(experts.ffn, shard.etp, shard.etp_rank).size());
    const double leave = static_cast<double>(rows.balanced) / shard.etp;
    bytes[0] += kPermuted / 2 * hidden * leave + kOfScore * own * static_cast<double>(experts.count);
    bytes[1] += imbalance_ * static_cast<double>(rows.balanced) * of_activation(ffn, true);
    bytes[2] += kPermuted / 2 * hidden * leave;
    const double shared = static_cast<double>(experts.shared * experts.ffn) / s_.input.tensor.size;
    if (shared > 0) bytes[0] += static_cast<double>(s_.tokens) * of_activation(shared, true);
  }

  // The convolution reads and writes its columns, gate and norm read z and y and write one of them.
  void add_state_space(double& bytes) const {
    const arch::StateSpacePart part(model_.state_space, s_.input.tensor.size, s_.input.tensor.rank);
    constexpr double kElement = 2;
    bytes += kElement * static_cast<double>(s_.tokens) * static_cast<double>(2 * part.convolved() + 4 * part.inner());
  }

  const arch::Sizes s_;
  const arch::ModelConfig& model_;
  const double imbalance_;
};

}  // namespace

std::array<double, 3> block_traffic(const arch::ModelConfig& model, const arch::LayerDescription& layer, const arch::CostInput& input, double imbalance) {
  std::array<double, 3> bytes{};
  const BranchTraffic of(model, input, imbalance);
  for (const arch::Branch& branch : layer.branches) of.add(branch, bytes);
  for (double& part : bytes) part *= scale(input);
  return bytes;
}

double counted_traffic(const arch::LayerDescription& layer, arch::Phase phase) {
  double bytes = 0;
  for (const arch::Step& step : layer.steps)
    if (step.phases.has(phase)) bytes += static_cast<double>(step.traffic);
  return bytes;
}

std::array<double, 3> counted_block_traffic(const arch::LayerDescription& layer) {
  std::array<double, 3> bytes{};
  size_t part = 0;
  for (const arch::Step& step : layer.steps) {
    if (!step.phases.has(arch::Phase::kForward)) continue;
    if (step.what == arch::Step::What::kStart) {
      const arch::RowsWay way = arch::rows_way(layer.calls[static_cast<size_t>(step.index)]);
      if (way != arch::RowsWay::kNone) part = way == arch::RowsWay::kToExperts ? 1 : 2;
    }
    bytes[part] += static_cast<double>(step.traffic);
  }
  return bytes;
}

double logit_traffic(const arch::ModelConfig& model, const arch::CostInput& input, double bytes_of_logit) {
  const arch::Sizes s(model, input);
  return bytes_of_logit * static_cast<double>(s.tokens) * static_cast<double>(s.model.vocab_size) * scale(input);
}

// Forward a row is read and written; backward it is read, and its gradient added in fp32.
EmbeddingTraffic embedding_traffic(const arch::ModelConfig& model, const arch::CostInput& input) {
  const arch::Sizes s(model, input);
  const double numbers = static_cast<double>(s.tokens) * static_cast<double>(model.hidden) * scale(input);
  return {.forward = 4 * numbers, .backward = 12 * numbers};
}

}  // namespace lockstep::plan
