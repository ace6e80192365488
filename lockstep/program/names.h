// What layers and actions are called wherever they are printed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// "embed", "b0" .. "b11", "head": the layers of a model with `num_layers` layers in all; and units by id: "b3 rows" is the second
// parameter group of "b3".
std::string layer_label(int layer, int num_layers);
// "b0", "b0..b3".
std::string label_range(int first, int last, int num_layers);

// "F b3 m1", "REDUCE_GRAD head", "PUSH b5..b3" (the layers of the bucket), "REDUCE_GRAD b3 m1", "UNSHARD b3", "STEP";
// "FETCH b3" moves its parameters, "FETCH state of b3" those of the optimizer, "FETCH input of b3 m1" an activation.
std::string action_text(const Action& action, const std::vector<Bucket>& buckets, int num_layers);

}  // namespace lockstep::program
