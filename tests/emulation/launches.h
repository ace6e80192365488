// Kernels on guarded buffers, in several orders of threads and blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_bf16.h"
#include "emulation.h"
#include "guarded.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/cuda/launch.cuh"

namespace lockstep::emulation {

using Bytes = std::vector<std::byte>;
// What kernels left in their buffers, by name.
using Results = std::map<std::string, Bytes>;

class Buffers {
 public:
  explicit Buffers(Guarded::Options options) : options_(options) {}

  void set_away(size_t away) { options_.away = away; }  // of those that follow

  // Kernels may only read it.
  template <typename T>
  const T* input(const std::string& name, const std::vector<T>& values) {
    Guarded& buffer = fill(name, values);
    buffer.make_read_only();
    return reinterpret_cast<const T*>(buffer.data());
  }
  template <typename T>
  T* inout(const std::string& name, const std::vector<T>& values) {
    return reinterpret_cast<T*>(fill(name, values).data());
  }
  // Nothing but NaN before the launch.
  template <typename T>
  T* output(const std::string& name, size_t count) {
    Guarded& buffer = add(name, count * sizeof(T), sizeof(T));
    std::memset(buffer.data(), 0xff, buffer.size());
    return reinterpret_cast<T*>(buffer.data());
  }

  Results results() const {
    Results all;
    for (const auto& [name, buffer] : buffers_) {
      EXPECT_EQ(buffer->damage(), "");
      all[name] = Bytes(buffer->data(), buffer->data() + buffer->size());
    }
    return all;
  }

 private:
  // Elements lie at multiples of their size, whatever `away` is.
  Guarded& add(const std::string& name, size_t bytes, size_t element) {
    Guarded::Options options = options_;
    options.away = (options.away + element - 1) / element * element;
    return *(buffers_[name] = std::make_unique<Guarded>(name, bytes, options));
  }
  template <typename T>
  Guarded& fill(const std::string& name, const std::vector<T>& values) {
    Guarded& buffer = add(name, values.size() * sizeof(T), sizeof(T));
    if (!values.empty()) std::memcpy(buffer.data(), values.data(), buffer.size());
    return buffer;
  }

  Guarded::Options options_;
  std::map<std::string, std::unique_ptr<Guarded>> buffers_;
};

struct Way {
  Order order;
  Guarded::Side side;
};
inline const std::vector<Way>& ways() {
  static const std::vector<Way> all = {{{Order::kAscending, 0, true}, Guarded::kBehind},
                                       {{Order::kDescending, 0, true}, Guarded::kBefore},
                                       {{Order::kShuffled, 1, false}, Guarded::kBehind},
                                       {{Order::kShuffled, 2, true}, Guarded::kBefore}};
  return all;
}

// What run(Buffers&) leaves, the same whoever is first and on whichever side of its buffers memory ends. `away`: bytes
// between buffers and that end, so that their addresses are no multiples of 16.
template <typename Run>
Results in_every_order(const Run& run, size_t away = 0) {
  Results first;
  for (const Way& way : ways()) {
    set_order(way.order);
    Buffers buffers({.side = way.side, .away = away});
    run(buffers);
    const Results results = buffers.results();
    if (first.empty()) first = results;
    for (const auto& [name, bytes] : results)
      EXPECT_TRUE(bytes == first[name]) << name << " depends on the order: " << way.order.kind << " " << way.order.seed;
  }
  set_order({});
  return first;
}

template <typename T>
std::vector<T> values_of(const Results& results, const std::string& name) {
  const Bytes& bytes = results.at(name);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline float wide(float x) { return x; }
inline float wide(double x) { return static_cast<float>(x); }
inline float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return __float2bfloat16_rn(x);
}
template <typename T>
constexpr nn::cuda::Element kElement =
    std::is_same_v<T, float> ? nn::cuda::Element::kFloat : nn::cuda::Element::kBFloat16;

// Normal numbers of the stream `name`, times `scale`.
template <typename T>
std::vector<T> normals(const std::string& name, int64_t count, float scale = 1) {
  std::vector<float> numbers(static_cast<size_t>(count));
  RandomStream(11, name).normal(0, numbers);
  std::vector<T> values;
  for (const float number : numbers) values.push_back(rounded<T>(scale * number));
  return values;
}

// The same bits in each; any NaN is as good as another.
template <typename T>
void expect_same(const std::vector<T>& actual, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) == 0) continue;
    if (std::isnan(wide(actual[i])) && std::isnan(wide(expected[i]))) continue;
    FAIL() << what << "[" << i << "] is " << wide(actual[i]) << ", not " << wide(expected[i]);
  }
}

// As a fp32 tensor.
template <typename T>
at::Tensor tensor(const std::vector<T>& values, at::IntArrayRef shape) {
  at::Tensor result = at::empty(shape, at::kFloat);
  EXPECT_EQ(static_cast<size_t>(result.numel()), values.size());
  float* const data = result.mutable_data_ptr<float>();
  for (size_t i = 0; i < values.size(); ++i) data[i] = wide(values[i]);
  return result;
}
// Of the largest value: what fp32 sums of a few thousand numbers, or the rounding to bf16, may differ by.
template <typename T>
constexpr double kBound = std::is_same_v<T, float> ? 3e-6 : 0.004;

// The sum over a block as device.cuh promises its order: `of_thread` by thread, a multiple of 32.
template <typename V, typename Join>
V block_sum(std::vector<V> of_thread, V empty, const Join& join) {
  V total = empty;
  for (size_t warp = 0; warp < of_thread.size(); warp += 32) {
    V* const lane = of_thread.data() + warp;
    for (size_t step = 16; step > 0; step /= 2)
      for (size_t i = 0; i < step; ++i) lane[i] = join(lane[i], lane[i + step]);
    total = join(total, lane[0]);
  }
  return total;
}
inline constexpr size_t kThreads = 256;

}  // namespace lockstep::emulation
