// Programs, layouts, memory and traffic as text for people.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// "embed", "b0" .. "b11", "head": the layers of a model with `num_layers` layers in all.
std::string layer_label(int layer, int num_layers);

// "F b3 m1", "REDUCE_GRAD head", "PUSH b5..b3" (the layers of the bucket), "STEP".
std::string action_text(const Action& action, const std::vector<Bucket>& buckets, int num_layers);

struct ProgramTextOptions {
  int width = 0;   // wrap lines at " | " to this many columns; 0 = one line
  int indent = 0;  // of the lines after the first
  bool compact =
      false;  // neighbouring layers as one ("F embed..head m0"), repeated microbatches as one ("m0..m6 (...)")
};
// "F embed m0 | F b0 m0 | ... | NORM | STEP" of one rank.
std::string program_text(const Program& program, const Layout& layout, int rank,
                         const ProgramTextOptions& options = {});

// The programs of all ranks over time, one lane for computing and one for communication each. Not to scale: a layer's
// forward, its backward and the transfer of a bucket are one slot wide each. Communication starts where it stands in
// the list, one bucket at a time, and NORM waits for it. A transfer that all ranks take part in starts when the last is
// there.
std::string draw_program(const Program& program, const Layout& layout);

// Rank, coordinates, layers, sequences of the batch, bytes by category.
std::string layout_table(const Program& program, const Layout& layout);
// Predicted memory of one rank by category, with what it is made of.
std::string memory_table(const Program& program, const Layout& layout, int rank);

}  // namespace lockstep::program
