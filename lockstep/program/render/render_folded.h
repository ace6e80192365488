// The compact form of programs whose parameters, gradients or activations come and go.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// Neighbouring rounds of actions that do the same to the next layers as the first and the last of them,
// "(F b0, RESHARD b0, UNSHARD b2) .. (F b9, RESHARD b9, UNSHARD b11) m0", one action alone as "F embed..head m0"; and
// microbatches that do the same once: "m = 0..6 (...)", where "m-1" is the one before.
std::vector<std::string> folded_texts(const std::vector<Action>& actions, const std::vector<Bucket>& buckets,
                                      int num_layers);

}  // namespace lockstep::program
