// cuda_kernels.h by the kernels of this folder.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda/launch.cuh"
#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::nn::cuda {
namespace {

Element element_of(const at::Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.is_cuda() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16),
                 "fp32 or bf16 on a GPU, not ", tensor.scalar_type(), " on ", tensor.device());
  return tensor.scalar_type() == at::kFloat ? Element::kFloat : Element::kBFloat16;
}

void check_alike(const at::Tensor& tensor, const at::Tensor& other) {
  LOCKSTEP_CHECK(tensor.is_contiguous() && tensor.scalar_type() == other.scalar_type() &&
                     tensor.device() == other.device(),
                 "contiguous ", tensor.scalar_type(), " on ", tensor.device(), " beside ", other.scalar_type(), " on ",
                 other.device());
}

float* floats(const at::Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.is_contiguous());
  return tensor.mutable_data_ptr<float>();
}

const void* pointer_or_null(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
float* floats_or_null(const at::Tensor& tensor) { return tensor.defined() ? floats(tensor) : nullptr; }

// The stream of the device that the tensor is on, which is made the current one for the time of a call.
struct Place {
  explicit Place(const at::Tensor& tensor)
      : guard(tensor.device()), stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()) {}
  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;
};

int64_t rows_of(const at::Tensor& tensor) { return tensor.numel() / std::max<int64_t>(1, tensor.size(-1)); }

at::Tensor statistics(const at::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = 1;
  return at::empty(shape, x.options().dtype(at::kFloat));
}

}  // namespace

void gelu_tanh_backward(const at::Tensor& dy, at::Tensor& h) {
  const Element type = element_of(h);
  check_alike(h, h);
  check_alike(dy, h);
  LOCKSTEP_CHECK_EQ(dy.numel(), h.numel());
  const Place place(h);
  launch_gelu_backward(place.stream, type, dy.const_data_ptr(), h.mutable_data_ptr(), h.numel());
}

at::Tensor swiglu(const at::Tensor& h) {
  const Element type = element_of(h);
  check_alike(h, h);
  const int64_t size = h.size(-1) / 2;
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() = size;
  const Place place(h);
  at::Tensor y = at::empty(shape, h.options());
  launch_swiglu(place.stream, type, h.const_data_ptr(), y.mutable_data_ptr(), rows_of(h), size);
  return y;
}

void swiglu_backward(const at::Tensor& dy, at::Tensor& h) {
  const Element type = element_of(h);
  check_alike(h, h);
  check_alike(dy, h);
  LOCKSTEP_CHECK_EQ(2 * dy.numel(), h.numel());
  const Place place(h);
  launch_swiglu_backward(place.stream, type, dy.const_data_ptr(), h.mutable_data_ptr(), rows_of(h), dy.size(-1));
}

void rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, double direction) {
  const Element type = element_of(x);
  check_alike(cosine, x);
  check_alike(sine, x);
  const RotaryShape shape{.batch = x.size(0),
                          .positions = x.size(1),
                          .heads = x.size(2),
                          .half = x.size(3) / 2,
                          .batch_stride = x.stride(0),
                          .position_stride = x.stride(1),
                          .head_stride = x.stride(2)};
  LOCKSTEP_CHECK_EQ(x.stride(3), 1);
  LOCKSTEP_CHECK_EQ(cosine.numel(), shape.positions * shape.half);
  LOCKSTEP_CHECK_EQ(sine.numel(), cosine.numel());
  const Place place(x);
  launch_rotate(place.stream, type, x.mutable_data_ptr(), cosine.const_data_ptr(), sine.const_data_ptr(), shape,
                static_cast<float>(direction));
}

at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& targets) {
  const Element type = element_of(logits);
  check_alike(logits, logits);
  LOCKSTEP_CHECK(targets.is_contiguous() && targets.device() == logits.device() && targets.numel() == logits.size(0));
  const Place place(logits);
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  launch_cross_entropy(place.stream, type, logits.mutable_data_ptr(), targets.const_data_ptr<int64_t>(), floats(losses),
                       logits.size(0), logits.size(1));
  return losses.sum();
}

NormResult norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                double eps) {
  const Element type = element_of(x);
  check_alike(x, x);
  check_alike(weight, x);
  if (bias.defined()) check_alike(bias, x);
  if (residual.defined()) check_alike(residual, x);
  LOCKSTEP_CHECK(!residual.defined() || residual.numel() == x.numel());
  LOCKSTEP_CHECK_EQ(weight.numel(), x.size(-1));
  const Place place(x);
  NormResult result{.y = at::empty_like(x),
                    .sum = residual.defined() ? at::empty_like(x) : x,
                    .mean = bias.defined() ? statistics(x) : at::Tensor(),
                    .rstd = statistics(x)};
  launch_norm(place.stream, type,
              {.x = x.const_data_ptr(),
               .residual = pointer_or_null(residual),
               .sum = residual.defined() ? result.sum.mutable_data_ptr() : nullptr,
               .weight = weight.const_data_ptr(),
               .bias = pointer_or_null(bias),
               .y = result.y.mutable_data_ptr(),
               .mean = floats_or_null(result.mean),
               .rstd = floats(result.rstd),
               .rows = rows_of(x),
               .size = x.size(-1),
               .eps = static_cast<float>(eps)});
  return result;
}

