// The parameters of a rank, their gradients and the optimizer's state in flat buffers, laid out by arch::flat_layout,
// every parameter a view. A unit (a parameter group of one layer) is cut into equal parts; of what is sharded this rank keeps
// its part of every unit (Rajbhandari et al. 2020, ZeRO, section 5).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/host_states.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/state.h"
#include "lockstep/engine/unit_buffers.h"
#include "lockstep/nn/layer.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/program/layout.h"

namespace lockstep::engine {

struct StoreOptions {
  program::Layout layout{};  // of its parameters: types, who shares what out with whom, what comes and goes or lies elsewhere
  int rank = 0;              // in the world
  at::Device device = at::kCPU;
  bool training = true;  // false: values alone, neither gradients nor optimizer state
  std::filesystem::path disk_path{};  // a folder that takes what has no room on the host
  std::shared_ptr<MemoryAccount> memory = nullptr;  // nothing is accounted without one
};

// `table` has this rank's pieces (arch::TensorShard). Every buffer starts as zeros; padding stays zero. Views stay valid
// as long as the store lives. "Part" = this rank's shard of a unit, FlatUnit::part(); with one shard the unit.
class ParameterStore : public nn::ParameterSource {
 public:
  ParameterStore(std::vector<arch::ParamSpec> table, const StoreOptions& options);

  // nn::ParameterSource: by parameter name or by fused name.
  nn::Parameter parameter(std::string_view name) override;

  // Draws the initial values of the seed (model::initial_values).
  void initialize(uint64_t seed);

  const std::vector<arch::ParamSpec>& table() const { return table_; }
  const arch::FlatLayout& layout() const { return layout_; }
  const StoreOptions& options() const { return options_; }
  at::ScalarType dtype() const { return scalar_type(options_.layout.precision); }  // of what layers hand on
  // Of a unit's compute copy: bf16 keeps fp32 masters beside it, fp32 is the values themselves.
  at::ScalarType dtype(size_t unit) const { return scalar_type(options_.layout.precision_of(layout_.units.at(unit).group)); }
  at::TensorOptions compute_options() const { return at::TensorOptions().dtype(dtype()).device(options_.device); }
  size_t unit_of(int id) const { return layout_.index_of(id); }  // its index among layout().units

  // Whole units: what layers compute with, and what they add to. Some come and go.
  UnitBuffers& compute() { return compute_; }
  UnitBuffers& gradients() { return grad_; }
  // This rank's parts of those that come and go and have several shards; from the host they come and go as well.
  UnitBuffers& parts() { return parts_; }
  bool part_beside(size_t unit) const { return compute_.transient(unit) && layout_.units.at(unit).shards > 1; }
  HostStates* host() { return host_.get(); }  // null where nothing is offloaded

  // Parts, and what of which parameter they hold.
  const std::vector<arch::ShardSlot>& slots(size_t unit) const { return slots_.at(unit); }
  at::Tensor compute_part(size_t unit) const;  // dtype(unit)
  at::Tensor value_part(size_t unit) const;    // fp32 master where this rank owns it, else the compute copy
  at::Tensor grad_part(size_t unit) const;     // of the step, once reduced
  // The same by kind: kMaster = value_part(), kParameter = the compute copy where it is kept (on the host where parameters are
  // offloaded). Slots only where this rank has them: a copy, with zeros where parameters have none of that name.
  at::Tensor state_part(size_t unit, StateKind kind) const;
  // This rank's of a whole unit's values or gradients.
  at::Tensor part_of(size_t unit, const at::Tensor& whole) const;
  bool owns_optimizer() const { return options_.training && (options_.layout.owns_optimizer(options_.rank) || host_); }
  // This rank's pieces of every parameter's gradient, [numel] each, in the order of the table: with its row.
  struct Piece {
    int param = 0;
    at::Tensor values;
  };
  std::vector<Piece> gradient_pieces() const;

  // Of one row of the table: this rank's piece. Of what comes and goes only while the unit is held.
  at::Tensor grad(int param) const { return view(grad_, {param}); }

