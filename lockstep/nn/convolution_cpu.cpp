#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "lockstep/nn/convolution_strips.h"
#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_cpu_blocks.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using namespace strips;
using scan_cpu::of_dtype;

constexpr int64_t kStretch = 256;  // tokens whose weight gradients are summed before they are added to the rest

template <int kWidth, typename T>
LOCKSTEP_INLINE void forward_token(const Strip<T>& s, int64_t t, T* y) {
  for (int64_t i = 0; i < s.channels; i += kLanes) {
    const Floats sum = sum_of<kWidth>(s, t, i);
    vec::store(y + i, s.channels - i, sum * sigmoid(sum));
  }
}

template <typename T>
LOCKSTEP_INLINE void forward(const Strip<T>& s, T* y, int64_t y_row) {
  for (int64_t t = 0; t < s.length; ++t) {
    prefetch(s.x, s.x_row, t, s);
    prefetch(y, y_row, t, s);
    if (s.width == kUnrolled && whole(s, t))
      forward_token<kUnrolled>(s, t, y + t * y_row);
    else
      forward_token<0>(s, t, y + t * y_row);
  }
}

// Gradients of the sums of the last tokens wait in a ring of rows, a power of two of them and at least W: dx of a token is written once all
// are there that see it, and after its dy was read.
template <typename T>
struct Backward {
  Strip<T> strip;
  const T* dy;
  int64_t dy_row;
  T* dx;
  int64_t dx_row;
  float* dbefore;  // null: not wanted
  int64_t dbefore_row;
  float* ring;
  int64_t ring_rows;
  float* row(int64_t t) const { return ring + (t & (ring_rows - 1)) * kStrip; }
};

template <int kWidth, typename T>
LOCKSTEP_INLINE void keep_dsums(const Backward<T>& o, int64_t t) {
  for (int64_t i = 0; i < o.strip.channels; i += kLanes)
    vec::store(o.row(t) + i, kLanes, dsum_of<kWidth>(o.strip, o.dy + t * o.dy_row, t, i));
}

// Of column `to`, which tokens to .. to + W - 1 see, by `from` on, where no document's begin lies between. Whole: all of them see it.
template <bool kWhole, typename T, typename Out>
LOCKSTEP_INLINE void put_column(const Backward<T>& o, int64_t to, int64_t from, int64_t end, Out* out) {
  const Strip<T>& s = o.strip;
  for (int64_t i = 0; i < s.channels; i += kLanes) {
    Floats sum{};
    const auto add = [&](int64_t t) LOCKSTEP_INLINE_LAMBDA {
      Floats gradient{}, weight{};
      vec::load(o.row(t) + i, kLanes, gradient);
      vec::load(s.weight + (s.width - 1 - t + to) * kStrip + i, kLanes, weight);
      sum += gradient * weight;
    };
    if constexpr (kWhole) {
#pragma GCC unroll 8
      for (int64_t k = 0; k < kUnrolled; ++k) add(to + k);
    } else {
      for (int64_t t = from; t < end; ++t) add(t);
    }
    vec::store(out + i, s.channels - i, sum);
  }
}

template <typename T>
LOCKSTEP_INLINE void backward_input(const Backward<T>& o) {
  const Strip<T>& s = o.strip;
  const int64_t last = s.width - 1;
  for (int64_t t = 0; t < s.length + last; ++t) {
    prefetch(s.x, s.x_row, t, s);
    prefetch(o.dy, o.dy_row, t, s);
    prefetch<T>(o.dx, o.dx_row, t, s);
    if (t < s.length && s.width == kUnrolled && whole(s, t))
      keep_dsums<kUnrolled>(o, t);
    else if (t < s.length)
      keep_dsums<0>(o, t);
    const int64_t to = t - last, from = std::max<int64_t>(to, 0);
    int64_t end = from;  // a token that does not see the column is followed by none that does
    while (end <= t && end < s.length && end - to < s.taps[end]) ++end;
    if (to < 0 && o.dbefore)
      put_column<false>(o, to, from, end, o.dbefore + (last + to) * o.dbefore_row);
    else if (to >= 0 && s.width == kUnrolled && end - to == kUnrolled)
      put_column<true>(o, to, from, end, o.dx + to * o.dx_row);
    else if (to >= 0)
      put_column<false>(o, to, from, end, o.dx + to * o.dx_row);
  }
}

