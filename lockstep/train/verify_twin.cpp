#include "lockstep/train/verify_twin.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "lockstep/arch/params.h"
#include "lockstep/comm/shared_memory.h"

namespace lockstep::train {
namespace {

using engine::StateKind;

// Of the ranks that hold the parameter the one that tells the others of it.
int holder_of(const program::Layout& layout, const arch::ParamSpec& spec) {
  const int first = layout.rank_at(0, layout.pipeline.stage_of(spec.layer));
  if (spec.expert < 0) return first;
  const int64_t experts = layout.model.experts.count / layout.ep;  // of a rank
  return layout.mesh.member(first, layout.expert_ranks(), static_cast<int>(spec.expert / experts) * layout.etp);
}

// From there to all ranks, unless every rank holds it. `mine`: undefined where it is not held.
at::Tensor from_holder(const program::Layout& layout, engine::Groups& groups, const arch::ParamSpec& spec, const at::Tensor& mine) {
  const bool everywhere = layout.pipeline.ranks == 1 && (spec.expert < 0 || layout.ep == 1);
  if (everywhere) return mine.defined() ? mine.to(at::kFloat).cpu().contiguous() : mine;
  const int root = holder_of(layout, spec);
  const at::Tensor whole = groups.rank() == root ? mine.to(at::kFloat).cpu().contiguous() : at::empty(spec.shape, at::kFloat);
  groups.world().broadcast(whole, root, {.id = program::call_of_parameter(spec.name)}).wait();
  return whole;
}

bool has_slot(const arch::ParamSpec& spec, const arch::StateSlot& slot) {
  const std::vector<arch::StateSlot>& own = spec.update.optimizer->slots;
  return std::ranges::find(own, slot.name, &arch::StateSlot::name) != own.end();
}

// Gradient, value, then `slots`; undefined where the parameter or this rank has none.
std::vector<at::Tensor> read_row(engine::Executor& executor, int row, const std::vector<arch::StateSlot>& slots) {
  const arch::ParamSpec& spec = executor.store().table()[static_cast<size_t>(row)];
  std::vector<at::Tensor> tensors = {executor.whole_gradient(row), executor.whole_value(row)};
  for (const arch::StateSlot& slot : slots)
    tensors.push_back(executor.store().owns_optimizer() && has_slot(spec, slot) ? executor.whole_state(row, StateKind{slot.name})
                                                                                 : at::Tensor());
  return tensors;
}

// Those of a layer, by name. Ranks of one stage read their rows side by side: the experts of each are other ones, and the calls
// over tp, etp and shards are made together.
std::map<std::string, std::vector<at::Tensor>> read_layer(engine::Executor& executor, int layer, const std::vector<arch::StateSlot>& slots) {
  std::map<std::string, std::vector<at::Tensor>> rows;
  const std::vector<arch::ParamSpec>& table = executor.store().table();
  for (size_t row = 0; row < table.size(); ++row)
    if (table[row].layer == layer) rows[table[row].name] = read_row(executor, static_cast<int>(row), slots);
  return rows;
}

// The piece of a whole parameter that `tensor` holds.
at::Tensor piece_of(at::Tensor whole, const engine::StateTensor& tensor) {
  for (size_t dim = 0; dim < tensor.offset.size(); ++dim)
    whole = whole.narrow(static_cast<int64_t>(dim), tensor.offset[dim], tensor.local.size(static_cast<int64_t>(dim)));
  return whole;
}

}  // namespace

WholeState collect(engine::Executor& executor, engine::Groups& groups, const CollectOptions& options) {
  const program::Layout& layout = executor.layout();
  const std::vector<arch::ParamSpec> all = program::reference_layout(layout).param_table(0);
  const std::vector<arch::StateSlot> slots = options.slots ? arch::slots_of(all) : std::vector<arch::StateSlot>();
  WholeState whole;
  whole.slots.resize(slots.size());
  std::map<std::string, std::vector<at::Tensor>> mine;
  int layer = -1;
  for (const arch::ParamSpec& spec : all) {
    if (spec.layer != layer) {
      layer = spec.layer;
      mine = read_layer(executor, layer, slots);
    }
    const auto here = mine.find(spec.name);
    const auto add = [&](std::vector<at::Tensor>& to, size_t index) {
      at::Tensor tensor = from_holder(layout, groups, spec, here == mine.end() ? at::Tensor() : here->second[index]);
      if (options.keep) to.push_back(std::move(tensor));
    };
    add(whole.gradients, 0);
    add(whole.values, 1);
    for (size_t i = 0; i < slots.size(); ++i)
      if (has_slot(spec, slots[i]))
        add(whole.slots[i], 2 + i);
      else
        whole.slots[i].emplace_back();
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
