#include "lockstep/nn/clamped_glu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;
using BFloat16 = c10::BFloat16;

constexpr float kSteepness = 1.702f;
constexpr int64_t kGrain = 16384;             // elements worth a thread
constexpr int64_t kDeviceBytes = 16 << 20;    // of an fp32 operand on a device

LOCKSTEP_INLINE Floats sigmoid(const Floats& x) { return 1.0f / (1.0f + vec::exp(-x)); }
LOCKSTEP_INLINE Floats at_most(const Floats& x, float limit) { return x > limit ? vec::splat(limit) : x; }
LOCKSTEP_INLINE Floats at_least(const Floats& x, float limit) { return x < limit ? vec::splat(limit) : x; }

// One row: gate | up, each of `size`.
template <typename T>
LOCKSTEP_INLINE void glu_row(const T* h, T* y, int64_t size, float limit) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats gate{}, up{};
    vec::load(h + i, size - i, gate);
    vec::load(h + size + i, size - i, up);
    const Floats g = at_most(gate, limit), u = at_least(at_most(up, limit), -limit);
    vec::store(y + i, size - i, (u + 1.0f) * g * sigmoid(kSteepness * g));
  }
}

template <typename T>
LOCKSTEP_INLINE void glu_backward_row(const T* dy, T* h, int64_t size, float limit) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats d{}, gate{}, up{};
    vec::load(dy + i, size - i, d);
    vec::load(h + i, size - i, gate);
    vec::load(h + size + i, size - i, up);
    const Floats g = at_most(gate, limit), u = at_least(at_most(up, limit), -limit);
    const Floats s = sigmoid(kSteepness * g);
    const Floats dgate = d * (u + 1.0f) * (s + kSteepness * g * s * (1.0f - s)), dup = d * g * s;
    vec::store(h + i, size - i, gate > limit ? Floats{} : dgate);
    vec::store(h + size + i, size - i, u != up ? Floats{} : dup);
  }
}

LOCKSTEP_CLONES void glu_rows(const float* h, float* y, int64_t rows, int64_t size, float limit) {
  for (int64_t row = 0; row < rows; ++row) glu_row(h + row * 2 * size, y + row * size, size, limit);
}
LOCKSTEP_CLONES void glu_rows(const BFloat16* h, BFloat16* y, int64_t rows, int64_t size, float limit) {
  for (int64_t row = 0; row < rows; ++row) glu_row(h + row * 2 * size, y + row * size, size, limit);
}
LOCKSTEP_CLONES void glu_backward_rows(const float* dy, float* h, int64_t rows, int64_t size, float limit) {
  for (int64_t row = 0; row < rows; ++row) glu_backward_row(dy + row * size, h + row * 2 * size, size, limit);
}
LOCKSTEP_CLONES void glu_backward_rows(const BFloat16* dy, BFloat16* h, int64_t rows, int64_t size, float limit) {
  for (int64_t row = 0; row < rows; ++row) glu_backward_row(dy + row * size, h + row * 2 * size, size, limit);
}

// body(T{}, first row, rows) of so many, with T the element type of `like`.
template <typename Body>
void for_rows(const at::Tensor& like, int64_t rows, int64_t size, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, size)), [&](int64_t begin, int64_t end) {
    if (like.scalar_type() == at::kFloat)
      body(float{}, begin, end - begin);
    else
      body(BFloat16{}, begin, end - begin);
  });
}

// body(first row, rows) of so many on a device, in parts that bound its copies.
template <typename Body>
void for_parts(int64_t rows, int64_t size, const Body& body) {
  const int64_t most = std::max<int64_t>(1, kDeviceBytes / (4 * std::max<int64_t>(1, size)));
  for (int64_t begin = 0; begin < rows; begin += most) body(begin, std::min(most, rows - begin));
}

struct Halves {
  at::Tensor gate, up;  // [rows, F], views
};
Halves halves_of(const at::Tensor& h, int64_t begin, int64_t rows) {
  const int64_t size = h.size(1) / 2;
  const at::Tensor here = h.narrow(0, begin, rows);
  return {.gate = here.narrow(1, 0, size), .up = here.narrow(1, size, size)};
}

void forward_on_device(const at::Tensor& h, const at::Tensor& y, float limit) {
  for_parts(h.size(0), y.size(1), [&](int64_t begin, int64_t rows) {
    const Halves of = halves_of(h, begin, rows);
    const at::Tensor g = of.gate.to(at::kFloat).clamp_max(limit);
    const at::Tensor glu = at::sigmoid(g.mul(kSteepness)).mul_(g);
    y.narrow(0, begin, rows).copy_(glu.mul_(of.up.to(at::kFloat).clamp(-limit, limit).add_(1)));
  });
}

void backward_on_device(const at::Tensor& dy, const at::Tensor& h, float limit) {
  for_parts(h.size(0), dy.size(1), [&](int64_t begin, int64_t rows) {
    const Halves of = halves_of(h, begin, rows);
    const at::Tensor d = dy.narrow(0, begin, rows).to(at::kFloat), gate = of.gate.to(at::kFloat), up = of.up.to(at::kFloat);
    const at::Tensor g = gate.clamp_max(limit), u = up.clamp(-limit, limit);
    const at::Tensor s = at::sigmoid(g.mul(kSteepness));
    const at::Tensor slope = s.sub(s.square()).mul_(g).mul_(kSteepness).add_(s);
    of.gate.copy_(slope.mul_(u.add(1)).mul_(d).masked_fill_(gate.gt(limit), 0));
    of.up.copy_(g.mul(s).mul_(d).masked_fill_(u.ne(up), 0));
  });
}

}  // namespace

ClampedGlu::ClampedGlu(double limit) : limit_(static_cast<float>(limit)) { LOCKSTEP_CHECK(limit > 0, "a clamp of ", limit); }

at::Tensor ClampedGlu::forward(const at::Tensor& h) const {
  LOCKSTEP_CHECK(h.is_contiguous());
  const int64_t size = h.size(-1) / 2, rows = size > 0 ? h.numel() / (2 * size) : 0;
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() = size;
  at::Tensor y = at::empty(shape, h.options());
  if (!h.is_cpu()) {
    forward_on_device(h.view({rows, 2 * size}), y.view({rows, size}), limit_);
    return y;
  }
  for_rows(h, rows, size, [&]<typename T>(T, int64_t begin, int64_t count) {
    glu_rows(h.const_data_ptr<T>() + begin * 2 * size, y.data_ptr<T>() + begin * size, count, size, limit_);
  });
  return y;
}

at::Tensor ClampedGlu::backward(const at::Tensor& dy, at::Tensor h) const {
  LOCKSTEP_CHECK(h.is_contiguous() && dy.is_contiguous());
  const int64_t size = dy.size(-1), rows = size > 0 ? dy.numel() / size : 0;
  LOCKSTEP_CHECK_EQ(h.numel(), 2 * dy.numel(), "elements of gate and up");
  if (!h.is_cpu()) {
    backward_on_device(dy.view({rows, size}), h.view({rows, 2 * size}), limit_);
    return h;
  }
  for_rows(h, rows, size, [&]<typename T>(T, int64_t begin, int64_t count) {
    glu_backward_rows(dy.const_data_ptr<T>() + begin * size, h.data_ptr<T>() + begin * 2 * size, count, size, limit_);
  });
  return h;
}

}  // namespace lockstep::nn
