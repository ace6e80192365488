// The parameters of two models compared, each a step of a run or a Hugging Face directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/checkpoint/box.h"

namespace lockstep::checkpoint {

struct TensorDifference {
  std::string name;        // ours
  Sizes shape_a, shape_b;  // empty = not there
  std::string dtype_a, dtype_b;
  int64_t elements = 0;    // that differ, of those compared; -1 where the shapes do
  double largest = 0;      // difference; NaN where one side is NaN and the other is not
  double value_a = 0, value_b = 0;  // at the element of the largest difference
};

struct ModelDiff {
  std::string a, b;  // what was compared: "hf:DIR", or a step's folder
  int64_t tensors = 0;   // that both have
  int64_t elements = 0;  // compared
  std::vector<TensorDifference> different{};  // by name; also of another dtype with equal values
  bool equal_values() const;  // the same tensors with the same values, whatever the dtypes
};

// A path is a model directory of Hugging Face (base/source.h) or what find_step() takes. Values are compared as numbers:
// BF16 1.0 equals F32 1.0, 0 equals -0, NaN equals NaN. Read in parts of some MiB; checksums are not looked at
// (`inspect` does that). DataError and CheckpointError as HfModel and StepModel.
ModelDiff diff_models(const std::string& a, const std::string& b);

std::string diff_text(const ModelDiff& diff);
OrderedJson diff_json(const ModelDiff& diff);

}  // namespace lockstep::checkpoint
