#include "lockstep/arch/cost.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {
namespace {

int64_t bytes_of(const LayerDescription& layer, int value) {
  return value == kNoValue ? 0 : layer.values[static_cast<size_t>(value)].bytes();
}

// Alive while a layer's steps are run.
struct Bytes {
  int64_t now = 0;
  int64_t peak = 0;
};

// After the steps of a phase that are also in `part`.
Bytes walk(const LayerDescription& layer, Bytes bytes, Phase phase, Phase part) {
  for (const Step& step : layer.steps) {
    if (!step.phases.has(phase) || !step.phases.has(part)) continue;
    if (step.what == Step::What::kTake) bytes.now += bytes_of(layer, step.index);
    if (step.what == Step::What::kDrop) bytes.now -= bytes_of(layer, step.index);
    bytes.peak = std::max(bytes.peak, bytes.now + step.scratch);
  }
  return bytes;
}

Bytes walk(const LayerDescription& layer, int64_t now, Phase phase) { return walk(layer, {now, now}, phase, phase); }

void add_work(const LayerDescription& layer, LayerCost& cost) {
  for (const Step& step : layer.steps) {
    const bool forward = step.phases.has(Phase::kForward), input = step.phases.has(Phase::kInput);
    const bool weight = step.phases.has(Phase::kWeight);
    if (forward || input) cost.memory_traffic += step.traffic;
    if (step.what != Step::What::kProduct) continue;
    const double flops = layer.products[static_cast<size_t>(step.index)].flops();
    if (forward) cost.forward_flops += flops;
    if (input || weight) cost.backward_flops += flops;
    if (weight) cost.weight_flops += flops;
  }
}

int64_t kept_by(const LayerDescription& layer, Recompute choice) {
  int64_t bytes = 0;
  for (const Value& value : layer.values)
    if (!value.kept_as.empty() && choice <= value.most) bytes += value.bytes();
  return bytes;
}

void add_forward_bytes(const LayerDescription& layer, Recompute choice, LayerCost& cost) {
  const int64_t all = kept_by(layer, Recompute::kNone);
  const bool full = choice == Recompute::kFull;
  cost.kept = kept_by(layer, choice);
  cost.restored = all - cost.kept;
  cost.output = bytes_of(layer, layer.output);
  const Phase forward = full && layer.has(Phase::kRecompute) ? Phase::kEvaluate : Phase::kForward;
  cost.forward_workspace = walk(layer, bytes_of(layer, layer.input), forward).peak - cost.kept - cost.output;
  if (choice == Recompute::kNone) return;
  cost.recompute_workspace = walk(layer, cost.kept, full ? Phase::kRecompute : Phase::kRestore).peak - all;
}

void add_backward_bytes(const LayerDescription& layer, bool overlapped, LayerCost& cost) {
  const int64_t dx = bytes_of(layer, layer.input), begin = kept_by(layer, Recompute::kNone) + cost.output;
  cost.input_workspace = walk(layer, begin, Phase::kInput).peak - begin - dx;
  cost.held = -walk(layer, 0, Phase::kWeight).now;  // W leaves nothing, so it begins with what it releases
  cost.weight_workspace = walk(layer, cost.held, Phase::kWeight).peak - cost.held;
  const auto in_turn = [&] {  // I and then W, as action B has them
    return walk(layer, walk(layer, {begin, begin}, Phase::kBackward, Phase::kInput), Phase::kBackward, Phase::kWeight);
  };
  cost.backward_workspace = (overlapped ? walk(layer, begin, Phase::kOverlapped) : in_turn()).peak - begin - dx;
}

}  // namespace

std::vector<KeptPart> block_kept_parts(const ModelConfig& model, const CostInput& input) {
  std::vector<KeptPart> parts;
  for (const Value& value : describe_layer(model, layer_spec(model, 1), input).values) {
    if (value.kept_as.empty()) continue;
    auto part = std::ranges::find(parts, value.kept_as, &KeptPart::name);
    if (part == parts.end()) part = parts.insert(part, KeptPart{.name = std::string(value.kept_as), .bytes = 0, .most = value.most});
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
  add_work(description, cost);
  add_forward_bytes(description, input.recompute, cost);
  add_backward_bytes(description, input.tensor.size > 1 && input.overlap, cost);
  return cost;
}

double model_flops_per_token(const ModelConfig& model, int64_t seq_len, bool causal) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double pairs = number(seq_len) * (causal ? 0.5 : 1);  // a token's
  const auto macs_of = [&](const LayerSpec& block) {
    double sum = 0;
    for (const ParamSpec& spec : layer_parameters(model, block))
      if (spec.shape.size() == 2) sum += number(spec.shape[0]) * number(spec.shape[1]);
    for (const Branch& branch : block_branches(model, block.index))
      if (const auto of_pair = branch_kind(branch.kind).macs_of_pair) sum += number(of_pair(model)) * pairs;
    return sum;
  };
  double macs = number(model.hidden) * number(model.vocab_size);
  std::map<int, double> known;  // blocks of one pattern cost the same
  for (int index = 1; index <= static_cast<int>(model.layers); ++index) {
    const auto [block, fresh] = known.try_emplace(layer_pattern(model, {.kind = LayerKind::kBlock, .index = index, .name = {}}));
    if (fresh) block->second = macs_of(layer_spec(model, index));
    macs += block->second;
  }
  return 6 * macs;
}

}  // namespace lockstep::arch
