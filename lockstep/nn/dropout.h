// Dropout (Srivastava et al. 2014) whose mask does not depend on the layout: element i of the step's global batch is
// kept or not by a counter-based draw at i, whichever rank and microbatch holds it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep::nn {

// Off when `probability` is 0: forward and backward hand their argument on.
struct DropoutOptions {
  double probability = 0;
  uint64_t seed = 0;
  std::string site{};  // "blocks.3.attention"
  // x holds part `row_part` of the microbatch's B S rows, as mesh::padded_range cuts them (sequence parallelism).
  int row_parts = 1;
  int row_part = 0;
};

class Dropout {
 public:
  struct Saved {
    at::Tensor mask;  // [B, S, D] bool: kept, since drawing it costs more than reading it; undefined when off, and
                      // between forget and redraw
  };

  explicit Dropout(DropoutOptions options);

  // x [B, S, D], owned by the caller alone: overwritten with x * mask / (1 - p) and returned.
  at::Tensor forward(at::Tensor x, const Microbatch& microbatch, Saved* saved) const;
  at::Tensor backward(const at::Tensor& dy, Saved& saved) const;  // releases the mask

  // Recomputation: the mask of a forward over `like`'s shape on its device, drawn again. Same bits.
  void redraw(const at::Tensor& like, const Microbatch& microbatch, Saved& saved) const;

  // The mask of this microbatch's rows here, on the CPU: stream "dropout/step <step>/<site>", element
  // ((first_sample + b) * S + s) * D + d; kept where the uniform number is >= p.
  at::Tensor mask(const Microbatch& microbatch, at::IntArrayRef shape) const;

 private:
  double scale() const { return 1 / (1 - options_.probability); }
  DropoutOptions options_;
};

}  // namespace lockstep::nn
