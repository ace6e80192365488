#include "lockstep/arch/cost.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "lockstep/arch/layer_description.h"

namespace lockstep::arch {
namespace {

// Alive while a layer's steps are run.
struct Bytes {
  int64_t now = 0;
  int64_t peak = 0;
};

// After the steps of a phase that are also in `part`.
Bytes walk(const LayerDescription& layer, Bytes bytes, Phase phase, Phase part) {
  for (const Step& step : layer.steps) {
    if (!step.phases.has(phase) || !step.phases.has(part)) continue;
    if (step.what == Step::What::kTake) bytes.now += layer.bytes(step.index);
    if (step.what == Step::What::kDrop) bytes.now -= layer.bytes(step.index);
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
    if (value.kept_by(choice)) bytes += value.bytes;
  return bytes;
}

void add_forward_bytes(const LayerDescription& layer, Recompute choice, LayerCost& cost) {
  const int64_t all = kept_by(layer, Recompute::kNone);
  const bool full = choice == Recompute::kFull;
  cost.kept = kept_by(layer, choice);
  cost.restored = all - cost.kept;
  cost.output = layer.bytes(layer.output);
  // An embedding and a head are not computed again.
  const Phase forward = full && !layer.branches.empty() ? Phase::kEvaluate : Phase::kForward;
  cost.forward_workspace = walk(layer, layer.bytes(layer.input), forward).peak - cost.kept - cost.output;
  if (choice == Recompute::kNone) return;
  cost.recompute_workspace = walk(layer, cost.kept, full ? Phase::kRecompute : Phase::kRestore).peak - all;
}

void add_backward_bytes(const LayerDescription& layer, bool overlapped, LayerCost& cost) {
  const int64_t dx = layer.bytes(layer.input), begin = kept_by(layer, Recompute::kNone) + cost.output;
  cost.input_workspace = walk(layer, begin, Phase::kInput).peak - begin - dx;
  cost.held = -walk(layer, 0, Phase::kWeight).now;  // W leaves nothing, so it begins with what it releases
  cost.weight_workspace = walk(layer, cost.held, Phase::kWeight).peak - cost.held;
  const auto in_turn = [&] {  // I and then W, as action B has them
    return walk(layer, walk(layer, {begin, begin}, Phase::kBackward, Phase::kInput), Phase::kBackward, Phase::kWeight);
  };
  cost.backward_workspace = (overlapped ? walk(layer, begin, Phase::kOverlapped) : in_turn()).peak - begin - dx;
}

// One pass of a layer on its way through its parts.
class PartWalk {
 public:
  // `beside`: bytes that somebody else counts while the pass is between two parts.
  PartWalk(const LayerDescription& layer, int64_t now, int64_t beside) : layer_(layer), beside_(beside), begin_(now), bytes_{now, now} {}

  // Its steps of a phase that are also in `part`.
  void walk(Phase phase, Phase part) {
    for (const Step& step : layer_.steps) {
      if (!step.phases.has(phase) || !step.phases.has(part)) continue;
      if (step.what == Step::What::kStart && leaves(rows_way(layer_.calls[static_cast<size_t>(step.index)]))) end_part(step.scratch);
      if (step.what == Step::What::kTake) bytes_.now += layer_.bytes(step.index);
      if (step.what == Step::What::kDrop) bytes_.now -= layer_.bytes(step.index);
      bytes_.peak = std::max(bytes_.peak, bytes_.now + step.scratch);
      if (step.what == Step::What::kProduct) cost_.flops[at_] += layer_.products[static_cast<size_t>(step.index)].flops();
    }
  }

  // `left`: bytes alive behind the last part.
  PartCost end(int64_t left) {
    if (at_ != 2) return {};
    cost_.workspace[at_] = std::max<int64_t>(0, bytes_.peak - std::max(begin_, left));
    return cost_;
  }

 private:
  bool leaves(RowsWay way) const { return (way == RowsWay::kToExperts && at_ == 0) || (way == RowsWay::kBack && at_ == 1); }
  void end_part(int64_t scratch) {
    const int64_t alive = bytes_.now + scratch;
    cost_.workspace[at_] = std::max<int64_t>(0, bytes_.peak - std::max(begin_, alive));
    cost_.between[at_++] = alive - beside_;
    begin_ = alive;
    bytes_.peak = alive;
  }

  const LayerDescription& layer_;
  const int64_t beside_;
  int64_t begin_;  // alive where the part at hand begins
  Bytes bytes_;
  size_t at_ = 0;  // part
  PartCost cost_;
};

void add_parts(const LayerDescription& layer, Recompute choice, LayerCost& cost) {
  const auto leaves = [](const LayerCall& call) { return rows_way(call) != RowsWay::kNone; };
  if (std::ranges::none_of(layer.calls, leaves)) return;
  const Phase forward = choice == Recompute::kFull ? Phase::kEvaluate : Phase::kForward;
  PartWalk of_forward(layer, layer.bytes(layer.input), 0);
  of_forward.walk(forward, forward);
  cost.forward_parts = of_forward.end(cost.kept + cost.output);
  const int64_t all = kept_by(layer, Recompute::kNone), dx = layer.bytes(layer.input);
  PartWalk of_input(layer, all + cost.output, all), of_both(layer, all + cost.output, all);
  of_input.walk(Phase::kInput, Phase::kInput);
  cost.input_parts = of_input.end(cost.held + dx);
  of_both.walk(Phase::kBackward, Phase::kInput);
  of_both.walk(Phase::kBackward, Phase::kWeight);
  cost.backward_parts = of_both.end(dx);
}

// In sequences of so many, an even number: the products round an odd one's causal half up to whole keys.
double model_flops_of_token(const ModelConfig& model, const LayerSpec& layer, int64_t seq_len) {
  const LayerCost cost = layer_cost(model, layer, {.seq_len = seq_len});
  // Backward computes scores again, which are no FLOPs of the model; all of a head's are in its I.
  const double flops = layer.kind == LayerKind::kHead ? cost.backward_flops : 3 * cost.forward_flops;
  return flops / static_cast<double>(seq_len);
}

struct TokenFlops {
  double of_one = 0, per_pair = 0;
};

// From sequences of two lengths, whose tokens see half of them on average. A state space has products of whole chunks there: they are of
// tokens, not of pairs.
TokenFlops flops_of_token(const ModelConfig& model, const LayerSpec& layer) {
  const bool block = layer.kind == LayerKind::kBlock;
  const BlockSpec branches = block ? block_branches(model, layer.index) : BlockSpec();
  const bool scans = std::ranges::count(branches, kStateSpace, &Branch::kind) > 0;
  const int64_t seen = scans ? model.state_space.chunk : 1;
  const double shorter = model_flops_of_token(model, layer, 2 * seen);
  const bool pairs = !scans || std::ranges::any_of(branches, [](const Branch& branch) { return branch.kind.ends_with("attention"); });
  if (!pairs) return {.of_one = shorter};
  const double per_pair = (model_flops_of_token(model, layer, 4 * seen) - shorter) / static_cast<double>(seen);
  return {.of_one = shorter - static_cast<double>(seen - 1) * per_pair, .per_pair = per_pair};
}

}  // namespace

int64_t head_chunk_rows(int64_t vocab_size, int ranks) {
  return std::max<int64_t>(256, 16 * 1024 * 1024 / (4 * mesh::padded_part(vocab_size, ranks)));
}

LayerCost layer_cost(const ModelConfig& model, const LayerSpec& layer, const CostInput& input) {
  const LayerDescription description = describe_layer(model, layer, input);
  LayerCost cost;
  add_work(description, cost);
  add_forward_bytes(description, input.recompute, cost);
  add_backward_bytes(description, input.tensor.size > 1 && input.overlap, cost);
  add_parts(description, input.recompute, cost);
  return cost;
}

ModelFlops::ModelFlops(const ModelConfig& of) {
  ModelConfig model = of;
  // Experts that choose take k for a token on average, which sequences as short as these would round up.
  if (model.experts.router == config::Router::kExpertChoice) model.experts.router = config::Router::kSoftmax;
  model.sliding_window = 0;
  for (BlockSpec& block : model.blocks)
    for (Branch& branch : block) branch.window.reset();
  std::map<int, TokenFlops> known;  // of a layer of each pattern
  for (const LayerSpec& layer : layer_table(model)) {
    const auto [found, fresh] = known.try_emplace(layer_pattern(model, layer));
    if (fresh) found->second = flops_of_token(model, layer);
    of_one_ += found->second.of_one;
    per_pair_[layer.kind == LayerKind::kBlock ? window_of_layer(of, layer.index) : of.sliding_window] += found->second.per_pair;
  }
}

double ModelFlops::per_token(int64_t length) const {
  // Half of the tokens of a document on average, less what lies beyond a window.
  double flops = of_one_;
  const auto tokens = static_cast<double>(length);
  for (const auto& [limit, per_pair] : per_pair_) {
    const auto window = static_cast<double>(limit);
    const double seen = limit > 0 && window < tokens ? window - window * window / (2 * tokens) : tokens / 2;
    flops += (seen - 1) * per_pair;
  }
  return flops;
}

double model_flops_per_token(const ModelConfig& model, int64_t seq_len) { return ModelFlops(model).per_token(seq_len); }

}  // namespace lockstep::arch