template <int kWidth, typename T>
LOCKSTEP_INLINE void add_token(const Strip<T>& s, int64_t t, const T* dy, float* to) {
  for (int64_t i = 0; i < s.channels; i += kLanes) {
    const Floats gradient = dsum_of<kWidth>(s, dy, t, i);
    Floats x{}, sum{};
    const auto add = [&](float* weight) LOCKSTEP_INLINE_LAMBDA {
      vec::load(weight + i, kLanes, sum);
      vec::store(weight + i, kLanes, sum + gradient * x);
    };
    if constexpr (kWidth > 0) {
#pragma GCC unroll 8
      for (int64_t w = 0; w < kWidth; ++w) {
        vec::load(s.x + (t - kWidth + 1 + w) * s.x_row + i, s.channels - i, x);
        add(to + w * kStrip);
      }
    } else {
      for (int64_t w = s.width - s.taps[t]; w < s.width; ++w) {
        column(s, t - s.width + 1 + w, i, x);
        add(to + w * kStrip);
      }
    }
    x = vec::splat(1.0f);
    add(to + s.width * kStrip);
  }
}

// to [W + 1, kStrip]: of the weights, then of the bias.
template <typename T>
LOCKSTEP_INLINE void backward_weight(const Strip<T>& s, const T* dy, int64_t dy_row, float* stretch, float* to) {
  const int64_t size = (s.width + 1) * kStrip;
  for (int64_t first = 0; first < s.length; first += kStretch) {
    std::fill_n(stretch, size, 0.0f);
    for (int64_t t = first; t < std::min(first + kStretch, s.length); ++t) {
      prefetch(s.x, s.x_row, t, s);
      prefetch(dy, dy_row, t, s);
      if (s.width == kUnrolled && whole(s, t))
        add_token<kUnrolled>(s, t, dy + t * dy_row, stretch);
      else
        add_token<0>(s, t, dy + t * dy_row, stretch);
    }
    for (int64_t i = 0; i < size; ++i) to[i] += stretch[i];
  }
}

using BFloat16 = c10::BFloat16;
LOCKSTEP_CLONES void forward_of(const Strip<float>& s, float* y, int64_t row) { forward(s, y, row); }
LOCKSTEP_CLONES void forward_of(const Strip<BFloat16>& s, BFloat16* y, int64_t row) { forward(s, y, row); }
LOCKSTEP_CLONES void backward_input_of(const Backward<float>& o) { backward_input(o); }
LOCKSTEP_CLONES void backward_input_of(const Backward<BFloat16>& o) { backward_input(o); }
LOCKSTEP_CLONES void backward_weight_of(const Strip<float>& s, const float* dy, int64_t row, float* stretch, float* to) {
  backward_weight(s, dy, row, stretch, to);
}
LOCKSTEP_CLONES void backward_weight_of(const Strip<BFloat16>& s, const BFloat16* dy, int64_t row, float* stretch, float* to) {
  backward_weight(s, dy, row, stretch, to);
}

// What all strips share: [strips, W + 1, kStrip] weights and bias, and how many columns each token sees.
struct Shared {
  explicit Shared(const Convolution& of)
      : channels(of.x.size(2)), width(of.weight.size(1)), tokens(of.x.size(1)), length(tokens / of.pieces), strips((channels + kStrip - 1) / kStrip) {
    weights.assign(static_cast<size_t>(strips * strip_size()), 0.0f);
    const at::Tensor weight = of.weight.to(at::kFloat).contiguous(), bias = of.bias.defined() ? of.bias.to(at::kFloat).contiguous() : at::Tensor();
    for (int64_t c = 0; c < channels; ++c) {
      float* const to = weights.data() + c / kStrip * strip_size() + c % kStrip;
      for (int64_t w = 0; w < width; ++w) to[w * kStrip] = weight.const_data_ptr<float>()[c * width + w];
      if (bias.defined()) to[width * kStrip] = bias.const_data_ptr<float>()[c];
    }
    taps.resize(static_cast<size_t>(of.x.size(0) * tokens));
    for (int64_t i = 0, seen = 0; i < of.x.size(0) * tokens; ++i) {
      const bool begins = of.begins.defined() && of.begins.const_data_ptr<uint8_t>()[i];
      if (i % length == 0) seen = width - 1;  // what lies before the piece
      seen = begins ? 1 : std::min(seen + 1, width);
      taps[static_cast<size_t>(i)] = static_cast<int32_t>(seen);
    }
  }
  int64_t strip_size() const { return (width + 1) * kStrip; }
  // Pieces of all sequences times strips, and which one `i` is.
  int64_t count(const Convolution& of) const { return of.x.size(0) * of.pieces * strips; }
  int64_t piece(int64_t i) const { return i / strips; }
  int64_t channel(int64_t i) const { return i % strips * kStrip; }

