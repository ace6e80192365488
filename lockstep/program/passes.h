// The passes that make a step program, in their order. Each is a pure function of what the one before it made, in a
// file of its own: pass_<name>.cpp. A further parallelism between layers is one more pass.
#pragma once

#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// F and B of whole stages. One stage: for each microbatch F, then B.
Program schedule(const Layout& layout);

// A stage becomes its layers: F of layers 0 .. L + 1, B of L + 1 .. 0.
Program expand_layers(Program program, const Layout& layout);

// Fills program.buckets and, where the data axes have more than one rank, adds REDUCE_GRAD (ring) or PUSH (parameter
// server) of every bucket: with overlap directly after the last backward that writes into it, else all after the last
// backward. While gradients accumulate over microbatches nothing is communicated.
Program reduce_gradients(Program program, const Layout& layout);

// LOSS, REDUCE_PARTIAL where the rank has such gradients, NORM and STEP at the end. Parameter server: REDUCE_PARTIAL and
// STEP on the server alone, then PULL of every bucket.
Program update(Program program, const Layout& layout);
bool has_partial(const std::vector<arch::ParamSpec>& table);

// Units of consecutive layers in backward order, a bucket closed once it holds `bucket_bytes` of fp32 gradients or
// more; in the order in which backward completes them. 0 = every unit by itself.
std::vector<Bucket> gradient_buckets(const Layout& layout);

// The layers whose backward adds to the bucket's gradients, ascending: its own, and further users of tied parameters.
std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table);

}  // namespace lockstep::program
