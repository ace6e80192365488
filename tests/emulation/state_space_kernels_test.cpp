// The kernels of a state space against those of the CPU: heads in groups, channels of more than one block, pieces, documents, chunks that tiles do
// not divide; the same bits whoever is first, and nothing beyond their buffers.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "emulation/launches.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cuda/state_space.cuh"
#include "lockstep/nn/state_space_core.h"
#include "support/tensors.h"

namespace lockstep::emulation {
namespace {

using nn::cuda::Strided;
using testing::expect_close;

template <typename T>
class StateSpaceKernels : public ::testing::Test {};
using Types = ::testing::Types<float, __nv_bfloat16>;
TYPED_TEST_SUITE(StateSpaceKernels, Types);

struct Case {
  int64_t tokens = 70, heads = 4, groups = 2, channels = 5, numbers = 10, chunk = 48, pieces = 1;
  std::vector<int64_t> begins = {};
  int64_t batch = 2;
};
const std::vector<Case> kCases = {
    {},
    {.heads = 2, .groups = 1, .channels = 37, .numbers = 16, .chunk = 32},
    {.tokens = 90, .heads = 2, .chunk = 20, .pieces = 3, .begins = {7, 30, 61, 62}},
    {.tokens = 33, .heads = 1, .groups = 1, .channels = 3, .numbers = 70, .chunk = 256, .begins = {32}, .batch = 1},
    {.tokens = 1, .heads = 2, .groups = 2, .channels = 1, .numbers = 1, .chunk = 1, .batch = 1},
};

template <typename T>
class Given {
 public:
  explicit Given(const Case& of) : c(of), chunks((of.tokens / of.pieces + of.chunk - 1) / of.chunk) {
    const int64_t rows = c.batch * c.tokens;
    x = normals<T>("x", rows * c.heads * c.channels), dy = normals<T>("dy", rows * c.heads * c.channels);
    b = normals<T>("b", rows * c.groups * c.numbers), cc = normals<T>("c", rows * c.groups * c.numbers);
    for (const float value : normals<float>("delta", rows * c.heads)) delta.push_back(0.1f * std::log1p(std::exp(value)));
    for (const float value : normals<float>("a", c.heads)) a.push_back(-std::exp(value));
    d = normals<float>("d", c.heads);
    first = normals<float>("first", states()), last = normals<float>("last", states());
    if (c.begins.empty()) return;
    begins.assign(static_cast<size_t>(rows), 0);
    for (const int64_t at : c.begins)
      for (int64_t i = 0; i < c.batch; ++i) begins[static_cast<size_t>(i * c.tokens + std::min(at + i, c.tokens - 1))] = 1;
  }
  int64_t states() const { return c.batch * c.pieces * c.heads * c.channels * c.numbers; }
  std::vector<int64_t> state_shape() const { return {c.batch, c.pieces, c.heads, c.channels, c.numbers}; }
  std::vector<int64_t> rows_shape() const { return {c.batch, c.tokens, c.heads, c.channels}; }
  std::vector<int64_t> group_shape() const { return {c.batch, c.tokens, c.groups, c.numbers}; }

  nn::Scan scan() const;
  static at::Tensor typed(const std::vector<T>& values, const std::vector<int64_t>& shape) {
    return tensor(values, shape).to(std::is_same_v<T, float> ? at::kFloat : at::kBFloat16);
  }
  Strided rows(void* data) const { return {data, c.tokens * c.heads * c.channels, c.heads * c.channels, c.channels}; }
  Strided groups(void* data) const { return {data, c.tokens * c.groups * c.numbers, c.groups * c.numbers, c.numbers}; }
  nn::cuda::ScanInputs inputs(Buffers& buffers) const {
    return {.sizes = {.batch = c.batch, .tokens = c.tokens, .heads = c.heads, .groups = c.groups, .channels = c.channels, .numbers = c.numbers,
                      .pieces = c.pieces, .chunk = c.chunk, .chunks = chunks},
            .x = rows(const_cast<T*>(buffers.input("x", x))),
            .b = groups(const_cast<T*>(buffers.input("b", b))),
            .c = groups(const_cast<T*>(buffers.input("c", cc))),
            .delta = buffers.input("delta", delta),
            .a = buffers.input("a", a),
            .d = buffers.input("d", d),
            .begins = begins.empty() ? nullptr : buffers.input("begins", begins)};
  }

