// The parameters of a rank, their gradients and the optimizer's state in flat buffers, laid out by arch::flat_layout,
// every parameter a view. A unit (a parameter group of one layer) is cut into equal parts; of what is sharded this rank keeps
// its part of every unit (Rajbhandari et al. 2020, ZeRO, section 5).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/host_states.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/state.h"
#include "lockstep/engine/unit_buffers.h"
#include "lockstep/nn/layer.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::engine {

// What a rank has of the units of a parameter group (program::Domain).
struct GroupShare {
  int shards = 1;              // parts of a unit; optimizer state is this rank's part
  int shard = 0;               // which of them
  int replica = 0;             // for checkpoints: which of the `num_replicas` ranks that sum its gradients, with the same cut over tp
  int num_replicas = 1;
  int shard_replica = 0;       // the same of parts: among those that hold this one
  int num_shard_replicas = 1;
};

struct StoreOptions {
  at::ScalarType dtype = at::kFloat;  // of the compute copy; bf16 keeps fp32 master weights beside it
  at::Device device = at::kCPU;
  bool training = true;        // false: values alone, neither gradients nor optimizer state
  bool owns_optimizer = true;  // false: a worker of a parameter server, which holds neither slots nor masters
  bool sole_owner = false;     // true: the server, whose slots and masters have no replica
  std::array<GroupShare, arch::kParameterGroups.size()> shares{};
  bool sharded_parameters = false;   // a whole unit has memory only while it is held
  bool transient_gradients = false;  // likewise its gradient; this rank's part is kept
  bool offload_optimizer = false;    // slots, fp32 values and gradient sums on the host; gradients are transient then
  bool offload_parameters = false;   // the compute copy too: a unit has memory on the device only while it is held
  std::vector<int> disk_units{};     // ids of the units whose optimizer state has no room on the host
  std::filesystem::path disk_path{};  // a folder that takes it
  int rank = 0;                      // in the world; names the file there
  int tied_copies = 1;         // pipeline ranks that hold the unit of layer 0, and which of them this is
  int tied_copy = 0;
  std::shared_ptr<MemoryAccount> memory = nullptr;  // nothing is accounted without one
  const GroupShare& share(arch::ParameterGroup group) const { return shares[static_cast<size_t>(group)]; }
  int shards() const { return share(arch::ParameterGroup::kDense).shards; }  // several for one group where for all
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
  size_t unit_of(int id) const { return layout_.index_of(id); }  // its index among layout().units

  // Whole units: what layers compute with, and what they add to. drop_* and hold_* where they come and go.
  const at::Tensor& compute_unit(size_t unit) const { return compute_.unit(unit); }
  const at::Tensor& grad_unit(size_t unit) const { return grad_.unit(unit); }
  UnitBuffers& compute() { return compute_; }
  UnitBuffers& gradients() { return grad_; }
  // With offload_parameters and several shards: this rank's parts on the device, which come and go as well.
  UnitBuffers& parts() { return parts_; }
  HostStates* host() { return host_.get(); }  // null where nothing is offloaded
  // Flat slices, elements [begin, end), of buffers that are whole.
  at::Tensor compute_slice(int64_t begin, int64_t end) const { return compute_.slice(begin, end); }
  at::Tensor grad_slice(int64_t begin, int64_t end) const { return grad_.slice(begin, end); }

  // Parts, and what of which parameter they hold.
  const std::vector<arch::ShardSlot>& slots(size_t unit) const { return slots_.at(unit); }
  at::Tensor compute_part(size_t unit) const;  // compute dtype
  at::Tensor value_part(size_t unit) const;    // fp32 master where this rank owns it, else the compute copy
  at::Tensor grad_part(size_t unit) const;     // of the step, once reduced
  // The same by kind: kMaster = value_part(), kParameter = the compute copy where it is kept (on the host where parameters are
  // offloaded). Slots only where this rank has them: a copy with zeros where parameters have none of that name, but the memory
  // itself where all have.
  at::Tensor state_part(size_t unit, StateKind kind) const;
  // This rank's of a whole unit's values or gradients.
  at::Tensor part_of(size_t unit, const at::Tensor& whole) const;
  bool owns_optimizer() const { return options_.training && (options_.owns_optimizer || host_); }
  // This rank's pieces of every parameter's gradient, [numel] each, in the order of the table: with its row.
  struct Piece {
    int param = 0;
    at::Tensor values;
  };
  std::vector<Piece> gradient_pieces() const;

  // One per row of the table, in order: this rank's piece. Value: the fp32 master where this rank owns it, else the
  // compute copy. Of what is sharded: only while the unit is held, in the compute dtype.
  at::Tensor value(int param) const;
  at::Tensor grad(int param) const;

  // What an update of one unit changes, of what this rank owns of it: whole matrices as matrices, all else flat. Pieces of
  // scattered matrices (arch::is_scattered_matrix) are apart.
  std::vector<optim::Parameter> updated_parameters(size_t unit) const;
  struct MatrixPiece {
    arch::ShardSlot place{};
    optim::Parameter parameter{};
  };
  std::vector<MatrixPiece> matrix_pieces(size_t unit) const;

  void zero_grad();
  // After the master weights changed: rounds them into the compute copy (nothing to do where that is the master).
  void refresh_compute();

  // What a checkpoint saves and loads, views into the buffers; of a part one tensor per rectangle. After loading: loaded().
  std::vector<StateTensor> state() const;
  void loaded();

 private:
  bool in_place() const { return options_.dtype == at::kFloat && !host_; }  // the compute copy is the master
  bool owns_values() const { return master_.defined() || host_; }
  at::Tensor view(const UnitBuffers& buffers, int param) const;
  at::Tensor part(const at::Tensor& kept, size_t unit) const;
  at::Tensor slot_buffer(size_t unit, size_t index) const;
  // Slot `index` of the optimizer of what a piece of slots() holds.
  at::Tensor slot_piece(size_t unit, size_t piece, size_t index) const;
  static std::optional<size_t> slot_of(const arch::ParamSpec& spec, StateKind kind);  // nothing: its optimizer has none such
  struct UnitState {
    at::Tensor value{}, grad{}, copy{};
  };
  UnitState unit_state(size_t unit) const;
  optim::Parameter updated(size_t unit, size_t piece, const UnitState& state) const;
  std::vector<at::Tensor> kept_slots();
  nn::Parameter fused(const std::string& name, const std::vector<int>& members) const;
  void add_whole(std::vector<StateTensor>& state) const;
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
  UnitBuffers compute_, grad_, parts_;
  std::unique_ptr<HostStates> host_;
  // Parts of all units side by side; undefined where they are part of a whole buffer, or not here.
  at::Tensor compute_kept_, grad_kept_, master_;
  std::vector<at::Tensor> slots_kept_;  // by slot
  struct UnitSlots {
    std::vector<arch::SlotBuffer> buffers{};
    std::vector<int64_t> begin{};                  // of each in slots_kept_
    std::vector<std::vector<int64_t>> offsets{};   // [piece of slots_][slot]: in the buffer
  };
  std::vector<UnitSlots> unit_slots_;
};

}  // namespace lockstep::engine
