// Optimizers as data: what each keeps of a parameter from step to step, and what it needs for a step. Memory, moves, checkpoints
// and digests are folds over the slots. The step functions are in optim/optimizer.h, under the same id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/config/run_config.h"

namespace lockstep::arch {

// A tensor with the shape of the parameter; begins as zeros.
struct StateSlot {
  std::string_view name{};  // "exp_avg": its key in a checkpoint is "optim.exp_avg.<parameter>"
  std::string_view text{};  // in messages: "first moment"
  config::Precision dtype = config::Precision::kFp32;
};

struct OptimizerSpec {
  std::string_view id;
  std::string_view text{};         // "AdamW"
  std::string_view slots_text;     // all slots in words: "two moments"
  std::vector<StateSlot> slots{};  // in the order of buffers, disk records and checkpoints
  bool whole_matrix = false;       // a step needs whole matrices; otherwise any range of elements will do
  bool fixed = false;              // of the parameters that are made with it: nobody chooses it, no rule changes it

  int64_t slot_bytes() const;  // of one element, of all slots
};

// Of the registry, which lives as long as the program. InternalError where the id is not there.
const OptimizerSpec& optimizer_spec(std::string_view id = "adamw");
const std::vector<OptimizerSpec>& optimizer_specs();

// How one parameter is updated.
struct UpdateRule {
  const OptimizerSpec* optimizer = &optimizer_spec();
  double lr_factor = 1;                  // of the rate that its optimizer has
  std::optional<double> weight_decay{};  // unset: that of its optimizer
  bool operator==(const UpdateRule&) const = default;
};

// Of one iteration over a matrix, on its shorter side m: X X^T, the square of that, and its product with X.
double iteration_flops(int64_t rows, int64_t columns);

}  // namespace lockstep::arch
