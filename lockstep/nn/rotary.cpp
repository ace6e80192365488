#include "lockstep/nn/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/check.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

// The heads of one position.
template <typename T>
struct Position {
  T* x;
  int64_t heads, stride;  // from one head to the next
  const T* cosine;
  const T* sine;
  int64_t half;
  float direction;
};

template <typename T>
LOCKSTEP_INLINE void rotate_position(const Position<T>& p) {
  for (int64_t head = 0; head < p.heads; ++head) {
    T* first = p.x + head * p.stride;
    T* second = first + p.half;
    for (int64_t i = 0; i < p.half; i += kLanes) {
      const int64_t count = p.half - i;
      Floats a{}, b{}, cosine{}, sine{};
      vec::load(first + i, count, a);
      vec::load(second + i, count, b);
      vec::load(p.cosine + i, count, cosine);
      vec::load(p.sine + i, count, sine);
      sine *= p.direction;
      vec::store(first + i, count, a * cosine - b * sine);
      vec::store(second + i, count, b * cosine + a * sine);
    }
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES void rotate_of(const Position<float>& position) { rotate_position(position); }
LOCKSTEP_CLONES void rotate_of(const Position<BFloat16>& position) { rotate_position(position); }

// Which row of the tables token i of B S has: `all` of it, or they begin at the first token of every sequence.
struct TableRows {
  const int64_t* all = nullptr;
  int64_t seq = 1;
  int64_t operator()(int64_t i) const { return all ? all[i] : i % seq; }
};

// The rows of angles of what is rotated.
struct Turn {
  at::Tensor cosine, sine;  // [rows, 1, R/2]
  TableRows row;
  float direction;
};

// x [B, S, heads, R]
template <typename T>
void rotate_cpu(const at::Tensor& x, const Turn& turn) {
  const int64_t seq = x.size(1), half = x.size(3) / 2;
  at::parallel_for(0, x.size(0) * seq, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      rotate_of({.x = x.data_ptr<T>() + i / seq * x.stride(0) + i % seq * x.stride(1),
                 .heads = x.size(2),
                 .stride = x.stride(2),
                 .cosine = turn.cosine.const_data_ptr<T>() + turn.row(i) * half,
                 .sine = turn.sine.const_data_ptr<T>() + turn.row(i) * half,
                 .half = half,
                 .direction = turn.direction});
  });
}

void rotate_on_cpu(const at::Tensor& x, const Turn& turn) {
  LOCKSTEP_CHECK(x.stride(3) == 1 && x.scalar_type() == turn.cosine.scalar_type());
  if (x.scalar_type() == at::kFloat) return rotate_cpu<float>(x, turn);
  LOCKSTEP_CHECK(x.scalar_type() == at::kBFloat16, "rotary positions in ", x.dtype());
  rotate_cpu<BFloat16>(x, turn);
}

// Of frequencies theta^(-2j/R) the index j that makes so many turns in `tokens`.
double index_of_turns(double turns, int64_t size, double theta, double tokens) {
  return static_cast<double>(size) * std::log(tokens / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

// Frequencies theta^(-2j/R) of YaRN, from their reciprocals; by the operations that transformers takes, in their order.
void stretch_yarn(const arch::RopeScaling& scaling, int64_t size, double theta, const float* reciprocal, float* f) {
  const auto tokens = static_cast<double>(scaling.original_max_position_embeddings);
  double low = index_of_turns(scaling.beta_fast, size, theta, tokens), high = index_of_turns(scaling.beta_slow, size, theta, tokens);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(size - 1));
  if (high == low) high += 0.001;
  const auto first = static_cast<float>(low), width = static_cast<float>(high - low), factor = static_cast<float>(scaling.factor);
  for (int64_t j = 0; j < size / 2; ++j) {
    const float ramp = std::clamp((static_cast<float>(j) - first) / width, 0.0f, 1.0f), kept = 1.0f - ramp;
    f[j] = 1.0f / (factor * reciprocal[j]) * (1.0f - kept) + 1.0f / reciprocal[j] * kept;
  }
}

// One frequency (radians a token), stretched.
float scaled(const arch::RopeScaling& scaling, float frequency) {
  using Kind = arch::RopeScaling::Kind;
  const auto factor = static_cast<float>(scaling.factor);
  if (scaling.kind == Kind::kNone) return frequency;
  if (scaling.kind == Kind::kLinear) return frequency / factor;
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / factor;
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const double kept = (original / wavelength - low) / (high - low);
  return static_cast<float>((1 - kept) * frequency / scaling.factor + kept * frequency);
}

}  // namespace

Rotary::Rotary(int64_t positions, int64_t size, double theta, const at::TensorOptions& options,
               const arch::RopeScaling& scaling) {
  LOCKSTEP_CHECK(size > 0 && size % 2 == 0, "rotation of ", size, " elements");
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor exponent = at::arange(0, size, 2, fp32).div_(size);
  const at::Tensor reciprocal = at::pow(theta, exponent), frequency = reciprocal.reciprocal();
  float* f = frequency.data_ptr<float>();
  if (scaling.kind == arch::RopeScaling::Kind::kYarn)
    stretch_yarn(scaling, size, theta, reciprocal.const_data_ptr<float>(), f);
  else
    for (int64_t j = 0; j < size / 2; ++j) f[j] = scaled(scaling, f[j]);
  const at::Tensor angle = at::outer(at::arange(positions, fp32), frequency);  // [positions, R/2]
  const double factor = arch::rope_attention_factor(scaling);
  const auto table = [&](at::Tensor values) {
    if (factor != 1) values.mul_(factor);
    return values.to(options).unsqueeze(1);  // [positions, 1, R/2]: over heads
  };
  cos_ = table(angle.cos());
  sin_ = table(angle.sin());
}

at::Tensor Rotary::turned(const at::Tensor& x) const {
  const int64_t size = 2 * cos_.size(2);
  LOCKSTEP_CHECK(x.size(3) >= size, "rotation of ", size, " elements of a head of ", x.size(3));
  return x.size(3) == size ? x : x.narrow(3, 0, size);
}

void Rotary::rotate(const at::Tensor& heads, int64_t start, double direction) const {
  const at::Tensor x = turned(heads);
  const at::Tensor cos = cos_.narrow(0, start, x.size(1));
  const at::Tensor sin = sin_.narrow(0, start, x.size(1));
  if (x.is_cpu())
    return rotate_on_cpu(x, {.cosine = cos, .sine = sin, .row = {.seq = x.size(1)}, .direction = static_cast<float>(direction)});
  cuda::rotate(x, cos, sin, direction);
}

void Rotary::rotate(const at::Tensor& heads, const at::Tensor& positions, double direction) const {
  const at::Tensor x = turned(heads);
  LOCKSTEP_CHECK(positions.is_contiguous() && positions.sizes() == x.sizes().slice(0, 2), "positions ", positions.sizes(), " of ",
                 x.sizes());
  if (x.is_cpu()) {
    const int64_t* all = positions.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < positions.numel(); ++i)
      LOCKSTEP_CHECK(all[i] >= 0 && all[i] < cos_.size(0), "position ", all[i], " of ", cos_.size(0));
    return rotate_on_cpu(x, {.cosine = cos_, .sine = sin_, .row = {.all = all}, .direction = static_cast<float>(direction)});
  }
  const int64_t batch = x.size(0), seq = x.size(1);
  if (batch == 1 || x.stride(0) == seq * x.stride(1)) {  // as one sequence
    const at::Tensor index = positions.view({batch * seq});
    return cuda::rotate(x.as_strided({1, batch * seq, x.size(2), x.size(3)}, {batch * seq * x.stride(1), x.stride(1), x.stride(2), x.stride(3)}),
                        at::index_select(cos_, 0, index), at::index_select(sin_, 0, index), direction);
  }
  for (int64_t b = 0; b < batch; ++b) {
    const at::Tensor index = positions.select(0, b);
    cuda::rotate(x.narrow(0, b, 1), at::index_select(cos_, 0, index), at::index_select(sin_, 0, index), direction);
  }
}

}  // namespace lockstep::nn
