#include "lockstep/train/verify_twin.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "lockstep/arch/params.h"
#include "lockstep/comm/shared_memory.h"

namespace lockstep::train {
namespace {

using engine::StateKind;

// From the stage that holds the parameter to all ranks, if there are several stages. `mine`: undefined where it is not held.
at::Tensor from_stage(const engine::Executor& executor, engine::Groups& groups, const arch::ParamSpec& spec, const at::Tensor& mine) {
  const program::Layout& layout = executor.layout();
  if (layout.pipeline.ranks == 1) return mine.defined() ? mine.to(at::kFloat).cpu().contiguous() : mine;
  const int root = layout.rank_at(0, layout.pipeline.stage_of(spec.layer));
  const at::Tensor whole = groups.rank() == root ? mine.to(at::kFloat).cpu().contiguous() : at::empty(spec.shape, at::kFloat);
  groups.world().broadcast(whole, root, {.id = program::call_of_parameter(spec.name)}).wait();
  return whole;
}

// The piece of a whole parameter that `tensor` holds.
at::Tensor piece_of(at::Tensor whole, const engine::StateTensor& tensor) {
  for (size_t dim = 0; dim < tensor.offset.size(); ++dim)
    whole = whole.narrow(static_cast<int64_t>(dim), tensor.offset[dim], tensor.local.size(static_cast<int64_t>(dim)));
  return whole;
}

}  // namespace

WholeState collect(engine::Executor& executor, engine::Groups& groups, const CollectOptions& options) {
  WholeState whole;
  const std::vector<arch::ParamSpec>& table = executor.store().table();
  const bool owns = executor.store().owns_optimizer();
  const std::vector<arch::ParamSpec> all = program::reference_layout(executor.layout()).param_table(0);
  const std::vector<arch::StateSlot> slots = arch::slots_of(all);
  if (options.slots) whole.slots.resize(slots.size());
  for (const arch::ParamSpec& spec : all) {
    const auto here = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == spec.name; });
    const int row = here == table.end() ? -1 : static_cast<int>(here - table.begin());
    const auto add = [&](std::vector<at::Tensor>& to, bool held, auto read) {
      at::Tensor tensor = from_stage(executor, groups, spec, row >= 0 && held ? read() : at::Tensor());
      if (options.keep) to.push_back(std::move(tensor));
    };
    add(whole.gradients, true, [&] { return executor.whole_gradient(row); });
    add(whole.values, true, [&] { return executor.whole_value(row); });
    const std::vector<arch::StateSlot>& own = spec.update.optimizer->slots;
    for (size_t i = 0; i < whole.slots.size(); ++i)
      if (std::ranges::find(own, slots[i].name, &arch::StateSlot::name) == own.end())
        whole.slots[i].emplace_back();
      else
        add(whole.slots[i], owns, [&] { return executor.whole_state(row, StateKind{slots[i].name}); });
  }
  return whole;
}

Twin::Twin(engine::ExecutorOptions options)
    : world_(std::make_unique<comm::SharedMemoryWorld>(
          std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(1))), 0, 1)),
      groups_(std::make_unique<engine::Groups>(*world_, options.layout)),
      executor_(std::make_unique<engine::Executor>(std::move(options), *groups_)) {}

void Twin::adopt(const WholeState& state) {
  std::map<std::string, size_t> rows;
  for (const arch::ParamSpec& spec : executor_->store().table()) rows.emplace(spec.name, rows.size());
  const std::vector<arch::StateSlot> slots = arch::slots_of(executor_->store().table());
  for (engine::StateTensor& tensor : executor_->store().state()) {
    const bool value = tensor.kind == StateKind::kParameter || tensor.kind == StateKind::kMaster;
    const auto slot = std::ranges::find(slots, tensor.kind.key, &arch::StateSlot::name) - slots.begin();
    const std::vector<at::Tensor>& source = value ? state.values : state.slots.at(static_cast<size_t>(slot));
    tensor.local.copy_(piece_of(source.at(rows.at(tensor.name)), tensor));
  }
  executor_->store().loaded();
}

}  // namespace lockstep::train
