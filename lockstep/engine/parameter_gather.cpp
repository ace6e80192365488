#include "lockstep/engine/parameter_gather.h"

#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

ParameterGather::ParameterGather(const StepView& step, CopyQueue* copies) : step_(step), copies_(copies) {}

void ParameterGather::add_handlers(Handlers& handlers, std::span<const program::Bucket> buckets) {
  handlers.add({ActionKind::kUnshard}, [this](const Action& action) { return unshard(action); });
  handlers.add_prompt({ActionKind::kReshard}, [this](const Action& action) { reshard(action.unit); });
  handlers.add({ActionKind::kPull}, [this, buckets](const Action& action) {
    return pull(buckets[static_cast<size_t>(action.bucket)], action);
  });
}

static constexpr const char* kWaitsFor = "dp parameters";

Started ParameterGather::unshard(const Action& action) {
  const size_t unit = step_.store.unit_of(action.unit);
  const program::PlannedCall* call = step_.calls.only(action);
  LOCKSTEP_CHECK(call != nullptr, "unit ", action.unit, " is whole");
  if (step_.store.compute().transient()) step_.store.compute().hold(unit);
  return waiting_for(
      execute(step_.groups, *call, {.input = step_.store.compute_part(unit), .output = step_.store.compute_unit(unit)}),
      step_.waits, kWaitsFor);
}

void ParameterGather::reshard(int id) {
  step_.store.compute().drop(step_.store.unit_of(id));
}

UnitBuffers* ParameterGather::fetched_memory() {
  if (step_.store.parts().defined()) return &step_.store.parts();
  return step_.store.options().offload_parameters ? &step_.store.compute() : nullptr;
}

// It is joined in the order of the device's stream: kernels and collectives that read the part, and whatever takes its memory
// after evict, are given to it later.
Started ParameterGather::fetch(int id) {
  const size_t unit = step_.store.unit_of(id);
  if (UnitBuffers* memory = fetched_memory()) memory->hold(unit);
  const at::Tensor to = step_.store.compute_part(unit);
  HostStates& host = *step_.store.host();
  if (host.on_disk(unit)) return [copy = host.disk()->fetch_parameters(unit, to)]() mutable { copy.order_after(); };
  Copy copy = copies_->copy(host.fetched_from(unit), to,
                            cat("parameters of ", arch::layer_spec(step_.layout.model, step_.layout.layer_of(id)).name, " to the device"));
  host.read_by(unit, copy);  // no update before it has read: nobody else waits for it on the host
  return [copy = std::move(copy)]() mutable { copy.order_after(); };
}

void ParameterGather::evict(int id) {
  fetched_memory()->drop(step_.store.unit_of(id));
}

Started ParameterGather::pull(const program::Bucket& bucket, const Action& action) {
  const program::PlannedCall* call = step_.calls.only(action);
  if (!call) return {};
  return waiting_for(execute(step_.groups, *call, {.input = step_.store.compute_slice(bucket.begin, bucket.end)}), step_.waits, kWaitsFor);
}

}  // namespace lockstep::engine
