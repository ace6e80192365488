// What lies outside the device of a unit's part: one field behind the other in a block of memory, each in a region of the disk.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/arch/slot_layout.h"

namespace lockstep::engine {

at::ScalarType scalar_type(config::Precision precision);

// Fields in order: the fp32 values, the slots (arch::slot_buffers) and, with a compute copy, a bf16 copy of the values. `numel`:
// elements of the part, hence of the values; a slot may have fewer.
class StateFields {
 public:
  StateFields(int64_t numel, const std::vector<arch::SlotBuffer>& slots, bool compute_copy);

  static constexpr size_t kValues = 0;
  static constexpr size_t slot(size_t index) { return 1 + index; }
  // What is copied to the device: the bf16 copy where there is one, else the values.
  size_t compute() const { return has_copy() ? fields_.size() - 1 : kValues; }
  bool has_copy() const { return fields_.size() > updated_; }

  size_t size() const { return fields_.size(); }
  size_t updated() const { return updated_; }  // the first of them, which an update reads: all but the copy
  const std::string& name(size_t field) const { return fields_.at(field).name; }  // "values"
  at::ScalarType dtype(size_t field) const { return fields_.at(field).dtype; }
  int64_t numel(size_t field) const { return fields_.at(field).numel; }
  int64_t bytes(size_t field) const;
  int64_t bytes_before(size_t field) const;  // where it begins; with size() of the whole block

 private:
  struct Field {
    std::string name;
    at::ScalarType dtype = at::kFloat;
    int64_t numel = 0;
  };
  std::vector<Field> fields_;
  size_t updated_ = 0;
};

}  // namespace lockstep::engine
