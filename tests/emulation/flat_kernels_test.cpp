// Kernels over flat buffers: AdamW, the sum of squares, the search for what is not finite.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <limits>

#include "emulation/launches.h"
#include "support/tensors.h"

namespace lockstep::emulation {
namespace {

using nn::cuda::AdamWElement;
using nn::cuda::AdamWStep;
using testing::expect_close;

// More than a launch takes; some have no element, one has more than a block's share.
std::vector<int64_t> sizes() {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < 101; ++i) all.push_back(i % 7 == 3 ? 0 : 1 + i * i % 41);
  all[0] = 0;
  all[20] = 4500;
  all[47] = 2048;
  all[48] = 2049;
  return all;
}

struct Piece {
  std::vector<float> value, grad, exp_avg, exp_avg_sq;
  bool decay, copied;
};

std::vector<Piece> pieces() {
  std::vector<Piece> all;
  for (const int64_t size : sizes()) {
    const std::string name = std::to_string(all.size());
    Piece piece{normals<float>("value" + name, size), normals<float>("grad" + name, size), normals<float>("m" + name, size),
                normals<float>("v" + name, size), all.size() % 2 == 0, all.size() % 3 == 0};
    for (float& v : piece.exp_avg_sq) v *= v;
    all.push_back(std::move(piece));
  }
  return all;
}

constexpr float kScale = 0.25f;
AdamWStep step() {
  return {.lr = 0.01f, .eps = 1e-8f, .take1 = 0.1f, .keep2 = 0.95f, .take2 = 0.05f, .weight_decay = 0.1f,
          .bias1 = static_cast<float>(1 - std::pow(0.9, 3)), .root_bias2 = static_cast<float>(std::sqrt(1 - std::pow(0.95, 3)))};
}

Results launch_adamw(const std::vector<Piece>& all) {
  return in_every_order([&](Buffers& buffers) {
    std::vector<nn::cuda::AdamWPiece> pointers;
    for (const Piece& piece : all) {
      const std::string name = std::to_string(pointers.size());
      pointers.push_back({.value = buffers.inout("value" + name, piece.value),
                          .grad = const_cast<float*>(buffers.input("grad" + name, piece.grad)),
                          .exp_avg = buffers.inout("m" + name, piece.exp_avg),
                          .exp_avg_sq = buffers.inout("v" + name, piece.exp_avg_sq),
                          .copy = piece.copied ? buffers.output<__nv_bfloat16>("copy" + name, piece.value.size()) : nullptr,
                          .size = static_cast<int64_t>(piece.value.size()),
                          .decay = piece.decay});
    }
    nn::cuda::launch_adamw(nullptr, pointers.data(), static_cast<int>(pointers.size()), step(), kScale);
  });
}

TEST(FlatKernels, AdamWHasTheBitsOfItsMathematics) {
  const std::vector<Piece> all = pieces();
  const Results results = launch_adamw(all);
  for (size_t i = 0; i < all.size(); ++i) {
    Piece expected = all[i];
    std::vector<__nv_bfloat16> copy;
    AdamWStep of_piece = step();
    if (!expected.decay) of_piece.weight_decay = 0;
    for (size_t j = 0; j < expected.value.size(); ++j) {
      const AdamWElement next = nn::cuda::adamw({expected.value[j], expected.exp_avg[j], expected.exp_avg_sq[j]},
                                                expected.grad[j] * kScale, of_piece);
      expected.value[j] = next.value;
      expected.exp_avg[j] = next.exp_avg;
      expected.exp_avg_sq[j] = next.exp_avg_sq;
      copy.push_back(__float2bfloat16_rn(next.value));
    }
    const std::string name = std::to_string(i);
    expect_same(values_of<float>(results, "value" + name), expected.value, "value" + name);
    expect_same(values_of<float>(results, "m" + name), expected.exp_avg, "m" + name);
    expect_same(values_of<float>(results, "v" + name), expected.exp_avg_sq, "v" + name);
    if (expected.copied) expect_same(values_of<__nv_bfloat16>(results, "copy" + name), copy, "copy" + name);
  }
}

TEST(FlatKernels, AdamWIsLibTorchs) {
  const std::vector<Piece> all = pieces();
  const Results results = launch_adamw(all);
  for (size_t i = 0; i < all.size(); ++i) {
    const Piece& piece = all[i];
    const auto size = static_cast<int64_t>(piece.value.size());
    if (size == 0) continue;
    at::Tensor value = tensor(piece.value, {size}), grad = tensor(piece.grad, {size});
    at::Tensor m = tensor(piece.exp_avg, {size}), v = tensor(piece.exp_avg_sq, {size});
    at::_fused_adamw_({value}, {grad}, {m}, {v}, {}, {at::full({}, 3.0)}, 0.01, 0.9, 0.95, piece.decay ? 0.1 : 0.0, 1e-8,
                      false, false, at::full({}, 1 / kScale));
    const std::string name = std::to_string(i);
    expect_close(tensor(values_of<float>(results, "value" + name), {size}), value, "value" + name, 1e-6);
    expect_close(tensor(values_of<float>(results, "m" + name), {size}), m, "m" + name, 1e-6);
    expect_close(tensor(values_of<float>(results, "v" + name), {size}), v, "v" + name, 1e-6);
  }
}

// 1024 blocks of 256 threads, each thread every 262144th value; then 256 threads, each every 256th block.
double plain_square_sum(const std::vector<float>& values) {
  const auto add = [](double a, double b) { return a + b; };
  const auto blocks = static_cast<size_t>(nn::cuda::kSquareBlocks);
  std::vector<double> of_thread(blocks * kThreads), of_last(kThreads);
  for (size_t i = 0; i < values.size(); ++i)
    of_thread[i % of_thread.size()] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  for (size_t block = 0; block < blocks; ++block) {
    const auto first = of_thread.begin() + static_cast<std::ptrdiff_t>(block * kThreads);
    of_last[block % kThreads] += block_sum(std::vector<double>(first, first + kThreads), 0.0, add);
  }
  return block_sum(of_last, 0.0, add);
}

TEST(FlatKernels, SumOfSquares) {
  for (const int64_t n : {0, 3, 300001}) {
    const std::vector<float> values = normals<float>("values", n);
    const auto run = [&](Buffers& buffers) {
      double* const partial = buffers.output<double>("partial", static_cast<size_t>(nn::cuda::kSquareBlocks));
      nn::cuda::launch_square_sum(nullptr, buffers.input("values", values), n, partial, buffers.output<double>("sum", 1));
    };
    Buffers some(Guarded::Options{});
    if (n <= 3) run(some);
    const Results results = n <= 3 ? some.results() : in_every_order(run);
    const double sum = values_of<double>(results, "sum").at(0);
    EXPECT_EQ(sum, plain_square_sum(values));
    if (n > 0) {
      EXPECT_NEAR(sum / tensor(values, {n}).to(at::kDouble).square().sum().item<double>(), 1, 1e-12);
    }
  }
}

TEST(FlatKernels, MarksWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> values;
  for (const int64_t size : sizes()) values.push_back(normals<float>(std::to_string(values.size()), size));
  // The first and the last value of a piece, one of the second block, one of a piece with a neighbour's flag.
  values[1][0] = -kInfinity;
  values[5].back() = kInfinity;
  values[20][3000] = std::numeric_limits<float>::quiet_NaN();
  values[47].back() = -std::numeric_limits<float>::quiet_NaN();
  values[48].back() = kInfinity;
  values[61][0] = kInfinity;
  values[70][0] = std::numeric_limits<float>::max();  // finite
  const auto flag_of = [](size_t piece) { return piece == 61 ? size_t{60} : piece; };
  std::vector<int32_t> expected(values.size());
  for (const size_t found : {1, 5, 20, 47, 48, 60}) expected[found] = 1;
  expected[90] = 1;  // set before, and never cleared
  std::vector<int32_t> before(values.size());
  before[90] = 1;
  const Results results = in_every_order([&](Buffers& buffers) {
    int32_t* const flags = buffers.inout("flags", before);
    std::vector<nn::cuda::WatchedValues> pieces;
    for (size_t i = 0; i < values.size(); ++i)
      pieces.push_back({.values = buffers.input(std::to_string(i), values[i]),
                        .flag = flags + flag_of(i),
                        .size = static_cast<int64_t>(values[i].size())});
    nn::cuda::launch_mark_nonfinite(nullptr, pieces.data(), static_cast<int>(pieces.size()));
  });
  EXPECT_EQ(values_of<int32_t>(results, "flags"), expected);
}

TEST(FlatKernels, NothingIsNothing) {
  nn::cuda::launch_adamw(nullptr, nullptr, 0, step(), 1);
  nn::cuda::launch_mark_nonfinite(nullptr, nullptr, 0);
  const nn::cuda::WatchedValues empty[2] = {};
  nn::cuda::launch_mark_nonfinite(nullptr, empty, 2);
}

}  // namespace
}  // namespace lockstep::emulation
