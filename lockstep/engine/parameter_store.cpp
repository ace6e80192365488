#include "lockstep/engine/parameter_store.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/check.h"
#include "lockstep/model/model.h"

namespace lockstep::engine {
namespace {

at::Tensor flat_buffer(int64_t numel, at::ScalarType dtype, const StoreOptions& options, MemoryCategory category) {
  const MemoryScope scope(options.memory, category);
  return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(options.device));
}

// Elements of a piece that lie side by side in the global parameter too.
struct Run {
  int64_t local = 0, global = 0, numel = 0;
};

// Of a piece cut along dim 0 one run, along dim 1 one per row.
std::vector<Run> runs_of_piece(const arch::ParamSpec& spec) {
  if (spec.cut != arch::TensorCut::kColumns) {
    const int64_t row = spec.numel() / spec.shape[0];
    return {{.local = 0, .global = spec.local_offset[0] * row, .numel = spec.local_numel()}};
  }
  const int64_t width = spec.local_shape[1];
  std::vector<Run> runs;
  for (int64_t row = 0; row < spec.shape[0]; ++row)
    runs.push_back({.local = row * width, .global = row * spec.shape[1] + spec.local_offset[1], .numel = width});
  return runs;
}

}  // namespace

ParameterStore::ParameterStore(std::vector<arch::ParamSpec> table, const StoreOptions& options)
    : table_(std::move(table)), layout_(arch::flat_layout(table_)), options_(options), offsets_(table_.size(), -1) {
  for (const arch::FlatUnit& unit : layout_.units)
    for (const arch::FlatSlot& slot : unit.slots) offsets_[static_cast<size_t>(slot.param)] = slot.offset;
  for (size_t row = 0; row < table_.size(); ++row) {
    LOCKSTEP_CHECK(offsets_[row] >= 0, "no place in the flat layout for ", table_[row].name);
    names_[table_[row].name].push_back(static_cast<int>(row));
    if (!table_[row].fuse.empty()) names_[table_[row].fuse].push_back(static_cast<int>(row));
  }
  compute_ = flat_buffer(layout_.numel, options_.dtype, options_, MemoryCategory::kParameters);
  if (!options_.training) return;
  grad_ = flat_buffer(layout_.numel, at::kFloat, options_, MemoryCategory::kGradients);
  if (!options_.owns_optimizer) return;
  exp_avg_ = flat_buffer(layout_.numel, at::kFloat, options_, MemoryCategory::kOptimizer);
  exp_avg_sq_ = flat_buffer(layout_.numel, at::kFloat, options_, MemoryCategory::kOptimizer);
  // In fp32 the compute copy is the master.
  master_ = options_.dtype == at::kFloat ? compute_
                                         : flat_buffer(layout_.numel, at::kFloat, options_, MemoryCategory::kOptimizer);
}

at::Tensor ParameterStore::view(const at::Tensor& flat, int param) const {
  if (!flat.defined()) return flat;
  const arch::ParamSpec& spec = table_.at(static_cast<size_t>(param));
  return flat.narrow(0, offsets_[static_cast<size_t>(param)], spec.local_numel()).view(spec.local_shape);
}

// Rows of one length, side by side in memory: one matrix over all members.
nn::Parameter ParameterStore::fused(const std::string& name, const std::vector<int>& members) const {
  std::vector<int64_t> shape = table_[static_cast<size_t>(members[0])].local_shape;
  int64_t numel = 0, end = offsets_[static_cast<size_t>(members[0])];
  shape[0] = 0;
  for (const int member : members) {
    const arch::ParamSpec& spec = table_[static_cast<size_t>(member)];
    LOCKSTEP_CHECK_EQ(offsets_[static_cast<size_t>(member)], end, "rows of ", name, " are not side by side");
    shape[0] += spec.local_shape[0];
    numel += spec.local_numel();
    end += spec.local_numel();
  }
  const int64_t begin = offsets_[static_cast<size_t>(members[0])];
  const auto matrix = [&](const at::Tensor& flat) {
    return flat.defined() ? flat.narrow(0, begin, numel).view(shape) : flat;
  };
  return {matrix(compute_), matrix(grad_)};
}