  // What an update of one unit changes, of what this rank owns of it: whole matrices as matrices, all else flat; or the pieces of
  // scattered matrices (arch::is_scattered_matrix).
  struct Updated {
    arch::ShardSlot place{};
    optim::Parameter parameter{};
  };
  std::vector<Updated> updated(size_t unit, bool scattered = false) const;

  // After the master weights changed: rounds them into the compute copy (nothing to do where that is the master).
  void refresh_compute();

  // What a checkpoint saves and loads, views into the buffers; of a part one tensor per rectangle. After loading: loaded().
  std::vector<StateTensor> state() const;
  void loaded();

 private:
  void refresh(size_t unit);
  bool has_master(size_t unit) const { return master_.defined() && dtype(unit) != at::kFloat; }
  bool owns_values() const { return master_.defined() || host_; }
  at::Tensor view(const UnitBuffers& buffers, const std::vector<int>& members) const;  // of rows of the table
  at::Tensor slot_buffer(size_t unit, size_t index) const;
  // Slot `index` of the optimizer of what a piece of slots() holds.
  at::Tensor slot_piece(size_t unit, size_t piece, size_t index) const;
  static std::optional<size_t> slot_of(const arch::ParamSpec& spec, StateKind kind);  // nothing: its optimizer has none such
  // Between steps: `change` is given every unit, while its states are in memory.
  void change_units(const std::function<void(size_t unit)>& change);
  // `stay`: which of the units do not come and go; empty: all of them. Parameters have units of both types.
  UnitBuffers buffers(const std::vector<int64_t>& sizes, at::ScalarType dtype, MemoryCategory category,
                      const std::vector<bool>& stay = {}) const;
  void keep_slots();
  void add_parts(StateKind kind, std::vector<StateTensor>& state) const;

  std::vector<arch::ParamSpec> table_;
  StoreOptions options_;
  arch::FlatLayout layout_;
  struct Place {
    size_t unit = 0;
    int64_t offset = 0;  // in the unit
  };
  std::vector<Place> places_;                   // per row of the table
  std::vector<std::vector<arch::ShardSlot>> slots_;  // per unit
  std::map<std::string, std::vector<int>, std::less<>> names_;  // parameter and fused names -> rows
  UnitBuffers compute_, grad_;
  std::unique_ptr<HostStates> host_;
  UnitBuffers parts_, grad_parts_, master_;  // parts; undefined or empty where they are part of a whole unit, or not here
  std::vector<UnitBuffers> slots_kept_;      // by slot
  struct UnitSlots {
    std::vector<arch::SlotBuffer> buffers{};
    std::vector<std::vector<int64_t>> offsets{};   // [piece of slots_][slot]: in the buffer
  };
  std::vector<UnitSlots> unit_slots_;
};

// What an update changes, as it was before it, so that it can be taken back to the bit: master weights and the optimizer's
// slots of what this rank owns (arch::update_bytes), accounted as optimizer state.
class StateCopy {
 public:
  explicit StateCopy(const ParameterStore& store) {
    const MemoryScope scope(store.options().memory, MemoryCategory::kOptimizer);
    for (size_t unit = 0; unit < store.layout().units.size(); ++unit)
      for (const auto& [place, parameter] : store.updated(unit)) {
        keep(parameter.value);
        for (const at::Tensor& slot : parameter.slots) keep(slot);
        if (parameter.copy.defined()) copies_.emplace_back(parameter.copy, parameter.value);
      }
  }

  void take() {
    for (const auto& [state, kept] : states_) kept.copy_(state);
  }
  // As it was at the last take(); bf16 copies are rounded from the master weights.
  void restore() {
    for (const auto& [state, kept] : states_) state.copy_(kept);
    for (const auto& [copy, value] : copies_) copy.copy_(value);
  }

 private:
  void keep(const at::Tensor& state) { states_.emplace_back(state, at::zeros_like(state)); }

  std::vector<std::pair<at::Tensor, at::Tensor>> states_;  // views into the store's buffers, and what they were
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // bf16 copies, and what they are rounded from
};

}  // namespace lockstep::engine
