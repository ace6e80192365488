// The scan of a state space, by the CPU's kernels and by LibTorch's operators, against the recurrence of single tokens in fp64 and its autograd.
#include "lockstep/nn/state_space_core.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_device.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

struct Path {
  std::string name;
  decltype(&scan_forward) forward;
  decltype(&add_first_states) add_first;
  decltype(&scan_backward_first) backward_first;
  decltype(&scan_backward) backward;
  decltype(&scan_step) step;
};
const Path kPaths[] = {
    {"kernels", scan_forward, add_first_states, scan_backward_first, scan_backward, scan_step},
    {"operators", scan_forward_device, add_first_states_device, scan_backward_first_device, scan_backward_device,
     scan_step_device},
};

struct Case {
  int64_t tokens = 37, heads = 4, groups = 2, channels = 8, numbers = 4, chunk = 16, pieces = 1;
  std::vector<int64_t> begins{};  // of documents, in both sequences; of the second one token later
  double power = 1;               // scale of a
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
  double floor = 0;  // what is smaller is compared as if it were this large
  std::string name() const {
    return cat("T ", tokens, " H ", heads, " G ", groups, " P ", channels, " N ", numbers, " chunk ", chunk, " pieces ", pieces, " begins ",
               begins.size(), " power ", power);
  }
};

constexpr int64_t kBatch = 2;

// Views of rows that hold more, as a projection's output is. Small tokens of C B^T keep sums near 1.
Scan scan_of(const Case& c) {
  const int64_t x = c.heads * c.channels, n = c.groups * c.numbers;
  const at::Tensor all = random("xbc", {kBatch, c.tokens, x + 2 * n + 3}).to(c.dtype);
  Scan scan{.x = all.narrow(2, 0, x).unflatten(2, {c.heads, c.channels}),
            .b = all.narrow(2, x, n).unflatten(2, {c.groups, c.numbers}),
            .c = all.narrow(2, x + n, n).unflatten(2, {c.groups, c.numbers}),
            .delta = at::softplus(random("delta", {kBatch, c.tokens, c.heads}) - 1).contiguous(),
            .a = -at::exp(random("a", {c.heads}, 0.5)) * c.power,
            .d = random("d", {c.heads}),
            .chunk = c.chunk,
            .pieces = c.pieces};
  if (!c.begins.empty()) {
    scan.begins = at::zeros({kBatch, c.tokens}, at::kByte);
    for (int64_t row = 0; row < kBatch; ++row)
      for (const int64_t begin : c.begins) scan.begins[row][std::min(begin + row, c.tokens - 1)] = 1;
  }
  return scan;
}

// max |actual - expected| / max(max |expected|, floor)
void expect_close(const at::Tensor& actual, const at::Tensor& expected, const char* what, const Case& c) {
  const at::Tensor difference = actual.to(at::kDouble) - expected.detach().view(actual.sizes());
  EXPECT_LE(difference.abs().max().item<double>(), c.bound * std::max(expected.abs().max().item<double>(), c.floor)) << what;
}

at::Tensor wide(const at::Tensor& x) { return x.detach().to(at::kDouble, false, /*copy=*/true).requires_grad_(true); }

// Leaves in fp64, the outputs [B, T, H, P] and the state behind all tokens.
struct Reference {
  at::Tensor x, b, c, delta, a, d, first, y, last;
};
Reference reference_of(const Scan& scan, const at::Tensor& first) {
  Reference r{.x = wide(scan.x), .b = wide(scan.b), .c = wide(scan.c), .delta = wide(scan.delta), .a = wide(scan.a), .d = wide(scan.d),
              .first = wide(first), .y = {}, .last = {}};
  const int64_t heads = scan.x.size(2), of_group = heads / scan.b.size(2);
  const at::Tensor b = r.b.repeat_interleave(of_group, 2), c = r.c.repeat_interleave(of_group, 2);
  const at::Tensor decay = at::exp(r.delta * r.a).unsqueeze(-1).unsqueeze(-1);
  at::Tensor state = r.first;
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < scan.x.size(1); ++t) {
    if (scan.begins.defined()) state = state * scan.begins.select(1, t).eq(0).to(at::kDouble).view({-1, 1, 1, 1});
    const at::Tensor x = r.x.select(1, t);
    state = state * decay.select(1, t) + (r.delta.select(1, t).unsqueeze(-1) * x).unsqueeze(-1) * b.select(1, t).unsqueeze(2);
    outputs.push_back(at::matmul(state, c.select(1, t).unsqueeze(-1)).squeeze(-1) + r.d.unsqueeze(-1) * x);
  }
  r.y = at::stack(outputs, 1);
  r.last = state;
  return r;
}

struct Made {
  at::Tensor y, last, dfirst;
  ScanGradients gradients;
};

