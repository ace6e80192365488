#include "lockstep/program/effects.h"

#include <algorithm>
#include <set>

namespace lockstep::program {

bool computes(ActionKind kind) {
  return kind <= ActionKind::kRecompute;
}

bool reduces(ActionKind kind) {
  return kind == ActionKind::kReduceGrad || kind == ActionKind::kShardGrad || kind == ActionKind::kReduceShard ||
         kind == ActionKind::kPush;
}

bool is_transfer(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward || kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
}

std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table) {
  const bool forward = action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
  const bool input = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  constexpr int kEmbedding = 0;
  if (action.layer < 0 || !(forward || (input && action.layer != kEmbedding))) return {};
  std::set<int> units;
  for (const arch::ParamSpec& spec : table)
    if (spec.layer == action.layer ||
        ((forward || input) && std::count(spec.tied_layers.begin(), spec.tied_layers.end(), action.layer) > 0))
      units.insert(spec.layer);
  return {units.begin(), units.end()};
}

std::vector<int> units_written(const Action& action, const std::vector<arch::ParamSpec>& table, int head) {
  const bool weight = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
  const bool input = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  std::set<int> units;
  if (weight) units.insert(action.layer);
  if (input && action.layer == head) {
    int projection = head;
    for (const arch::ParamSpec& spec : table)
      if (std::count(spec.tied_layers.begin(), spec.tied_layers.end(), head) > 0) projection = spec.layer;
    units.insert(projection);
  }
  return {units.begin(), units.end()};
}

std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table) {
  std::set<int> layers(bucket.layers.begin(), bucket.layers.end());
  for (const arch::ParamSpec& spec : table) {
    if (!spec.tied_layers.empty() && std::count(bucket.layers.begin(), bucket.layers.end(), spec.layer) > 0) {
      layers.insert(spec.tied_layers.begin(), spec.tied_layers.end());
    }
  }
  return {layers.begin(), layers.end()};
}

}  // namespace lockstep::program
