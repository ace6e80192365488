// One flat tensor per unit: parameters or gradients as layers see them, for good or only while they are held.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/engine/memory_tracker.h"

namespace lockstep::engine {

struct UnitBufferOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::shared_ptr<MemoryAccount> memory = nullptr;  // nothing is accounted without one
  MemoryCategory category = MemoryCategory::kParameters;
  bool transient = false;      // a unit has memory from hold() to drop() alone ...
  std::vector<bool> stays{};   // ... but for these, which have it always; empty: none
  std::vector<bool> fp32{};    // units that are fp32 whatever `dtype` says; empty: none
};

// Views into a unit stay valid when its memory comes and goes: they share its storage. Reading one while the unit is not
// held is an error of LibTorch ("data is not allocated").
class UnitBuffers {
 public:
  UnitBuffers() = default;  // holds nothing
  // `sizes`: elements of each unit; those of one type that are not transient lie side by side.
  UnitBuffers(const std::vector<int64_t>& sizes, UnitBufferOptions options);

  bool defined() const { return !units_.empty(); }
  bool transient(size_t index) const { return options_.transient && (options_.stays.empty() || !options_.stays.at(index)); }
  const at::Tensor& unit(size_t index) const { return units_.at(index); }  // [numel of the unit]
  // Elements [begin, end) of all units together, of units of one type that are not transient.
  at::Tensor slice(int64_t begin, int64_t end) const;
  // All that is not transient.
  void zero() {
    if (whole_.defined()) whole_.zero_();
    if (whole_fp32_.defined()) whole_fp32_.zero_();
  }

  // Transient ones. hold() leaves the values undefined. InternalError where it is held already, or not held.
  void hold(size_t index);
  void hold_at(size_t index, at::DataPtr memory);  // the caller's
  void drop(size_t index);
  bool held(size_t index) const;

 private:
  bool in_fp32(size_t index) const { return !options_.fp32.empty() && options_.fp32.at(index); }
  at::TensorOptions tensor_options(size_t index) const;

  UnitBufferOptions options_;
  at::Tensor whole_, whole_fp32_;  // of those that are not transient, the second of options_.fp32; undefined where there are none
  std::vector<at::Tensor> units_;
  std::vector<int64_t> begins_;  // of each, among all; then the end
};

}  // namespace lockstep::engine