  const Case c;
  const int64_t chunks;
  std::vector<T> x, dy, b, cc;
  std::vector<float> delta, a, d, first, last;
  std::vector<uint8_t> begins;
};

at::Tensor bytes(const std::vector<uint8_t>& values, at::IntArrayRef shape) {
  const at::Tensor result = at::empty(shape, at::kByte);
  std::ranges::copy(values, result.mutable_data_ptr<uint8_t>());
  return result;
}

template <typename T>
nn::Scan Given<T>::scan() const {
  nn::Scan scan{.x = typed(x, rows_shape()), .b = typed(b, group_shape()), .c = typed(cc, group_shape()),
                .delta = tensor(delta, {c.batch, c.tokens, c.heads}), .a = tensor(a, {c.heads}), .d = tensor(d, {c.heads}), .chunk = c.chunk};
  scan.pieces = c.pieces;
  if (!begins.empty()) scan.begins = bytes(begins, {c.batch, c.tokens});
  return scan;
}

TYPED_TEST(StateSpaceKernels, ScanForwardAndWhatStatesBeforeItAdd) {
  using T = TypeParam;
  for (const Case& c : kCases) {
    SCOPED_TRACE(cat("tokens ", c.tokens, " channels ", c.channels, " numbers ", c.numbers, " pieces ", c.pieces));
    const Given<T> given(c);
    const Results results = in_every_order([&](Buffers& buffers) {
      const auto count = static_cast<size_t>(given.states());
      const nn::cuda::ScanForward call{.in = given.inputs(buffers),
                                       .y = given.rows(buffers.output<T>("y", given.x.size())),
                                       .before = buffers.output<float>("before", count * static_cast<size_t>(given.chunks)),
                                       .after = buffers.output<float>("after", count),
                                       .decay = buffers.output<float>("decay", static_cast<size_t>(c.batch * c.pieces * c.heads))};
      nn::cuda::launch_scan_forward(nullptr, kElement<T>, call);
      nn::cuda::launch_scan_first(nullptr, kElement<T>, {.in = call.in, .first = buffers.input("first", given.first), .before = call.before, .y = call.y});
    });
    nn::ScanStates states;
    const nn::Scan scan = given.scan();
    const at::Tensor y = nn::scan_forward(scan, &states);
    nn::add_first_states(scan, tensor(given.first, given.state_shape()), states, y);
    expect_close(tensor(values_of<T>(results, "y"), given.rows_shape()), y.to(at::kFloat), "y", 2 * kBound<T>);
    expect_close(tensor(values_of<float>(results, "before"), states.before.sizes().vec()), states.before, "before", 1e-5);
    expect_close(tensor(values_of<float>(results, "after"), given.state_shape()), states.after, "after", 1e-5);
    expect_close(tensor(values_of<float>(results, "decay"), states.decay.sizes().vec()), states.decay, "decay", 1e-5);
  }
}

TYPED_TEST(StateSpaceKernels, ScanBackward) {
  using T = TypeParam;
  for (const Case& c : kCases)
    for (const bool with_last : {true, false}) {
      SCOPED_TRACE(cat("tokens ", c.tokens, " channels ", c.channels, " numbers ", c.numbers, " pieces ", c.pieces));
      const Given<T> given(c);
      const nn::Scan scan = given.scan();
      nn::ScanStates states;
      nn::scan_forward(scan, &states);
      const std::vector<float> before(states.before.data_ptr<float>(), states.before.data_ptr<float>() + states.before.numel());
      const Results results = in_every_order([&](Buffers& buffers) {
        const nn::cuda::ScanInputs in = given.inputs(buffers);
        const Strided dy = given.rows(const_cast<T*>(buffers.input("dy", given.dy)));
        nn::cuda::launch_scan_backward_first(nullptr, kElement<T>,
                                             {.in = in, .dy = dy, .dfirst = buffers.output<float>("dfirst", static_cast<size_t>(given.states()))});
        const size_t space = static_cast<size_t>(nn::cuda::scan_backward_workspace(in.sizes) + 1) / 2;
        nn::cuda::launch_scan_backward(
            nullptr, kElement<T>,
            {.in = in,
             .before = buffers.input("before", before),
             .dy = dy,
             .dlast = with_last ? buffers.input("last", given.last) : nullptr,
             .dx = given.rows(buffers.output<T>("dx", given.x.size())),
             .db = given.groups(buffers.output<T>("db", given.b.size())),
             .dc = given.groups(buffers.output<T>("dc", given.b.size())),
             .ddelta = buffers.output<float>("ddelta", given.delta.size()),
             .da = buffers.inout("da", std::vector<float>(given.a.size(), 1.0f)),
             .dd = buffers.inout("dd", std::vector<float>(given.a.size(), 2.0f)),
             .workspace = reinterpret_cast<float*>(buffers.output<double>("workspace", space))});
      });
      const at::Tensor dy = Given<T>::typed(given.dy, given.rows_shape());
      nn::ScanGradients expected{.dx = at::empty_like(scan.x), .db = at::empty_like(scan.b), .dc = at::empty_like(scan.c),
                                 .ddelta = at::empty_like(scan.delta), .da = at::zeros_like(scan.a), .dd = at::zeros_like(scan.d)};
      expect_close(tensor(values_of<float>(results, "dfirst"), given.state_shape()), nn::scan_backward_first(scan, dy), "dfirst", 1e-5);
      nn::scan_backward(scan, states, dy, with_last ? tensor(given.last, given.state_shape()) : at::Tensor(), expected);
      const auto same = [&](const char* name, const at::Tensor& of, double bound) {
        expect_close(tensor(values_of<T>(results, name), of.sizes().vec()), of.to(at::kFloat), name, bound);
      };
      same("dx", expected.dx, 2 * kBound<T>);
      same("db", expected.db, 2 * kBound<T>);
      same("dc", expected.dc, 2 * kBound<T>);
      expect_close(tensor(values_of<float>(results, "ddelta"), scan.delta.sizes().vec()), expected.ddelta, "ddelta", 2e-5);
      expect_close(tensor(values_of<float>(results, "da"), {c.heads}), expected.da + 1, "da", 2e-5);
      expect_close(tensor(values_of<float>(results, "dd"), {c.heads}), expected.dd + 2, "dd", 2e-5);
    }
}

struct Filter {
  int64_t batch = 2, tokens = 12, channels = 7, width = 4, pieces = 1;
  bool bias = true, before = false;
  std::vector<int64_t> begins = {};
};

TYPED_TEST(StateSpaceKernels, Convolution) {
  using T = TypeParam;
  for (const Filter& f : {Filter{}, Filter{.channels = 300, .width = 2, .bias = false}, Filter{.pieces = 3, .before = true, .begins = {1, 5}},
                          Filter{.tokens = 2, .width = 8, .begins = {1}}, Filter{.tokens = 4, .pieces = 2, .before = true}}) {
    const int64_t rows = f.batch * f.tokens;
    const std::vector<T> x = normals<T>("x", rows * f.channels), dy = normals<T>("dy", rows * f.channels), weight = normals<T>("w", f.channels * f.width),
                         bias = normals<T>("bias", f.channels), before = normals<T>("before", f.batch * f.pieces * (f.width - 1) * f.channels);
    std::vector<uint8_t> begins(static_cast<size_t>(f.begins.empty() ? 0 : rows), 0);
    for (const int64_t at : f.begins)
      for (int64_t i = 0; i < f.batch; ++i) begins[static_cast<size_t>(i * f.tokens + at)] = 1;
    const std::vector<int64_t> shape = {f.batch, f.tokens, f.channels}, before_shape = {f.batch, f.pieces, f.width - 1, f.channels};
    const Results results = in_every_order([&](Buffers& buffers) {
      const nn::cuda::ConvolutionInputs in{.batch = f.batch, .tokens = f.tokens, .channels = f.channels, .width = f.width, .pieces = f.pieces,
                                           .x = buffers.input("x", x), .x_batch = f.tokens * f.channels, .x_token = f.channels,
                                           .weight = buffers.input("w", weight), .bias = f.bias ? buffers.input("bias", bias) : nullptr,
                                           .begins = begins.empty() ? nullptr : buffers.input("begins", begins),
                                           .before = f.before ? buffers.input("before", before) : nullptr};
      nn::cuda::launch_convolution(nullptr, kElement<T>, in, buffers.output<T>("y", x.size()));
      const T* const gradient = buffers.input("dy", dy);
      nn::cuda::launch_convolution_backward(nullptr, kElement<T>,
                                            {.in = in, .dy = gradient, .dy_batch = in.x_batch, .dy_token = in.x_token,
                                             .dx = buffers.output<T>("dx", x.size()), .dx_batch = in.x_batch, .dx_token = in.x_token,
                                             .dbefore = f.before ? buffers.output<float>("dbefore", before.size()) : nullptr});
      nn::cuda::launch_convolution_weight_backward(
          nullptr, kElement<T>,
          {.in = in, .dy = gradient, .dy_batch = in.x_batch, .dy_token = in.x_token,
           .partial = buffers.output<float>("partial", static_cast<size_t>(nn::cuda::kStripes * f.channels * (f.width + 1))),
           .dweight = buffers.inout("dweight", std::vector<float>(weight.size(), 1.0f)),
           .dbias = f.bias ? buffers.inout("dbias", std::vector<float>(bias.size(), 2.0f)) : nullptr});
    });
    nn::Convolution of{.x = Given<T>::typed(x, shape), .weight = Given<T>::typed(weight, {f.channels, f.width}),
                       .bias = f.bias ? Given<T>::typed(bias, {f.channels}) : at::Tensor()};
    of.pieces = f.pieces;
    if (!begins.empty()) of.begins = bytes(begins, {f.batch, f.tokens});
    if (f.before) of.before = Given<T>::typed(before, before_shape);
    expect_close(tensor(values_of<T>(results, "y"), shape), nn::convolve(of).to(at::kFloat), "y", kBound<T>);
    const at::Tensor gradient = Given<T>::typed(dy, shape), dweight = at::zeros({f.channels, f.width}) + 1, dbias = at::zeros({f.channels}) + 2;
    nn::convolve_backward_weight(of, gradient, dweight, f.bias ? dbias : at::Tensor());
    const at::Tensor dbefore = at::zeros(before_shape), dx = at::empty_like(of.x);
    nn::convolve_backward_input(of, gradient, {.dx = dx, .dbefore = f.before ? dbefore : at::Tensor()});
    expect_close(tensor(values_of<T>(results, "dx"), shape), dx.to(at::kFloat), "dx", kBound<T>);
    if (f.before) expect_close(tensor(values_of<float>(results, "dbefore"), before_shape), dbefore, "dbefore", 1e-5);
    expect_close(tensor(values_of<float>(results, "dweight"), {f.channels, f.width}), dweight, "dweight", 1e-5);
    if (f.bias) expect_close(tensor(values_of<float>(results, "dbias"), {f.channels}), dbias, "dbias", 1e-5);
  }
}

}  // namespace
}  // namespace lockstep::emulation
