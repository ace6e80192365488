#include "lockstep/engine/parameter_gather.h"

#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

ParameterGather::ParameterGather(const program::Layout& layout, ParameterStore& store, Groups& groups,
                                 program::CallTable& calls, ExposedWaits& waits, CopyQueue* copies)
    : store_(store), groups_(groups), calls_(calls), waits_(waits), copies_(copies) {
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) names_.push_back(layer.name);
}

void ParameterGather::add_handlers(Handlers& handlers, std::span<const program::Bucket> buckets) {
  handlers.add({ActionKind::kUnshard}, [this](const Action& action) { return unshard(action); });
  handlers.add_prompt({ActionKind::kReshard}, [this](const Action& action) { reshard(action.unit); });
  handlers.add({ActionKind::kPull}, [this, buckets](const Action& action) {
    return pull(buckets[static_cast<size_t>(action.bucket)], action);
  });
}

static constexpr const char* kWaitsFor = "dp parameters";

Started ParameterGather::unshard(const Action& action) {
  const size_t unit = store_.unit_of(action.unit);
  const program::PlannedCall* call = calls_.only(action);
  LOCKSTEP_CHECK(call != nullptr, "the unit of layer ", action.unit, " is whole");
  if (store_.compute().transient()) store_.compute().hold(unit);
  return waiting_for(execute(groups_, *call, {.input = store_.compute_part(unit), .output = store_.compute_unit(unit)}), waits_,
                     kWaitsFor);
}

void ParameterGather::reshard(int layer) {
  store_.compute().drop(store_.unit_of(layer));
}

UnitBuffers* ParameterGather::fetched_memory() {
  if (store_.parts().defined()) return &store_.parts();
  return store_.options().offload_parameters ? &store_.compute() : nullptr;
}

// It is joined in the order of the device's stream: kernels and collectives that read the part, and whatever takes its memory
// after evict, are given to it later.
Started ParameterGather::fetch(int layer) {
  const size_t unit = store_.unit_of(layer);
  if (UnitBuffers* memory = fetched_memory()) memory->hold(unit);
  const at::Tensor to = store_.compute_part(unit);
  HostStates& host = *store_.host();
  if (host.on_disk(unit)) return [copy = host.disk()->fetch_parameters(unit, to)]() mutable { copy.order_after(); };
  Copy copy = copies_->copy(store_.fetched_from(unit), to,
                            cat("parameters of ", names_.at(static_cast<size_t>(layer)), " to the device"));
  host.read_by(unit, copy);  // no update before it has read: nobody else waits for it on the host
  return [copy = std::move(copy)]() mutable { copy.order_after(); };
}

void ParameterGather::evict(int layer) {
  fetched_memory()->drop(store_.unit_of(layer));
}

Started ParameterGather::pull(const program::Bucket& bucket, const Action& action) {
  const program::PlannedCall* call = calls_.only(action);
  if (!call) return {};
  return waiting_for(execute(groups_, *call, {.input = store_.compute_slice(bucket.begin, bucket.end)}), waits_, kWaitsFor);
}

}  // namespace lockstep::engine
