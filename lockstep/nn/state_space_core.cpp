#include "lockstep/nn/state_space_core.h"

#include "lockstep/base/check.h"
#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_device.h"
#include "lockstep/nn/state_space_kernels.h"

namespace lockstep::nn {
namespace {

bool is_dtype(const at::Tensor& x) { return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16; }

// [B, T] on the host, or undefined.
void check_begins(const at::Tensor& begins, const at::Tensor& x) {
  if (!begins.defined()) return;
  LOCKSTEP_CHECK(begins.is_cpu() && begins.scalar_type() == at::kByte && begins.is_contiguous(), "begins of documents: ", begins.dtype());
  LOCKSTEP_CHECK(begins.sizes() == x.sizes().slice(0, 2), "begins of documents ", begins.sizes(), " for ", x.sizes());
}

void check_pieces(int64_t pieces, const at::Tensor& x) {
  LOCKSTEP_CHECK(pieces >= 1 && x.size(1) > 0 && x.size(1) % pieces == 0, x.size(1), " tokens in ", pieces, " pieces");
}

void check(const Scan& s) {
  LOCKSTEP_CHECK(s.x.dim() == 4 && is_dtype(s.x) && s.x.stride(3) == 1, "x ", s.x.sizes(), " ", s.x.dtype());
  const int64_t batch = s.x.size(0), tokens = s.x.size(1), heads = s.x.size(2);
  for (const at::Tensor* part : {&s.b, &s.c}) {
    LOCKSTEP_CHECK(part->dim() == 4 && part->size(0) == batch && part->size(1) == tokens && part->sizes() == s.b.sizes(), "B or C ", part->sizes(),
                   " for x ", s.x.sizes());
    LOCKSTEP_CHECK(part->scalar_type() == s.x.scalar_type() && part->stride(3) == 1, "B or C ", part->dtype());
  }
  LOCKSTEP_CHECK(heads % s.b.size(2) == 0, heads, " heads in ", s.b.size(2), " groups");
  LOCKSTEP_CHECK(s.delta.sizes() == s.x.sizes().slice(0, 3) && s.delta.scalar_type() == at::kFloat && s.delta.is_contiguous(), "delta ",
                 s.delta.sizes(), " for x ", s.x.sizes());
  for (const at::Tensor* of_heads : {&s.a, &s.d})
    LOCKSTEP_CHECK(of_heads->numel() == heads && of_heads->scalar_type() == at::kFloat && of_heads->is_contiguous(), "a or d ", of_heads->sizes());
  LOCKSTEP_CHECK(s.chunk >= 1, "chunk of ", s.chunk, " tokens");
  check_pieces(s.pieces, s.x);
  check_begins(s.begins, s.x);
}

// [B, pieces, H, P, N]
void check_states(const at::Tensor& states, const Scan& s) {
  const int64_t shape[] = {s.x.size(0), s.pieces, s.x.size(2), s.x.size(3), s.b.size(3)};
  LOCKSTEP_CHECK(states.sizes() == at::IntArrayRef(shape) && states.scalar_type() == at::kFloat && states.is_contiguous(), "states ",
                 states.sizes(), " instead of ", at::IntArrayRef(shape));
}

void check_dy(const at::Tensor& dy, const at::Tensor& x) {
  LOCKSTEP_CHECK(dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type() && dy.stride(-1) == 1, "dy ", dy.sizes(), " for x ", x.sizes());
}

void check(const Convolution& of) {
  LOCKSTEP_CHECK(of.x.dim() == 3 && is_dtype(of.x) && of.x.stride(2) == 1, "x ", of.x.sizes(), " ", of.x.dtype());
  LOCKSTEP_CHECK(of.weight.dim() == 2 && of.weight.size(0) == of.x.size(2) && of.weight.size(1) >= 1, "weight ", of.weight.sizes(), " for x ",
                 of.x.sizes());
  LOCKSTEP_CHECK(!of.bias.defined() || of.bias.numel() == of.x.size(2), "bias of ", of.bias.numel(), " for x ", of.x.sizes());
  check_pieces(of.pieces, of.x);
  check_begins(of.begins, of.x);
  if (!of.before.defined()) return;
  const int64_t shape[] = {of.x.size(0), of.pieces, of.weight.size(1) - 1, of.x.size(2)};
  LOCKSTEP_CHECK(of.before.sizes() == at::IntArrayRef(shape) && of.before.scalar_type() == of.x.scalar_type() && of.before.is_contiguous(),
                 "columns before the pieces ", of.before.sizes(), " instead of ", at::IntArrayRef(shape));
}

}  // namespace

at::Tensor scan_forward(const Scan& scan, ScanStates* states) {
  check(scan);
  if (scan.x.is_cpu()) return scan_forward_cpu(scan, states);
  return cuda::scans(scan) ? cuda::scan_forward(scan, states) : scan_forward_device(scan, states);
}

void add_first_states(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y) {
  if (!first.defined()) return;
  check(scan);
  check_states(first, scan);
  check_dy(y, scan.x);
  if (scan.x.is_cpu())
    add_first_states_cpu(scan, first, states, y);
  else if (cuda::scans(scan))
    cuda::add_first_states(scan, first, states, y);
  else
    add_first_states_device(scan, first, states, y);
}

at::Tensor scan_backward_first(const Scan& scan, const at::Tensor& dy) {
  check(scan);
  check_dy(dy, scan.x);
  if (scan.x.is_cpu()) return scan_backward_first_cpu(scan, dy);
  return cuda::scans(scan) ? cuda::scan_backward_first(scan, dy) : scan_backward_first_device(scan, dy);
}

void scan_backward(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients) {
  check(scan);
  check_dy(dy, scan.x);
  if (dlast.defined()) check_states(dlast, scan);
  check_dy(gradients.dx, scan.x);
  check_dy(gradients.db, scan.b);
  check_dy(gradients.dc, scan.b);
  LOCKSTEP_CHECK(gradients.ddelta.sizes() == scan.delta.sizes() && gradients.ddelta.is_contiguous(), "ddelta ", gradients.ddelta.sizes());
  LOCKSTEP_CHECK(gradients.da.is_contiguous() && gradients.dd.is_contiguous(), "da or dd ", gradients.da.sizes());
  if (scan.x.is_cpu())
    scan_backward_cpu(scan, states, dy, dlast, gradients);
  else if (cuda::scans(scan))
    cuda::scan_backward(scan, states, dy, dlast, gradients);
  else
    scan_backward_device(scan, states, dy, dlast, gradients);
}

at::Tensor scan_step(const Scan& scan, const at::Tensor& state) {
  check(scan);
  LOCKSTEP_CHECK_EQ(scan.x.size(1), 1);
  LOCKSTEP_CHECK(state.is_contiguous() && state.scalar_type() == at::kFloat, "state ", state.dtype());
  LOCKSTEP_CHECK_EQ(state.numel(), scan.x.numel() * scan.b.size(3));
  return scan.x.is_cpu() ? scan_step_cpu(scan, state) : scan_step_device(scan, state);
}

at::Tensor convolve(const Convolution& of) {
  check(of);
  if (of.x.is_cpu()) return convolve_cpu(of);
  return cuda::convolves(of) ? cuda::convolve(of) : convolve_device(of);
}

void convolve_backward_input(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients) {
  check(of);
  check_dy(dy, of.x);
  check_dy(gradients.dx, of.x);
  LOCKSTEP_CHECK(!gradients.dbefore.defined() || gradients.dbefore.is_contiguous());
  if (of.x.is_cpu())
    convolve_backward_input_cpu(of, dy, gradients);
  else if (cuda::convolves(of))
    cuda::convolve_backward_input(of, dy, gradients);
  else
    convolve_backward_input_device(of, dy, gradients);
}

void convolve_backward_weight(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias) {
  check(of);
  check_dy(dy, of.x);
  LOCKSTEP_CHECK(dweight.is_contiguous() && dweight.sizes() == of.weight.sizes(), "dweight ", dweight.sizes());
  if (of.x.is_cpu())
    convolve_backward_weight_cpu(of, dy, dweight, dbias);
  else if (cuda::convolves(of))
    cuda::convolve_backward_weight(of, dy, dweight, dbias);
  else
    convolve_backward_weight_device(of, dy, dweight, dbias);
}

}  // namespace lockstep::nn
