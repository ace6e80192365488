// Dropout (Srivastava et al. 2014) whose mask does not depend on the layout: element i of the step's global batch is
// kept or not by a counter-based draw at i, whoever holds it in whichever microbatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/layer.h"

namespace lockstep::nn {

// Off when `probability` is 0: forward and backward hand their argument on.
struct DropoutOptions {
  double probability = 0;
  uint64_t seed = 0;
  std::string site{};  // "blocks.3.attention"
  std::function<mesh::Range(int64_t rows)> rows_here{};  // which of the microbatch's B S rows x holds; unset: all
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
  // ((first_sample + b) * S + s) * D + d; kept where the uniform number is >= p. S is the length of whole sequences and s the place in
  // one: of a microbatch with places theirs, whichever tokens are here.
  at::Tensor mask(const Microbatch& microbatch, at::IntArrayRef shape) const;

 private:
  double scale() const { return 1 / (1 - options_.probability); }
  DropoutOptions options_;
};

}  // namespace lockstep::nn
