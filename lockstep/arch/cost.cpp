#include "lockstep/arch/cost.h"

#include <algorithm>
#include <cstddef>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

bool is_of(const Step& step, Phase a, Phase b) { return step.phases.has(a) && step.phases.has(b); }

// Bytes alive while a layer's steps are run.
class Walk {
 public:
  Walk(const LayerDescription& layer, int64_t now) : layer_(layer), now_(now), peak_(now) {}

  void run(Phase phase) { run(phase, phase); }
  // I and then W, as action B has them.
  void run_backward() { run(Phase::kBackward, Phase::kInput), run(Phase::kBackward, Phase::kWeight); }
  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  void run(Phase phase, Phase part) {
    for (const Step& step : layer_.steps) {
      if (!is_of(step, phase, part)) continue;
      if (step.what == Step::What::kTake) now_ += bytes(step);
      if (step.what == Step::What::kDrop) now_ -= bytes(step);
      peak_ = std::max(peak_, now_ + step.scratch);
    }
  }
  int64_t bytes(const Step& step) const { return layer_.values[static_cast<size_t>(step.index)].bytes(); }

  const LayerDescription& layer_;
  int64_t now_;
  int64_t peak_;
};

Gemm gemm_of(const Product& product, bool in_weight) {
  constexpr std::string_view kRoles[] = {"", ".dx", ".dw"};
  return {.name = cat(product.name, kRoles[static_cast<size_t>(product.role)]),
          .m = product.m,
          .n = product.n,
          .k = product.k,
          .count = product.count,
          .in_weight = in_weight};
}

void add_work(const LayerDescription& layer, Recompute choice, LayerCost& cost) {
  const Phase again = choice == Recompute::kFull ? Phase::kRecompute : Phase::kRestore;
  const bool computes_again = choice != Recompute::kNone;
  for (const Step& step : layer.steps) {
    const PhaseSet phases = step.phases;
    const bool in_weight = phases.has(Phase::kWeight);
    if (phases.has(Phase::kForward) || phases.has(Phase::kInput)) cost.memory_traffic += step.traffic;
    if (computes_again && phases.has(again)) cost.recompute_traffic += step.traffic;
    if (step.what != Step::What::kProduct) continue;
    const Gemm gemm = gemm_of(layer.products[static_cast<size_t>(step.index)], in_weight);
    if (phases.has(Phase::kForward)) cost.forward.push_back(gemm);
    if (phases.has(Phase::kInput) || in_weight) cost.backward.push_back(gemm);
    if (computes_again && phases.has(again)) cost.recompute.push_back(gemm);
  }
}

int64_t kept_by(const LayerDescription& layer, Recompute choice) {
  int64_t bytes = 0;
  for (const Value& value : layer.values)
    if (!value.kept_as.empty() && choice <= value.most) bytes += value.bytes();
  return bytes;
}

int64_t bytes_of(const LayerDescription& layer, int value) {
  return value == kNoValue ? 0 : layer.values[static_cast<size_t>(value)].bytes();
}

void add_forward_bytes(const LayerDescription& layer, Recompute choice, LayerCost& cost) {
  const int64_t all = kept_by(layer, Recompute::kNone);
  cost.kept = kept_by(layer, choice);
  cost.restored = all - cost.kept;
  cost.output = bytes_of(layer, layer.output);
  Walk forward(layer, bytes_of(layer, layer.input));
  forward.run(choice == Recompute::kFull && layer.has(Phase::kRecompute) ? Phase::kEvaluate : Phase::kForward);
  cost.forward_workspace = forward.peak() - cost.kept - cost.output;
  if (choice == Recompute::kNone) return;
  Walk again(layer, cost.kept);
  again.run(choice == Recompute::kFull ? Phase::kRecompute : Phase::kRestore);
  cost.recompute_workspace = again.peak() - all;
}

void add_backward_bytes(const LayerDescription& layer, bool overlapped, LayerCost& cost) {
  const int64_t dx = bytes_of(layer, layer.input), begin = kept_by(layer, Recompute::kNone) + cost.output;
  Walk input(layer, begin);
  input.run(Phase::kInput);
  cost.input_workspace = input.peak() - begin - dx;
  Walk left(layer, 0);  // W leaves nothing, so it begins with what it releases
  left.run(Phase::kWeight);
  cost.held = -left.now();
  Walk weight(layer, cost.held);
  weight.run(Phase::kWeight);
  cost.weight_workspace = weight.peak() - cost.held;
  Walk backward(layer, begin);
  overlapped ? backward.run(Phase::kOverlapped) : backward.run_backward();
  cost.backward_workspace = backward.peak() - begin - dx;
}

double sum_flops(const std::vector<Gemm>& gemms) {
  double sum = 0;
  for (const Gemm& gemm : gemms) sum += gemm.flops();
  return sum;
}

}  // namespace

double LayerCost::forward_flops() const {
  return sum_flops(forward);
}
double LayerCost::backward_flops() const {
  return sum_flops(backward);
}

double LayerCost::weight_flops() const {
  double sum = 0;
  for (const Gemm& gemm : backward)
    if (gemm.in_weight) sum += gemm.flops();
  return sum;
}

double LayerCost::input_flops() const {
  return backward_flops() - weight_flops();
}

double LayerCost::recompute_flops() const {
  return sum_flops(recompute);
}

std::vector<KeptPart> block_kept_parts(const ModelConfig& model, const CostInput& input) {
  std::vector<KeptPart> parts;
  for (const Value& value : describe_layer(model, layer_spec(model, 1), input).values) {
    if (value.kept_as.empty()) continue;
    const auto same = [&](const KeptPart& part) { return part.name == value.kept_as; };
    const auto part = std::find_if(parts.begin(), parts.end(), same);
    if (part == parts.end())
      parts.push_back({.name = std::string(value.kept_as), .bytes = value.bytes(), .most = value.most});
    else
      part->bytes += value.bytes();
  }
  return parts;
}

int64_t head_chunk_rows(int64_t vocab_size) {
  return std::max<int64_t>(256, 16 * 1024 * 1024 / (4 * vocab_size));
}

LayerCost layer_cost(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
  const LayerDescription description = describe_layer(model, layer, input);
  LayerCost cost;
  add_work(description, input.recompute, cost);
  add_forward_bytes(description, input.recompute, cost);
  add_backward_bytes(description, input.tensor.size > 1 && input.overlap, cost);
  return cost;
}

double model_flops_per_token(const ModelConfig& model, int64_t seq_len, bool causal) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double hidden = number(model.hidden);
  const double q_width = number(model.heads * model.head_size);
  const double kv_width = number(model.kv_heads * model.head_size);
  const double projections = hidden * (2 * q_width + 2 * kv_width);
  const double core = 2 * q_width * number(seq_len) * (causal ? 0.5 : 1);
  const double matrices = model.traits().gated_mlp ? 3 : 2;
  const double mlp = matrices * hidden * number(model.ffn);
  return 6 * (number(model.layers) * (projections + core + mlp) + hidden * number(model.vocab_size));
}

}  // namespace lockstep::arch
