// One pass, F or I, of a layer whose experts lie elsewhere, in three parts: up to the rows that leave for the experts, the experts
// themselves, and from where their results are back. What stands between is up to whoever runs the parts (program/passes,
// divide_layers); one after the other they are the whole pass, with the same bits.
//   the object is made          part a
//   leave(), arrive()           rows on their way to the experts
//   run_experts()               part b
//   leave(), arrive()           results on their way back
//   finish()                    part c
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

class DividedPass {
 public:
  virtual ~DividedPass() = default;
  // Begins to send what the part before has made. All who share the experts leave in the same order of passes.
  virtual void leave() = 0;
  // Waits for what comes in its place; a part with work to do before it needs that waits itself, behind it.
  virtual void arrive() = 0;
  virtual void run_experts() = 0;
  // The layer's (branch's) output, or the gradient of its input.
  virtual at::Tensor finish() = 0;
};

}  // namespace lockstep::nn