// Scans pieces each by itself, then joins them: the state before the sequence is `first`, the gradient of the one behind it `dlast`, both [B, H, P, N].
Made scan_in_pieces(const Path& path, const Scan& scan, const at::Tensor& first, const at::Tensor& dy, const at::Tensor& dlast) {
  ScanStates states;
  Made made{.y = path.forward(scan, &states), .last = {}, .dfirst = dlast, .gradients = {}};
  const auto decay = [&](int64_t piece) { return states.decay.select(1, piece).unsqueeze(-1).unsqueeze(-1); };
  at::Tensor firsts = at::empty_like(states.after), dlasts = at::empty_like(states.after), state = first;
  for (int64_t piece = 0; piece < scan.pieces; ++piece) {
    firsts.select(1, piece).copy_(state);
    state = state * decay(piece) + states.after.select(1, piece);
  }
  path.add_first(scan, firsts, states, made.y);
  made.last = state;
  const at::Tensor dfirsts = path.backward_first(scan, dy);
  for (int64_t piece = scan.pieces; piece-- > 0;) {
    dlasts.select(1, piece).copy_(made.dfirst);
    made.dfirst = made.dfirst * decay(piece) + dfirsts.select(1, piece);
  }
  // Gradients are views of one row too.
  const int64_t x = scan.x.size(2) * scan.x.size(3), n = scan.b.size(2) * scan.b.size(3);
  const at::Tensor all = at::zeros({scan.x.size(0), scan.x.size(1), x + 2 * n}, scan.x.options());
  made.gradients = {.dx = all.narrow(2, 0, x).view(scan.x.sizes()),
                    .db = all.narrow(2, x, n).view(scan.b.sizes()),
                    .dc = all.narrow(2, x + n, n).view(scan.b.sizes()),
                    .ddelta = at::empty_like(scan.delta),
                    .da = at::zeros_like(scan.a),
                    .dd = at::zeros_like(scan.d)};
  path.backward(scan, states, dy, dlasts, made.gradients);
  return made;
}

void check(const Case& c) {
  SCOPED_TRACE(c.name());
  const Scan scan = scan_of(c);
  const at::Tensor first = random("first", {kBatch, c.heads, c.channels, c.numbers}), dlast = random("dlast", first.sizes());
  const at::Tensor dy = random("dy", scan.x.sizes()).to(c.dtype);
  const Reference r = reference_of(scan, first);
  ((r.y * dy.to(at::kDouble)).sum() + (r.last * dlast.to(at::kDouble)).sum()).backward();
  for (const Path& path : kPaths) {
    SCOPED_TRACE(path.name);
    const Made made = scan_in_pieces(path, scan, first, dy, dlast);
    EXPECT_EQ(made.y.scalar_type(), c.dtype);
    expect_close(made.y, r.y, "y", c);
    expect_close(made.last, r.last, "last state", c);
    expect_close(made.dfirst, r.first.grad(), "gradient of the first state", c);
    expect_close(made.gradients.dx, r.x.grad(), "dx", c);
    expect_close(made.gradients.db, r.b.grad(), "db", c);
    expect_close(made.gradients.dc, r.c.grad(), "dc", c);
    expect_close(made.gradients.ddelta, r.delta.grad(), "ddelta", c);
    expect_close(made.gradients.da, r.a.grad(), "da", c);
    expect_close(made.gradients.dd, r.d.grad(), "dd", c);
  }
}

TEST(StateSpaceCore, MatchesTheRecurrenceInChunksOfAnySize) {
  for (const int64_t chunk : {1, 2, 5, 16, 37, 256}) check({.chunk = chunk});
  for (const int64_t chunk : {64, 100, 256}) check({.tokens = 150, .heads = 2, .groups = 1, .channels = 20, .numbers = 16, .chunk = chunk});
}

TEST(StateSpaceCore, MatchesTheRecurrenceWithHeadsOfAnyGroups) {
  for (const int64_t groups : {1, 2, 4}) check({.groups = groups});
  check({.tokens = 70, .heads = 10, .groups = 1, .channels = 64, .numbers = 128, .chunk = 64});  // heads in two parts
  check({.tokens = 20, .heads = 18, .groups = 2, .channels = 3, .numbers = 5});
  check({.tokens = 1, .heads = 1, .groups = 1});
}

TEST(StateSpaceCore, ADocumentSeesNoStateBeforeIt) {
  const std::vector<int64_t> begins = {0, 3, 4, 18, 30};
  for (const int64_t chunk : {1, 5, 16, 37}) check({.chunk = chunk, .begins = begins});
  check({.tokens = 150, .heads = 2, .groups = 1, .channels = 20, .numbers = 16, .chunk = 100, .begins = {64, 65, 90, 149}});
  check({.tokens = 38, .chunk = 5, .pieces = 2, .begins = {7, 18}});
  check({.tokens = 39, .chunk = 4, .pieces = 3, .begins = {13}});
}

