#include <algorithm>
#include <iterator>
#include <map>

#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

// What is added to one rank's list, in front of a computing action or at the end.
class Reductions {
 public:
  Reductions(const Layout& layout, int rank, const std::vector<Bucket>& buckets, const std::vector<Action>& actions)
      : layout_(layout), table_(layout.param_table(rank)), buckets_(buckets), actions_(actions) {
    EffectTable effects(layout, buckets, rank);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!computes(actions[i].kind)) continue;
      if (adds_to_weights(actions[i].kind)) last_of_layer_[actions[i].layer] = computing_.size();
      for (const Touch& touch : effects.of(actions[i]).touches)
        if (touch.what == Resource::kGradients) writes_[touch.index].push_back(computing_.size());
      computing_.push_back(i);
    }
    for (int index = 0; index < static_cast<int>(buckets.size()); ++index)
      if (bucket(index).pipeline == layout.pipeline_rank(rank))
        layout.transient_gradients(group_of(layout, bucket(index))) ? every_microbatch(index) : whole_step(index);
  }

  // What starts is ahead of what waits: a wait would hold it up.
  std::vector<Action> result() const {
    Insertions before = starts_;
    for (const auto& [position, waits] : waits_) before[position].insert(before[position].end(), waits.begin(), waits.end());
    return merged(actions_, before);
  }

 private:
  const Bucket& bucket(int index) const { return buckets_[static_cast<size_t>(index)]; }
  bool shared_out(int index) const { return layout_.shards(group_of(layout_, bucket(index))) > 1; }
  bool replicated(int index) const { return layout_.mesh.degree(domain_of(layout_, bucket(index)).copies) > 1; }
  // In front of this computing action.
  std::vector<Action>& at(Insertions& before, size_t k) const {
    return before[k < computing_.size() ? computing_[k] : actions_.size()];
  }

  // Gradients that are added up over the microbatches and then reduced.
  void whole_step(int index) {
    if (layout_.mesh.degree(domain_of(layout_, bucket(index)).sum) == 1) return;
    size_t complete = 0;
    for (const int layer : writers(bucket(index), table_))
      if (const auto last = last_of_layer_.find(layer); layout_.overlap && last != last_of_layer_.end())
        complete = std::max(complete, last->second + 1);
    if (complete == 0) complete = computing_.size();
    at(starts_, complete).push_back({.kind = layout_.server_mode() ? ActionKind::kPush : ActionKind::kReduceGrad, .bucket = index});
    if (shared_out(index) && replicated(index))
      at(waits_, complete + 1).push_back({.kind = ActionKind::kReduceShard, .bucket = index});
  }

  // Gradients that live until this rank's shard of them is added to what it keeps.
  void every_microbatch(int index) {
    const std::vector<size_t>& writes = writes_[bucket(index).units.front()];
    const int last = static_cast<int>(layout_.num_microbatches()) - 1;
    std::map<int, size_t> complete;  // microbatch -> behind its last gradients of the unit
    for (const size_t k : writes) complete[layout_.reduces_once() ? last : actions_[computing_[k]].microbatch] = k + 1;
    const bool several = shared_out(index);
    for (const auto& [microbatch, next] : complete) {
      if (several) at(starts_, next).push_back({.kind = ActionKind::kReduceGrad, .microbatch = microbatch, .bucket = index});
      const bool later = several && layout_.overlap && next < computing_.size() && !std::ranges::binary_search(writes, next);
      std::vector<Action>& waits = at(waits_, later ? next + 1 : next);
      waits.push_back({.kind = ActionKind::kShardGrad, .microbatch = microbatch, .bucket = index});
      if (microbatch == last && replicated(index)) waits.push_back({.kind = ActionKind::kReduceShard, .bucket = index});
    }
  }

  const Layout& layout_;
  const std::vector<arch::ParamSpec> table_;
  const std::vector<Bucket>& buckets_;
  const std::vector<Action>& actions_;
  std::vector<size_t> computing_;               // positions of the computing actions
  std::map<int, std::vector<size_t>> writes_;   // by unit: which of them add to its gradients
  std::map<int, size_t> last_of_layer_;         // by layer: the last that makes gradients of weights
  Insertions starts_, waits_;
};

}  // namespace

std::vector<Bucket> gradient_buckets(const Layout& layout, int rank) {
  const std::vector<arch::ParamSpec> table = layout.param_table(rank);
  const arch::FlatLayout flat = layout.flat_layout(rank);
  std::vector<Bucket> buckets;
  bool open = false;
  for (auto unit = flat.units.rbegin(); unit != flat.units.rend(); ++unit) {
    if (!open)
      buckets.push_back({.units = {}, .begin = unit->end, .end = unit->end, .pipeline = layout.pipeline_rank(rank)});
    Bucket& bucket = buckets.back();
    bucket.units.push_back(unit->id);
    bucket.begin = unit->begin;
    const auto next = std::next(unit);
    const bool of_group = next != flat.units.rend() && next->group == unit->group;
    const int64_t full = layout.transient_gradients(unit->group) ? 0 : layout.bucket_bytes;
    open = of_group && bucket.numel() * static_cast<int64_t>(sizeof(float)) < full;
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
  for (int coordinate = 0; coordinate < layout.pipeline.ranks; ++coordinate)
    for (Bucket& bucket : gradient_buckets(layout, coordinate * layout.pipelines())) program.buckets.push_back(std::move(bucket));
  const std::vector<Bucket> buckets = program.buckets;
  return with_lists(std::move(program), [&](int rank, const std::vector<Action>& actions) {
    return Reductions(layout, rank, buckets, actions).result();
  });
}

}  // namespace lockstep::program
