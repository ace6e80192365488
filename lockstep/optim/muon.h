// Muon (Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024): the momentum of a matrix, with its singular
// values brought near to 1 by a Newton-Schulz iteration. As torch.optim.Muon of PyTorch 2.13.
#pragma once

#include "lockstep/optim/parameter.h"

namespace lockstep::optim {

using MuonScale = config::MuonScale;

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  double eps = 1e-7;                           // least Frobenius norm that is divided by
  int iterations = 5;
  at::ScalarType iterate_in = at::kBFloat16;   // or kFloat
  MuonScale scale = MuonScale::kOriginal;
};

// One update of all parameters, each a whole matrix [rows, columns]. Slot: momentum_buffer, a running mean of the gradients.
void muon_step(const std::vector<Parameter>& parameters, const MuonOptions& options, const StepPoint& point);

// The same in parts, for pieces of a matrix of rows x columns, of any shape: momentum and value go element by element.
// muon_direction: the momentum takes the gradient; what the iteration is to begin from, in fp32: where nesterov is off, the slot.
at::Tensor muon_direction(const Parameter& piece, const MuonOptions& options, const StepPoint& point);
void muon_apply(const Parameter& piece, const at::Tensor& orthogonal, int64_t rows, int64_t columns, const MuonOptions& options,
                const StepPoint& point);

// The momentum after a step, from [value, momentum]: the value, which has no formula by element, is left as it was.
UpdateFormula muon_formula(const MuonOptions& options, const StepPoint& point);

// The matrix U S V^T as U S' V^T with S' from about 0.7 to 1.2, where `matrix` has full rank; in the type of `options`.
at::Tensor newton_schulz(const at::Tensor& matrix, const MuonOptions& options);

}  // namespace lockstep::optim
