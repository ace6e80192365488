// The parameters of a rank, their gradients and the optimizer's state: one flat buffer per kind, laid out by
// arch::flat_layout, every parameter a view.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/state.h"
#include "lockstep/nn/layer.h"
#include "lockstep/optim/adamw.h"

namespace lockstep::engine {

struct StoreOptions {
  at::ScalarType dtype = at::kFloat;  // of the compute copy; bf16 keeps fp32 master weights beside it
  at::Device device = at::kCPU;
  bool training = true;        // false: values alone, neither gradients nor optimizer state
  bool owns_optimizer = true;  // false: a worker of a parameter server, which holds neither moments nor masters
  bool sole_owner = false;     // true: the server, whose moments and masters have no replica
  int replica = 0;             // for checkpoints: this rank's data-parallel coordinate, among num_replicas
  int num_replicas = 1;
  std::shared_ptr<MemoryAccount> memory = nullptr;  // nothing is accounted without one
};

// `table` has this rank's pieces (arch::TensorShard). Every buffer starts as zeros; padding stays zero. Views stay valid as long as the store lives.
class ParameterStore : public nn::ParameterSource {
 public:
  ParameterStore(std::vector<arch::ParamSpec> table, const StoreOptions& options);

  // nn::ParameterSource: by parameter name or by fused name.
  nn::Parameter parameter(std::string_view name) override;

  // Draws the initial values of the seed (model::initial_values).
  void initialize(uint64_t seed);

  const std::vector<arch::ParamSpec>& table() const { return table_; }
  const arch::FlatLayout& layout() const { return layout_; }
  // Flat slices, elements [begin, end).
  at::Tensor compute_slice(int64_t begin, int64_t end) const;
  at::Tensor grad_slice(int64_t begin, int64_t end) const;

  // One per row of the table, in order: this rank's piece. Value: the fp32 master where this rank owns it, else the
  // compute copy.
  at::Tensor value(int param) const;
  at::Tensor grad(int param) const;
  std::vector<optim::AdamWParameter> adamw_parameters() const;

  void zero_grad();
  // After the master weights changed: rounds them into the compute copy (nothing to do in fp32).
  void refresh_compute();

  // What a checkpoint saves and loads, views into the buffers. After loading: loaded().
  std::vector<StateTensor> state() const;
  void loaded() { refresh_compute(); }

 private:
  at::Tensor view(const at::Tensor& flat, int param) const;
  nn::Parameter fused(const std::string& name, const std::vector<int>& members) const;

  std::vector<arch::ParamSpec> table_;
  arch::FlatLayout layout_;
  StoreOptions options_;
  std::vector<int64_t> offsets_;               // per row of the table
  std::map<std::string, std::vector<int>, std::less<>> names_;  // parameter and fused names -> rows
  at::Tensor compute_, master_, grad_, exp_avg_, exp_avg_sq_;
};

}  // namespace lockstep::engine