  // Element (first token of piece, first channel) of a tensor [B, T, C].
  int64_t offset(const at::Tensor& x, int64_t i) const {
    const int64_t token = piece(i) * length;
    return token / tokens * x.stride(0) + token % tokens * x.stride(1) + channel(i);
  }
  // The same of [B, pieces, W - 1, C] contiguous.
  int64_t offset_before(int64_t i) const { return piece(i) * (width - 1) * channels + channel(i); }

  template <typename T>
  Strip<T> strip(const Convolution& of, int64_t i) const {
    return {.channels = std::min(kStrip, channels - channel(i)),
            .width = width,
            .length = length,
            .x = of.x.const_data_ptr<T>() + offset(of.x, i),
            .x_row = of.x.stride(1),
            .before = of.before.defined() ? of.before.const_data_ptr<T>() + offset_before(i) : nullptr,
            .before_row = channels,
            .weight = weights.data() + i % strips * strip_size(),
            .taps = taps.data() + piece(i) * length};
  }

  int64_t channels, width, tokens, length, strips;
  std::vector<float> weights;
  std::vector<int32_t> taps;
};

}  // namespace

at::Tensor convolve_cpu(const Convolution& of) {
  const Shared shared(of);
  at::Tensor y = at::empty(of.x.sizes(), of.x.options());
  of_dtype(of.x, [&]<typename T>(T) {
    at::parallel_for(0, shared.count(of), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) forward_of(shared.strip<T>(of, i), y.data_ptr<T>() + shared.offset(y, i), y.stride(1));
    });
  });
  return y;
}

void convolve_backward_input_cpu(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients) {
  const Shared shared(of);
  of_dtype(of.x, [&]<typename T>(T) {
    at::parallel_for(0, shared.count(of), 1, [&](int64_t begin, int64_t end) {
      const auto rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(shared.width)));
      std::vector<float> ring(static_cast<size_t>(rows * kStrip));
      for (int64_t i = begin; i < end; ++i)
        backward_input_of(Backward<T>{
            .strip = shared.strip<T>(of, i),
            .dy = dy.const_data_ptr<T>() + shared.offset(dy, i),
            .dy_row = dy.stride(1),
            .dx = gradients.dx.data_ptr<T>() + shared.offset(gradients.dx, i),
            .dx_row = gradients.dx.stride(1),
            .dbefore = gradients.dbefore.defined() ? gradients.dbefore.data_ptr<float>() + shared.offset_before(i) : nullptr,
            .dbefore_row = shared.channels,
            .ring = ring.data(),
            .ring_rows = rows});
    });
  });
}

void convolve_backward_weight_cpu(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias) {
  const Shared shared(of);
  const int64_t size = shared.strip_size();
  const at::Tensor partial = at::zeros({shared.count(of), size}, at::kFloat);
  of_dtype(of.x, [&]<typename T>(T) {
    at::parallel_for(0, shared.count(of), 1, [&](int64_t begin, int64_t end) {
      std::vector<float> stretch(static_cast<size_t>(size));
      for (int64_t i = begin; i < end; ++i)
        backward_weight_of(shared.strip<T>(of, i), dy.const_data_ptr<T>() + shared.offset(dy, i), dy.stride(1), stretch.data(),
                           partial.data_ptr<float>() + i * size);
    });
  });
  for (int64_t c = 0; c < shared.channels; ++c) {
    for (int64_t i = c / kStrip; i < shared.count(of); i += shared.strips) {
      const float* from = partial.const_data_ptr<float>() + i * size + c % kStrip;
      for (int64_t w = 0; w < shared.width; ++w) dweight.data_ptr<float>()[c * shared.width + w] += from[w * kStrip];
      if (dbias.defined()) dbias.data_ptr<float>()[c] += from[shared.width * kStrip];
    }
  }
}

}  // namespace lockstep::nn
