#include <algorithm>
#include <map>
#include <set>

#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

// What is added to one rank's list, by the computing action in front of which it stands (beyond the last: at the end).
class Reductions {
 public:
  Reductions(const Layout& layout, int rank, const std::vector<Bucket>& buckets, const std::vector<Action>& actions)
      : layout_(layout), table_(layout.param_table(rank)), buckets_(buckets), actions_(actions) {
    for (size_t i = 0; i < actions.size(); ++i)
      if (computes(actions[i].kind)) computing_.push_back(i);
    starts_.resize(computing_.size() + 1);
    waits_.resize(computing_.size() + 1);
    for (int bucket = 0; bucket < static_cast<int>(buckets.size()); ++bucket)
      if (buckets[static_cast<size_t>(bucket)].pipeline == layout.pipeline_rank(rank))
        layout.transient_gradients() ? every_microbatch(bucket) : whole_step(bucket);
  }

  std::vector<Action> result() const {
    std::vector<Action> merged;
    size_t next = 0;
    const auto insert_next = [&] {
      for (const auto* actions : {&starts_[next], &waits_[next]})
        merged.insert(merged.end(), actions->begin(), actions->end());
      ++next;
    };
    for (const Action& action : actions_) {
      if (computes(action.kind)) insert_next();
      merged.push_back(action);
    }
    insert_next();
    return merged;
  }

 private:
  const Action& computing(size_t k) const { return actions_[computing_[k]]; }
  bool replicated() const { return layout_.mesh.degree(layout_.dense_domain().copies) > 1; }
  bool writes(size_t k, int unit) const {
    const std::vector<int> units = units_written(computing(k), table_, layout_.num_layers() - 1);
    return std::count(units.begin(), units.end(), unit) > 0;
  }

  // Gradients that are added up over the microbatches and then reduced.
  void whole_step(int index) {
    const std::vector<int> layers = writers(buckets_[static_cast<size_t>(index)], table_);
    const bool ring = layout_.data_parallel == config::DataParallel::kRing;
    const size_t end = computing_.size();
    size_t complete = end;
    for (size_t k = 0; k < end && layout_.overlap; ++k) {
      if (adds_to_weights(computing(k).kind) && std::count(layers.begin(), layers.end(), computing(k).layer) > 0) complete = k + 1;
    }
    starts_[complete].push_back({.kind = ring ? ActionKind::kReduceGrad : ActionKind::kPush, .bucket = index});
    if (layout_.shards() > 1 && replicated())
      waits_[std::min(complete + 1, end)].push_back({.kind = ActionKind::kReduceShard, .bucket = index});
  }

  // Gradients that live until this rank's shard of them is added to what it keeps.
  void every_microbatch(int index) {
    const int unit = buckets_[static_cast<size_t>(index)].layers.front();
    const int last = static_cast<int>(layout_.num_microbatches()) - 1;
    std::map<int, size_t> complete;  // microbatch -> where its last gradients of the unit are written
    for (size_t k = 0; k < computing_.size(); ++k)
      if (writes(k, unit)) complete[layout_.reduces_once() ? last : computing(k).microbatch] = k + 1;
    const bool several = layout_.shards() > 1;
    for (const auto& [microbatch, at] : complete) {
      if (several) starts_[at].push_back({.kind = ActionKind::kReduceGrad, .microbatch = microbatch, .bucket = index});
      const bool later = several && layout_.overlap && at < computing_.size() && !writes(at, unit);
      std::vector<Action>& waits = waits_[later ? at + 1 : at];
      waits.push_back({.kind = ActionKind::kShardGrad, .microbatch = microbatch, .bucket = index});
      if (replicated() && microbatch == last)
        waits.push_back({.kind = ActionKind::kReduceShard, .bucket = index});
    }
  }

  const Layout& layout_;
  const std::vector<arch::ParamSpec> table_;
  const std::vector<Bucket>& buckets_;
  const std::vector<Action>& actions_;
  std::vector<size_t> computing_;  // positions of the computing actions
  // What starts is ahead of what waits: a wait would hold it up.
  std::vector<std::vector<Action>> starts_, waits_;
};

}  // namespace

std::vector<Bucket> gradient_buckets(const Layout& layout, int rank) {
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  const arch::FlatLayout flat = layout.flat_layout(rank);
  const int64_t full = layout.transient_gradients() ? 0 : layout.bucket_bytes;
  std::vector<Bucket> buckets;
  bool open = false;
  for (auto unit = flat.units.rbegin(); unit != flat.units.rend(); ++unit) {
    if (!open)
      buckets.push_back({.layers = {}, .begin = unit->end, .end = unit->end, .pipeline = layout.pipeline_rank(rank)});
    Bucket& bucket = buckets.back();
    bucket.layers.push_back(unit->layer);
    bucket.begin = unit->begin;
    open = bucket.numel() * static_cast<int64_t>(sizeof(float)) < full;
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
  const int per_stage = layout.mesh.world_size() / layout.pipeline.ranks;  // pp varies slowest
  for (int coordinate = 0; coordinate < layout.pipeline.ranks; ++coordinate)
    for (Bucket& bucket : gradient_buckets(layout, coordinate * per_stage)) program.buckets.push_back(std::move(bucket));
  if (layout.mesh.degree(layout.tokens()) == 1 && !layout.transient_gradients()) return program;
  const std::vector<Bucket> buckets = program.buckets;
  return with_lists(std::move(program), [&](int rank, const std::vector<Action>& actions) {
    return Reductions(layout, rank, buckets, actions).result();
  });
}

}  // namespace lockstep::program
