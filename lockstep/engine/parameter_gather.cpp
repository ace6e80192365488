#include "lockstep/engine/parameter_gather.h"

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Algorithm;

ParameterGather::ParameterGather(const program::Layout& layout, ParameterStore& store, Groups& groups,
                                 ExposedWaits& waits)
    : store_(store), groups_(groups), waits_(waits) {
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) names_.push_back(layer.name);
}

void ParameterGather::unshard(int layer) {
  LOCKSTEP_CHECK(!in_flight_.contains(layer), "the parameters of layer ", layer, " are on their way already");
  const size_t unit = store_.unit_of(layer);
  if (store_.compute().transient()) store_.compute().hold(unit);
  in_flight_[layer] = groups_.shard()->all_gather(
      store_.compute_part(unit), store_.compute_unit(unit),
      {.site = cat("unshard ", names_.at(static_cast<size_t>(layer))), .algorithm = Algorithm::kRing});
}

void ParameterGather::reshard(int layer) {
  ready(std::array{layer});  // gathered and never read: its memory is still written to
  store_.compute().drop(store_.unit_of(layer));
}

void ParameterGather::pull(const program::Bucket& bucket, int index) {
  const comm::Work work =
      groups_.data().broadcast(store_.compute_slice(bucket.begin, bucket.end), program::kServerRank,
                               {.site = cat("pull bucket ", index), .algorithm = Algorithm::kDirect});
  for (const int layer : bucket.layers) in_flight_[layer] = work;
}

void ParameterGather::ready(std::span<const int> layers) {
  for (const int layer : layers) {
    const auto found = in_flight_.find(layer);
    if (found == in_flight_.end()) continue;
    comm::Work work = std::move(found->second);
    in_flight_.erase(found);
    waits_.wait(work, "dp parameters");
  }
}

void ParameterGather::ready() {
  while (!in_flight_.empty()) ready(std::array{in_flight_.begin()->first});
}

}  // namespace lockstep::engine
