#include "lockstep/engine/parameter_gather.h"

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Algorithm;

ParameterGather::ParameterGather(const program::Layout& layout, ParameterStore& store, Groups& groups,
                                 ExposedWaits& waits, CopyQueue* copies)
    : store_(store), groups_(groups), waits_(waits), copies_(copies) {
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) names_.push_back(layer.name);
}

void ParameterGather::unshard(int layer) {
  LOCKSTEP_CHECK(!in_flight_.contains(layer), "the parameters of layer ", layer, " are on their way already");
  fetched(layer);
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

UnitBuffers* ParameterGather::fetched_memory() {
  if (store_.parts().defined()) return &store_.parts();
  return store_.options().offload_parameters ? &store_.compute() : nullptr;
}

void ParameterGather::fetch(int layer) {
  LOCKSTEP_CHECK(!fetches_.contains(layer), "the parameters of layer ", layer, " are on their way already");
  const size_t unit = store_.unit_of(layer);
  if (UnitBuffers* memory = fetched_memory()) memory->hold(unit);
  const at::Tensor to = store_.compute_part(unit);
  HostStates& host = *store_.host();
  if (host.on_disk(unit)) {
    fetches_[layer] = host.disk()->fetch_parameters(unit, to);
    return;
  }
  const Copy copy = copies_->copy(store_.fetched_from(unit), to,
                                  cat("parameters of ", names_.at(static_cast<size_t>(layer)), " to the device"));
  host.read_by(unit, copy);  // no update before it has read: nobody else waits for it on the host
  fetches_[layer] = copy;
}

// In the order of the device's stream: kernels and collectives that read the part, and whatever takes its memory after evict,
// are given to it later.
void ParameterGather::fetched(int layer) {
  if (auto found = fetches_.extract(layer)) found.mapped().order_after();
}

void ParameterGather::evict(int layer) {
  fetched(layer);
  fetched_memory()->drop(store_.unit_of(layer));
}

void ParameterGather::pull(const program::Bucket& bucket, int index) {
  const comm::Work work =
      groups_.data().broadcast(store_.compute_slice(bucket.begin, bucket.end), program::kServerRank,
                               {.site = cat("pull bucket ", index), .algorithm = Algorithm::kDirect});
  for (const int layer : bucket.layers) in_flight_[layer] = work;
}

void ParameterGather::ready(std::span<const int> layers) {
  for (const int layer : layers) {
    fetched(layer);
    const auto found = in_flight_.find(layer);
    if (found == in_flight_.end()) continue;
    comm::Work work = std::move(found->second);
    in_flight_.erase(found);
    waits_.wait(work, "dp parameters");
  }
}

void ParameterGather::ready() {
  while (!fetches_.empty()) fetched(fetches_.begin()->first);
  while (!in_flight_.empty()) ready(std::array{in_flight_.begin()->first});
}

}  // namespace lockstep::engine
