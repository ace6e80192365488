// state_space_kernels.h by the kernels of this folder.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <span>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda/state_space.cuh"
#include "lockstep/nn/state_space_kernels.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn::cuda {
namespace {

Element element_of(const at::Tensor& x) {
  LOCKSTEP_CHECK(x.is_cuda(), "a state space on ", x.device());
  return x.scalar_type() == at::kFloat ? Element::kFloat : Element::kBFloat16;
}

// The stream of the device that the tensor is on, which is made the current one for the time of a call.
struct Place {
  explicit Place(const at::Tensor& tensor)
      : guard(tensor.device()), stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()) {}
  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;
};

at::Tensor on_device(const at::Tensor& begins, const at::Tensor& like) {
  if (!begins.defined()) return {};
  return upload(std::span(begins.const_data_ptr<uint8_t>(), static_cast<size_t>(begins.numel())), like.device());
}
const uint8_t* pointer(const at::Tensor& begins) { return begins.defined() ? begins.const_data_ptr<uint8_t>() : nullptr; }
const void* pointer_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
float* floats_or_null(const at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; }

Strided strided(const at::Tensor& x) {
  return {.data = x.mutable_data_ptr(), .batch = x.stride(0), .token = x.stride(1), .head = x.stride(2)};
}

// `begins` outlives what is made of it.
ScanInputs inputs_of(const Scan& scan, const at::Tensor& begins) {
  const int64_t length = scan.x.size(1) / scan.pieces;
  return {.sizes = {.batch = scan.x.size(0), .tokens = scan.x.size(1), .heads = scan.x.size(2), .groups = scan.b.size(2),
                    .channels = scan.x.size(3), .numbers = scan.b.size(3), .pieces = scan.pieces, .chunk = std::min(scan.chunk, length),
                    .chunks = (length + scan.chunk - 1) / scan.chunk},
          .x = strided(scan.x), .b = strided(scan.b), .c = strided(scan.c), .delta = scan.delta.const_data_ptr<float>(),
          .a = scan.a.const_data_ptr<float>(), .d = scan.d.const_data_ptr<float>(), .begins = pointer(begins)};
}

at::Tensor states_of_pieces(const Scan& scan) {
  return at::empty({scan.x.size(0), scan.pieces, scan.x.size(2), scan.x.size(3), scan.b.size(3)}, scan.delta.options());
}

ConvolutionInputs inputs_of(const Convolution& of, const at::Tensor& weight, const at::Tensor& begins) {
  return {.batch = of.x.size(0), .tokens = of.x.size(1), .channels = of.x.size(2), .width = of.weight.size(1), .pieces = of.pieces,
          .x = of.x.const_data_ptr(), .x_batch = of.x.stride(0), .x_token = of.x.stride(1), .weight = weight.const_data_ptr(),
          .bias = pointer_or_null(of.bias), .begins = pointer(begins), .before = pointer_or_null(of.before)};
}

}  // namespace

bool scans(const Scan& scan) { return scan.x.is_cuda() && scan.b.size(3) <= kMostNumbers; }
bool convolves(const Convolution& of) { return of.x.is_cuda() && of.weight.size(1) <= kMostWidth; }

at::Tensor scan_forward(const Scan& scan, ScanStates* states) {
  const Place place(scan.x);
  const at::Tensor begins = on_device(scan.begins, scan.x);
  at::Tensor y = at::empty(scan.x.sizes(), scan.x.options());
  ScanForward call{.in = inputs_of(scan, begins), .y = strided(y), .before = nullptr, .after = nullptr, .decay = nullptr};
  if (states) {
    const ScanSizes& s = call.in.sizes;
    states->before = at::empty({s.batch, s.pieces, s.chunks, s.heads, s.channels, s.numbers}, scan.delta.options());
    states->after = states_of_pieces(scan);
    states->decay = at::empty({s.batch, s.pieces, s.heads}, scan.delta.options());
    call.before = floats_or_null(states->before), call.after = floats_or_null(states->after), call.decay = floats_or_null(states->decay);
  }
  launch_scan_forward(place.stream, element_of(scan.x), call);
  return y;
}

void add_first_states(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y) {
  const Place place(scan.x);
  const at::Tensor begins = on_device(scan.begins, scan.x);
  launch_scan_first(place.stream, element_of(scan.x),
                    {.in = inputs_of(scan, begins), .first = first.const_data_ptr<float>(), .before = floats_or_null(states.before), .y = strided(y)});
}

at::Tensor scan_backward_first(const Scan& scan, const at::Tensor& dy) {
  const Place place(scan.x);
  const at::Tensor begins = on_device(scan.begins, scan.x);
  at::Tensor dfirst = states_of_pieces(scan);
  launch_scan_backward_first(place.stream, element_of(scan.x), {.in = inputs_of(scan, begins), .dy = strided(dy), .dfirst = floats_or_null(dfirst)});
  return dfirst;
}

void scan_backward(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients) {
  const Place place(scan.x);
  const at::Tensor begins = on_device(scan.begins, scan.x);
  const ScanInputs in = inputs_of(scan, begins);
  const at::Tensor workspace = at::empty({scan_backward_workspace(in.sizes)}, scan.delta.options());
  launch_scan_backward(place.stream, element_of(scan.x),
                       {.in = in,
                        .before = states.before.const_data_ptr<float>(),
                        .dy = strided(dy),
                        .dlast = floats_or_null(dlast),
                        .dx = strided(gradients.dx),
                        .db = strided(gradients.db),
                        .dc = strided(gradients.dc),
                        .ddelta = floats_or_null(gradients.ddelta),
                        .da = floats_or_null(gradients.da),
                        .dd = floats_or_null(gradients.dd),
                        .workspace = floats_or_null(workspace)});
}

at::Tensor convolve(const Convolution& of) {
  const Place place(of.x);
  const at::Tensor begins = on_device(of.begins, of.x), weight = of.weight.contiguous();
  at::Tensor y = at::empty(of.x.sizes(), of.x.options());
  launch_convolution(place.stream, element_of(of.x), inputs_of(of, weight, begins), y.mutable_data_ptr());
  return y;
}

// dx may be the memory of dy, which other threads still read.
void convolve_backward_input(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients) {
  const Place place(of.x);
  const at::Tensor begins = on_device(of.begins, of.x), weight = of.weight.contiguous();
  const at::Tensor dx = at::empty(of.x.sizes(), of.x.options());
  launch_convolution_backward(place.stream, element_of(of.x),
                              {.in = inputs_of(of, weight, begins),
                               .dy = dy.const_data_ptr(),
                               .dy_batch = dy.stride(0),
                               .dy_token = dy.stride(1),
                               .dx = dx.mutable_data_ptr(),
                               .dx_batch = dx.stride(0),
                               .dx_token = dx.stride(1),
                               .dbefore = floats_or_null(gradients.dbefore)});
  gradients.dx.copy_(dx);
}

void convolve_backward_weight(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias) {
  const Place place(of.x);
  const at::Tensor begins = on_device(of.begins, of.x), weight = of.weight.contiguous();
  const at::Tensor partial = at::empty({kStripes * of.x.size(2) * (of.weight.size(1) + 1)}, dweight.options());
  launch_convolution_weight_backward(place.stream, element_of(of.x),
                                     {.in = inputs_of(of, weight, begins),
                                      .dy = dy.const_data_ptr(),
                                      .dy_batch = dy.stride(0),
                                      .dy_token = dy.stride(1),
                                      .partial = floats_or_null(partial),
                                      .dweight = floats_or_null(dweight),
                                      .dbias = floats_or_null(dbias)});
}

}  // namespace lockstep::nn::cuda
