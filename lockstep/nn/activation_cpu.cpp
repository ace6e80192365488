#include "lockstep/nn/activation_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

LOCKSTEP_INLINE Floats sigmoid(const Floats& x) { return 1.0f / (1.0f + vec::exp(-x)); }

// x (1 + tanh(u)) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

template <typename T>
LOCKSTEP_INLINE void gelu(const T* h, T* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{};
    vec::load(h + i, size - i, x);
    vec::store(y + i, size - i, x * sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x)));
  }
}

template <typename T>
LOCKSTEP_INLINE void gelu_backward(const T* dy, T* h, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats d{}, x{};
    vec::load(dy + i, size - i, d);
    vec::load(h + i, size - i, x);
    const Floats s = sigmoid(kTwiceRoot * x * (1.0f + kCubic * x * x));
    const Floats slope = kTwiceRoot * (1.0f + 3.0f * kCubic * x * x);
    vec::store(h + i, size - i, d * (s + x * s * (1.0f - s) * slope));
  }
}

// One row: gate | up, each of `size`.
template <typename T>
LOCKSTEP_INLINE void swiglu(const T* h, T* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats gate{}, up{};
    vec::load(h + i, size - i, gate);
    vec::load(h + size + i, size - i, up);
    vec::store(y + i, size - i, gate * sigmoid(gate) * up);
  }
}

template <typename T>
LOCKSTEP_INLINE void swiglu_backward(const T* dy, T* h, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats d{}, gate{}, up{};
    vec::load(dy + i, size - i, d);
    vec::load(h + i, size - i, gate);
    vec::load(h + size + i, size - i, up);
    const Floats s = sigmoid(gate);
    vec::store(h + i, size - i, d * up * (s + gate * s * (1.0f - s)));
    vec::store(h + size + i, size - i, d * gate * s);
  }
}

// The share of normal numbers below x, erfc(-x / sqrt 2) / 2: erfc by a Chebyshev fit, about 1e-7 of its value off everywhere (Press et
// al., Numerical Recipes, 1992, section 6.2).
LOCKSTEP_INLINE Floats normal_below(const Floats& x) {
  constexpr float kFit[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                            -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
  const Floats z = (x < 0.0f ? -x : x) * 0.70710678f, t = 1.0f / (1.0f + 0.5f * z);
  Floats power = vec::splat(kFit[0]);
  for (int i = 1; i < 10; ++i) power = power * t + kFit[i];
  const Floats beyond = 0.5f * t * vec::exp(power - z * z);
  return x < 0.0f ? beyond : 1.0f - beyond;
}

template <typename T>
LOCKSTEP_INLINE void gelu_erf(const T* h, T* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{};
    vec::load(h + i, size - i, x);
    vec::store(y + i, size - i, x * normal_below(x));
  }
}

template <typename T>
LOCKSTEP_INLINE void gelu_erf_backward(const T* dy, T* h, int64_t size) {
  constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats d{}, x{};
    vec::load(dy + i, size - i, d);
    vec::load(h + i, size - i, x);
    vec::store(h + i, size - i, d * (normal_below(x) + x * (kDensity * vec::exp(-0.5f * x * x))));
  }
}

LOCKSTEP_INLINE Floats positive(const Floats& x) { return x < 0.0f ? Floats{} : x; }  // NaN stays NaN

template <typename T>
LOCKSTEP_INLINE void relu2(const T* h, T* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats x{};
    vec::load(h + i, size - i, x);
    x = positive(x);
    vec::store(y + i, size - i, x * x);
  }
}

template <typename T>
LOCKSTEP_INLINE void relu2_backward(const T* dy, T* h, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats d{}, x{};
    vec::load(dy + i, size - i, d);
    vec::load(h + i, size - i, x);
    vec::store(h + i, size - i, 2.0f * positive(x) * d);
  }
}

// As swiglu, with the tanh form of GELU.
template <typename T>
LOCKSTEP_INLINE void geglu(const T* h, T* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats gate{}, up{};
    vec::load(h + i, size - i, gate);
    vec::load(h + size + i, size - i, up);
    vec::store(y + i, size - i, gate * sigmoid(kTwiceRoot * gate * (1.0f + kCubic * gate * gate)) * up);
  }
}