at::Tensor norm_backward(const at::Tensor& dy, const NormKept& kept, const at::Tensor& weight,
                         const at::Tensor& dresidual) {
  const Element type = element_of(dy);
  check_alike(dy, dy);
  check_alike(kept.x, dy);
  check_alike(weight, dy);
  if (dresidual.defined()) check_alike(dresidual, dy);
  LOCKSTEP_CHECK_EQ(kept.x.numel(), dy.numel());
  LOCKSTEP_CHECK(!dresidual.defined() || dresidual.numel() == dy.numel());
  const Place place(dy);
  at::Tensor dx = at::empty_like(dy);
  launch_norm_backward(place.stream, type,
                       {.dy = dy.const_data_ptr(),
                        .x = kept.x.const_data_ptr(),
                        .weight = weight.const_data_ptr(),
                        .mean = floats_or_null(kept.mean),
                        .rstd = floats(kept.rstd),
                        .dresidual = pointer_or_null(dresidual),
                        .dx = dx.mutable_data_ptr(),
                        .rows = rows_of(dy),
                        .size = dy.size(-1)});
  return dx;
}

void norm_weight_backward(const at::Tensor& dy, const NormKept& kept, const at::Tensor& weight_grad,
                          const at::Tensor& bias_grad) {
  const Element type = element_of(dy);
  check_alike(dy, dy);
  if (kept.x.defined()) check_alike(kept.x, dy);
  const Place place(dy);
  const at::Tensor partial = at::empty({2, kStripes, dy.size(-1)}, dy.options().dtype(at::kFloat));
  launch_norm_weight_backward(place.stream, type,
                              {.dy = dy.const_data_ptr(),
                               .x = pointer_or_null(kept.x),
                               .mean = floats_or_null(kept.mean),
                               .rstd = floats_or_null(kept.rstd),
                               .partial = floats(partial),
                               .weight_grad = floats_or_null(weight_grad),
                               .bias_grad = floats_or_null(bias_grad),
                               .rows = rows_of(dy),
                               .size = dy.size(-1)});
}

void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad) {
  norm_weight_backward(dy, {}, {}, bias_grad);
}

void adamw(const std::vector<AdamWTensors>& pieces, const AdamWSettings& settings) {
  if (pieces.empty()) return;
  std::vector<AdamWPiece> pointers;
  for (const AdamWTensors& piece : pieces) {
    LOCKSTEP_CHECK(!piece.copy.defined() ||
                   (piece.copy.is_contiguous() && piece.copy.scalar_type() == at::kBFloat16 &&
                    piece.copy.numel() == piece.value.numel()));
    pointers.push_back({.value = floats(piece.value),
                        .grad = floats(piece.grad),
                        .exp_avg = floats(piece.exp_avg),
                        .exp_avg_sq = floats(piece.exp_avg_sq),
                        .copy = piece.copy.defined() ? piece.copy.mutable_data_ptr() : nullptr,
                        .size = piece.value.numel(),
                        .decay = piece.decay});
  }
  const auto step = static_cast<double>(settings.step);
  const AdamWStep shared{.lr = static_cast<float>(settings.lr),
                         .eps = static_cast<float>(settings.eps),
                         .take1 = static_cast<float>(1 - settings.beta1),
                         .keep2 = static_cast<float>(settings.beta2),
                         .take2 = static_cast<float>(1 - settings.beta2),
                         .weight_decay = static_cast<float>(settings.weight_decay),
                         .bias1 = static_cast<float>(1 - std::pow(settings.beta1, step)),
                         .root_bias2 = static_cast<float>(std::sqrt(1 - std::pow(settings.beta2, step)))};
  const Place place(pieces[0].value);
  launch_adamw(place.stream, pointers.data(), static_cast<int>(pointers.size()), shared,
               static_cast<float>(settings.scale));
}

at::Tensor square_sum(const at::Tensor& values) {
  const Place place(values);
  const at::TensorOptions fp64 = values.options().dtype(at::kDouble);
  const at::Tensor partial = at::empty({kSquareBlocks}, fp64);
  at::Tensor sum = at::empty({}, fp64);
  launch_square_sum(place.stream, floats(values), values.numel(), partial.mutable_data_ptr<double>(),
                    sum.mutable_data_ptr<double>());
  return sum;
}

void mark_nonfinite(const std::vector<WatchedPiece>& pieces, const at::Tensor& flags) {
  if (pieces.empty()) return;
  LOCKSTEP_CHECK(flags.is_contiguous() && flags.is_cuda(), "flags on ", flags.device());
  int32_t* const first = flags.mutable_data_ptr<int32_t>();
  std::vector<WatchedValues> pointers;
  for (const WatchedPiece& piece : pieces) {
    LOCKSTEP_CHECK(piece.flag >= 0 && piece.flag < flags.numel() && piece.values.device() == flags.device(), "flag ",
                   piece.flag, " of ", flags.numel(), ", values on ", piece.values.device());
    pointers.push_back({.values = floats(piece.values), .flag = first + piece.flag, .size = piece.values.numel()});
  }
  const Place place(flags);
  launch_mark_nonfinite(place.stream, pointers.data(), static_cast<int>(pointers.size()));
}

bool multiplies_groups(at::Device device) {
  if (!device.is_cuda()) return false;
  int major = 0;
  const cudaError_t code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
  LOCKSTEP_CHECK(code == cudaSuccess, "compute capability of ", device, ": ", cudaGetErrorString(code));
  return major == 9 || major == 10;
}

at::Tensor dropout_mask(const MaskDraw& draw, at::IntArrayRef shape, at::Device device) {
  at::Tensor mask = at::empty(shape, at::TensorOptions(at::kBool).device(device));
  const Place place(mask);
  launch_dropout_mask(place.stream, {.kept = mask.mutable_data_ptr<bool>(),
                                     .n = mask.numel(),
                                     .numbers = draw.numbers,
                                     .first = draw.first,
                                     .probability = draw.probability});
  return mask;
}

}  // namespace lockstep::nn::cuda