nn::Parameter ParameterStore::parameter(std::string_view name) {
  const auto found = names_.find(name);
  LOCKSTEP_CHECK(found != names_.end(), "no parameter named ", name);
  if (found->second.size() > 1) return fused(found->first, found->second);
  return {view(compute_, found->second[0]), view(grad_, found->second[0])};
}

void ParameterStore::initialize(uint64_t seed) {
  constexpr int64_t kGrain = 1 << 16;
  for (size_t row = 0; row < table_.size(); ++row) {
    const arch::ParamSpec& spec = table_[row];
    const at::Tensor target = value(static_cast<int>(row));
    const bool in_place = target.is_cpu() && target.scalar_type() == at::kFloat;
    const at::Tensor values = in_place ? target : at::empty(spec.local_shape, at::kFloat);
    float* data = values.data_ptr<float>();
    for (const Run& run : runs_of_piece(spec))
      at::parallel_for(0, run.numel, kGrain, [&](int64_t begin, int64_t end) {
        model::initial_values(spec, seed, run.global + begin,
                              {data + run.local + begin, static_cast<size_t>(end - begin)});
      });
    if (!in_place) target.copy_(values);
  }
  refresh_compute();
}

at::Tensor ParameterStore::compute_slice(int64_t begin, int64_t end) const {
  return compute_.narrow(0, begin, end - begin);
}
at::Tensor ParameterStore::grad_slice(int64_t begin, int64_t end) const { return grad_.narrow(0, begin, end - begin); }

at::Tensor ParameterStore::value(int param) const { return view(master_.defined() ? master_ : compute_, param); }
at::Tensor ParameterStore::grad(int param) const { return view(grad_, param); }

std::vector<optim::AdamWParameter> ParameterStore::adamw_parameters() const {
  LOCKSTEP_CHECK(exp_avg_.defined(), "this rank holds no optimizer state");
  std::vector<optim::AdamWParameter> parameters;
  for (int row = 0; row < static_cast<int>(table_.size()); ++row)
    parameters.push_back({.value = view(master_, row),
                          .grad = view(grad_, row),
                          .exp_avg = view(exp_avg_, row),
                          .exp_avg_sq = view(exp_avg_sq_, row),
                          .copy = master_.is_same(compute_) ? at::Tensor() : view(compute_, row),
                          .decay = table_[static_cast<size_t>(row)].weight_decay});
  return parameters;
}

void ParameterStore::zero_grad() { grad_.zero_(); }

void ParameterStore::refresh_compute() {
  if (master_.defined() && !master_.is_same(compute_)) compute_.copy_(master_);
}

std::vector<StateTensor> ParameterStore::state() const {
  std::vector<StateTensor> state;
  // A parameter server's state lives on the server alone: it is its own only replica.
  const auto add = [&](StateKind kind, const at::Tensor& flat, bool replicated) {
    for (int row = 0; row < static_cast<int>(table_.size()); ++row) {
      const arch::ParamSpec& spec = table_[static_cast<size_t>(row)];
      state.push_back({.name = spec.name,
                       .kind = kind,
                       .global_shape = spec.shape,
                       .offset = spec.local_offset,
                       .local = view(flat, row),
                       .replica = (replicated ? options_.replica * spec.copies : 0) + spec.copy,
                       .num_replicas = (replicated ? options_.num_replicas : 1) * spec.copies});
    }
  };
  add(StateKind::kParameter, compute_, true);
  if (!exp_avg_.defined()) return state;
  const bool replicated = !options_.sole_owner;
  if (!master_.is_same(compute_)) add(StateKind::kMaster, master_, replicated);
  add(StateKind::kExpAvg, exp_avg_, replicated);
  add(StateKind::kExpAvgSq, exp_avg_sq_, replicated);
  return state;
}

}  // namespace lockstep::engine
