#include <algorithm>
#include <set>

#include "lockstep/program/passes.h"

namespace lockstep::program {
namespace {

bool adds_gradients(const Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
}

// Position after the last action that adds to the gradients of one of `layers`.
size_t completed_at(const std::vector<Action>& actions, const std::vector<int>& layers) {
  size_t position = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (adds_gradients(actions[i]) && std::count(layers.begin(), layers.end(), actions[i].layer) > 0) position = i + 1;
  }
  return position;
}

}  // namespace

std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table) {
  std::set<int> layers(bucket.layers.begin(), bucket.layers.end());
  for (const arch::ParamSpec& spec : table) {
    if (!spec.tied_layers.empty() && std::count(bucket.layers.begin(), bucket.layers.end(), spec.layer) > 0) {
      layers.insert(spec.tied_layers.begin(), spec.tied_layers.end());
    }
  }
  return {layers.begin(), layers.end()};
}

std::vector<Bucket> gradient_buckets(const Layout& layout) {
  const std::vector<arch::ParamSpec> table = layout.param_table(0);  // units are alike on all ranks
  const arch::FlatLayout flat = arch::flat_layout(table);
  std::vector<Bucket> buckets;
  bool open = false;
  for (auto unit = flat.units.rbegin(); unit != flat.units.rend(); ++unit) {
    if (!open) buckets.push_back({.layers = {}, .begin = unit->end, .end = unit->end});
    Bucket& bucket = buckets.back();
    bucket.layers.push_back(unit->layer);
    bucket.begin = unit->begin;
    open = bucket.numel() * static_cast<int64_t>(sizeof(float)) < layout.bucket_bytes;
  }
  // Backward runs from the last layer to the first: the first of a bucket's writers completes it.
  std::vector<std::pair<int, Bucket>> by_completion;
  for (Bucket& bucket : buckets) by_completion.emplace_back(-writers(bucket, table).front(), std::move(bucket));
  std::stable_sort(by_completion.begin(), by_completion.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < buckets.size(); ++i) buckets[i] = std::move(by_completion[i].second);
  return buckets;
}

Program reduce_gradients(Program program, const Layout& layout) {
  program.buckets = gradient_buckets(layout);
  if (layout.mesh.degree(mesh::kDataAxes) == 1) return program;
  const bool ring = layout.data_parallel == config::DataParallel::kRing;
  const std::vector<arch::ParamSpec> table = arch::param_table(layout.model);
  std::vector<std::vector<int>> writers_of;
  for (const Bucket& bucket : program.buckets) writers_of.push_back(writers(bucket, table));
  for (std::vector<Action>& actions : program.ranks) {
    std::vector<std::vector<Action>> after(actions.size() + 1);  // after[i] goes in front of action i
    for (size_t i = 0; i < program.buckets.size(); ++i) {
      const size_t position = layout.overlap ? completed_at(actions, writers_of[i]) : actions.size();
      after[position].push_back(
          {.kind = ring ? ActionKind::kReduceGrad : ActionKind::kPush, .bucket = static_cast<int>(i)});
    }
    std::vector<Action> merged;
    for (size_t i = 0; i <= actions.size(); ++i) {
      merged.insert(merged.end(), after[i].begin(), after[i].end());
      if (i < actions.size()) merged.push_back(actions[i]);
    }
    actions = std::move(merged);
  }
  return program;
}

}  // namespace lockstep::program
