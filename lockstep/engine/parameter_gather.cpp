#include "lockstep/engine/parameter_gather.h"

#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;

static constexpr const char* kWaitsFor = "dp parameters";

ParameterGather::ParameterGather(const StepView& step, CopyQueue* copies) : step_(step), copies_(copies) {}

void ParameterGather::add_handlers(Handlers& handlers, std::span<const program::Bucket> buckets) {
  using program::Moved;
  const auto unit_of = [this](const Action& action) { return step_.store.unit_of(action.unit); };
  handlers.add({ActionKind::kUnshard}, [this](const Action& action) { return unshard(action); });
  handlers.add_prompt({ActionKind::kReshard}, [this, unit_of](const Action& action) { step_.store.compute().drop(unit_of(action)); });
  handlers.add({ActionKind::kPull}, [this, buckets](const Action& action) {
    const program::Bucket& bucket = buckets[static_cast<size_t>(action.bucket)];
    const program::PlannedCall* call = step_.calls.only(action);
    return call ? step_.start(*call, {.input = step_.store.compute().slice(bucket.begin, bucket.end)}, kWaitsFor) : Started();
  });
  handlers.add({{ActionKind::kFetch, Moved::kParameters}}, [this](const Action& action) { return fetch(action.unit); });
  // It did not change.
  handlers.add_prompt({{ActionKind::kEvict, Moved::kParameters}},
                      [this, unit_of](const Action& action) { fetched_memory(unit_of(action))->drop(unit_of(action)); });
}

Started ParameterGather::unshard(const Action& action) {
  const size_t unit = step_.store.unit_of(action.unit);
  if (step_.store.compute().transient(unit)) step_.store.compute().hold(unit);
  return step_.start(step_.planned(action), {.input = step_.store.compute_part(unit), .output = step_.store.compute().unit(unit)}, kWaitsFor);
}

UnitBuffers* ParameterGather::fetched_memory(size_t unit) {
  if (!step_.layout.offload.parameters) return nullptr;
  return step_.store.part_beside(unit) ? &step_.store.parts() : &step_.store.compute();
}

// It is joined in the order of the device's stream: kernels and collectives that read the part, and whatever takes its memory
// after evict, are given to it later.
Started ParameterGather::fetch(int id) {
  const size_t unit = step_.store.unit_of(id);
  if (UnitBuffers* memory = fetched_memory(unit)) memory->hold(unit);
  const at::Tensor to = step_.store.compute_part(unit);
  HostStates& host = *step_.store.host();
  if (host.on_disk(unit)) return [copy = host.disk()->fetch_parameters(unit, to)]() mutable { copy.order_after(); };
  Copy copy = copies_->copy(host.fetched_from(unit), to,
                            cat("parameters of ", arch::layer_spec(step_.layout.model, step_.layout.layer_of(id)).name, " to the device"));
  host.read_by(unit, copy);  // no update before it has read: nobody else waits for it on the host
  return [copy = std::move(copy)]() mutable { copy.order_after(); };
}

}  // namespace lockstep::engine