TEST(StateSpaceCore, PiecesAreJoinedByTheirStates) {
  check({.tokens = 38, .chunk = 5, .pieces = 2});
  check({.tokens = 40, .chunk = 64, .pieces = 4});
  check({.tokens = 300, .heads = 2, .groups = 1, .channels = 8, .numbers = 16, .chunk = 128, .pieces = 2});
}

// Powers of hundreds to millions lose digits where they are summed over a chunk first.
TEST(StateSpaceCore, StrongDecaysStayFinite) {
  for (const double power : {30.0, 1000.0, 1e6}) {
    check({.tokens = 100, .heads = 2, .groups = 1, .chunk = 64, .power = power, .bound = 1e-4, .floor = 1});
    check({.tokens = 100, .heads = 2, .groups = 1, .chunk = 16, .pieces = 2, .begins = {40}, .power = power, .bound = 1e-4, .floor = 1});
  }
}

TEST(StateSpaceCore, Bf16RoundsOperandsAndResultsAlone) {
  check({.tokens = 100, .chunk = 64, .dtype = at::kBFloat16, .bound = 4e-3});
  check({.tokens = 30, .heads = 10, .groups = 1, .channels = 20, .numbers = 16, .begins = {9}, .dtype = at::kBFloat16, .bound = 4e-3});
}

// With states kept or not, before a piece none or zeros; any number of threads; gradients into the memory of dy: the same bits.
TEST(StateSpaceCore, HasOneOrderOfSums) {
  const Scan scan = scan_of({.tokens = 150, .heads = 10, .groups = 1, .channels = 20, .numbers = 16, .chunk = 70, .begins = {80}});
  const at::Tensor none = at::zeros({kBatch, 10, 20, 16}), dy = random("dy", scan.x.sizes());
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Made expected = scan_in_pieces(kPaths[0], scan, none, dy, none);
  at::set_num_threads(3);
  const Made again = scan_in_pieces(kPaths[0], scan, none, dy, none);
  ScanStates states;
  EXPECT_TRUE(scan_forward(scan, &states).equal(expected.y));
  EXPECT_TRUE(scan_forward(scan, nullptr).equal(expected.y));
  ScanGradients in_place = again.gradients;
  in_place.dx = dy.clone();
  scan_backward(scan, states, in_place.dx, {}, in_place);
  at::set_num_threads(threads);
  EXPECT_TRUE(in_place.dx.equal(expected.gradients.dx));
  EXPECT_TRUE(in_place.da.equal(2 * expected.gradients.da)) << "gradients of a are added";
  EXPECT_TRUE(in_place.dd.equal(2 * expected.gradients.dd)) << "gradients of d are added";
  EXPECT_TRUE(again.y.equal(expected.y));
  EXPECT_TRUE(again.gradients.db.equal(expected.gradients.db));
  EXPECT_TRUE(again.gradients.ddelta.equal(expected.gradients.ddelta));
}

TEST(StateSpaceCore, AStepIsTheScanOfOneToken) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c{.tokens = 9, .heads = 4, .groups = 2, .channels = 5, .numbers = 20, .dtype = dtype};
    const Scan scan = scan_of(c);
    ScanStates states;
    const at::Tensor expected = scan_forward(scan, &states);
    for (const Path& path : kPaths) {
      SCOPED_TRACE(path.name);
      const at::Tensor state = at::zeros({kBatch, c.heads, c.channels, c.numbers});
      std::vector<at::Tensor> outputs;
      for (int64_t t = 0; t < c.tokens; ++t) {
        const auto token = [&](const at::Tensor& x) { return x.narrow(1, t, 1); };
        outputs.push_back(path.step({.x = token(scan.x), .b = token(scan.b), .c = token(scan.c), .delta = token(scan.delta).contiguous(),
                                     .a = scan.a, .d = scan.d},
                                    state));
      }
      expect_close(at::cat(outputs, 1), expected, "y", dtype == at::kFloat ? 1e-5 : 4e-3);
      expect_close(state, states.after.squeeze(1), "state", 1e-5);
    }
  }
}

TEST(StateSpaceCore, RefusesWhatDoesNotFit) {
  const Scan good = scan_of({});
  Scan scan = good;
  scan.pieces = 2;  // of 37 tokens
  EXPECT_THROW(scan_forward(scan, nullptr), InternalError);
  scan = good;
  scan.delta = scan.delta.narrow(1, 0, 36);
  EXPECT_THROW(scan_forward(scan, nullptr), InternalError);
  scan = good;
  scan.b = scan.b.to(at::kBFloat16);
  EXPECT_THROW(scan_forward(scan, nullptr), InternalError);
  scan = good;
  scan.chunk = 0;
  EXPECT_THROW(scan_forward(scan, nullptr), InternalError);
}

}  // namespace
}  // namespace lockstep::nn
