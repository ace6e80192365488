// state_space_kernels.h of builds without kernels of our own.
#include "lockstep/nn/state_space_kernels.h"

#include "lockstep/base/check.h"

namespace lockstep::nn::cuda {
namespace {

[[noreturn]] void refuse() {
  LOCKSTEP_CHECK(false, "a kernel of a build that has none");
  __builtin_unreachable();
}

}  // namespace

bool scans(const Scan&) { return false; }
bool convolves(const Convolution&) { return false; }

at::Tensor scan_forward(const Scan&, ScanStates*) { refuse(); }
void add_first_states(const Scan&, const at::Tensor&, ScanStates&, const at::Tensor&) { refuse(); }
at::Tensor scan_backward_first(const Scan&, const at::Tensor&) { refuse(); }
void scan_backward(const Scan&, const ScanStates&, const at::Tensor&, const at::Tensor&, const ScanGradients&) { refuse(); }
at::Tensor convolve(const Convolution&) { refuse(); }
void convolve_backward_input(const Convolution&, const at::Tensor&, const ConvolutionGradients&) { refuse(); }
void convolve_backward_weight(const Convolution&, const at::Tensor&, const at::Tensor&, const at::Tensor&) { refuse(); }

}  // namespace lockstep::nn::cuda