template <typename T>
LOCKSTEP_INLINE void geglu_backward(const T* dy, T* h, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    Floats d{}, gate{}, up{};
    vec::load(dy + i, size - i, d);
    vec::load(h + i, size - i, gate);
    vec::load(h + size + i, size - i, up);
    const Floats s = sigmoid(kTwiceRoot * gate * (1.0f + kCubic * gate * gate));
    const Floats slope = kTwiceRoot * (1.0f + 3.0f * kCubic * gate * gate);
    vec::store(h + i, size - i, d * up * (s + gate * s * (1.0f - s) * slope));
    vec::store(h + size + i, size - i, d * gate * s);
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES void gelu_of(const float* h, float* y, int64_t size) { gelu(h, y, size); }
LOCKSTEP_CLONES void gelu_of(const BFloat16* h, BFloat16* y, int64_t size) { gelu(h, y, size); }
LOCKSTEP_CLONES void gelu_backward_of(const float* dy, float* h, int64_t size) { gelu_backward(dy, h, size); }
LOCKSTEP_CLONES void gelu_backward_of(const BFloat16* dy, BFloat16* h, int64_t size) { gelu_backward(dy, h, size); }
LOCKSTEP_CLONES void swiglu_of(const float* h, float* y, int64_t size) { swiglu(h, y, size); }
LOCKSTEP_CLONES void swiglu_of(const BFloat16* h, BFloat16* y, int64_t size) { swiglu(h, y, size); }
LOCKSTEP_CLONES void swiglu_backward_of(const float* dy, float* h, int64_t size) { swiglu_backward(dy, h, size); }
LOCKSTEP_CLONES void swiglu_backward_of(const BFloat16* dy, BFloat16* h, int64_t size) {
  swiglu_backward(dy, h, size);
}

// body(T{}, begin, end) over `count` pieces of about `elements` each, with T the element type of `tensor`.
LOCKSTEP_CLONES void gelu_erf_of(const float* h, float* y, int64_t size) { gelu_erf(h, y, size); }
LOCKSTEP_CLONES void gelu_erf_of(const BFloat16* h, BFloat16* y, int64_t size) { gelu_erf(h, y, size); }
LOCKSTEP_CLONES void gelu_erf_backward_of(const float* dy, float* h, int64_t size) { gelu_erf_backward(dy, h, size); }
LOCKSTEP_CLONES void gelu_erf_backward_of(const BFloat16* dy, BFloat16* h, int64_t size) { gelu_erf_backward(dy, h, size); }
LOCKSTEP_CLONES void relu2_of(const float* h, float* y, int64_t size) { relu2(h, y, size); }
LOCKSTEP_CLONES void relu2_of(const BFloat16* h, BFloat16* y, int64_t size) { relu2(h, y, size); }
LOCKSTEP_CLONES void relu2_backward_of(const float* dy, float* h, int64_t size) { relu2_backward(dy, h, size); }
LOCKSTEP_CLONES void relu2_backward_of(const BFloat16* dy, BFloat16* h, int64_t size) { relu2_backward(dy, h, size); }
LOCKSTEP_CLONES void geglu_of(const float* h, float* y, int64_t size) { geglu(h, y, size); }
LOCKSTEP_CLONES void geglu_of(const BFloat16* h, BFloat16* y, int64_t size) { geglu(h, y, size); }
LOCKSTEP_CLONES void geglu_backward_of(const float* dy, float* h, int64_t size) { geglu_backward(dy, h, size); }
LOCKSTEP_CLONES void geglu_backward_of(const BFloat16* dy, BFloat16* h, int64_t size) { geglu_backward(dy, h, size); }

template <typename Body>
void for_each_piece(const at::Tensor& tensor, int64_t count, int64_t elements, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements));
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    if (tensor.scalar_type() == at::kFloat)
      body(float{}, begin, end);
    else
      body(BFloat16{}, begin, end);
  });
}

// Number by number.
template <typename Of>
at::Tensor of_each(const at::Tensor& h, const Of& of) {
  LOCKSTEP_CHECK(h.is_contiguous());
  at::Tensor y = at::empty_like(h);
  for_each_piece(h, h.numel(), 1, [&]<typename T>(T, int64_t begin, int64_t end) {
    of(h.const_data_ptr<T>() + begin, y.data_ptr<T>() + begin, end - begin);
  });
  return y;
}

template <typename Of>
void backward_of_each(const at::Tensor& dy, const at::Tensor& h, const Of& of) {
  LOCKSTEP_CHECK(h.is_contiguous() && dy.is_contiguous());
  for_each_piece(h, h.numel(), 1, [&]<typename T>(T, int64_t begin, int64_t end) {
    of(dy.const_data_ptr<T>() + begin, h.data_ptr<T>() + begin, end - begin);
  });
}

// Row by row, of a gate and what it lets through.
template <typename Of>
at::Tensor of_gated(const at::Tensor& h, const Of& of) {
  LOCKSTEP_CHECK(h.is_contiguous());
  const int64_t size = h.size(-1) / 2;
  std::vector<int64_t> shape = h.sizes().vec();
  shape.back() = size;
  at::Tensor y = at::empty(shape, h.options());
  for_each_piece(h, y.numel() / size, size, [&]<typename T>(T, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) of(h.const_data_ptr<T>() + row * 2 * size, y.data_ptr<T>() + row * size, size);
  });
  return y;
}

template <typename Of>
void backward_of_gated(const at::Tensor& dy, const at::Tensor& h, const Of& of) {
  LOCKSTEP_CHECK(h.is_contiguous() && dy.is_contiguous());
  const int64_t size = dy.size(-1);
  for_each_piece(h, dy.numel() / size, size, [&]<typename T>(T, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) of(dy.const_data_ptr<T>() + row * size, h.data_ptr<T>() + row * 2 * size, size);
  });
}

}  // namespace

at::Tensor gelu_tanh_cpu(const at::Tensor& h) {
  return of_each(h, [](const auto* x, auto* y, int64_t size) { gelu_of(x, y, size); });
}

void gelu_tanh_backward_cpu(const at::Tensor& dy, at::Tensor& h) {
  backward_of_each(dy, h, [](const auto* d, auto* x, int64_t size) { gelu_backward_of(d, x, size); });
}

at::Tensor gelu_cpu(const at::Tensor& h) {
  return of_each(h, [](const auto* x, auto* y, int64_t size) { gelu_erf_of(x, y, size); });
}

void gelu_backward_cpu(const at::Tensor& dy, at::Tensor& h) {
  backward_of_each(dy, h, [](const auto* d, auto* x, int64_t size) { gelu_erf_backward_of(d, x, size); });
}

at::Tensor relu2_cpu(const at::Tensor& h) {
  return of_each(h, [](const auto* x, auto* y, int64_t size) { relu2_of(x, y, size); });
}

void relu2_backward_cpu(const at::Tensor& dy, at::Tensor& h) {
  backward_of_each(dy, h, [](const auto* d, auto* x, int64_t size) { relu2_backward_of(d, x, size); });
}

at::Tensor swiglu_cpu(const at::Tensor& h) {
  return of_gated(h, [](const auto* x, auto* y, int64_t size) { swiglu_of(x, y, size); });
}

void swiglu_backward_cpu(const at::Tensor& dy, at::Tensor& h) {
  backward_of_gated(dy, h, [](const auto* d, auto* x, int64_t size) { swiglu_backward_of(d, x, size); });
}

at::Tensor geglu_cpu(const at::Tensor& h) {
  return of_gated(h, [](const auto* x, auto* y, int64_t size) { geglu_of(x, y, size); });
}

void geglu_backward_cpu(const at::Tensor& dy, at::Tensor& h) {
  backward_of_gated(dy, h, [](const auto* d, auto* x, int64_t size) { geglu_backward_of(d, x, size); });
}

}  // namespace lockstep::nn
