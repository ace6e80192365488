// A state space over ranks that hold sequences in pieces against that of whole sequences, and the same comparison where what the pieces tell
// each other, or what ranks are told of their tokens, has one fault: each is found.
#include <ATen/ops/arange.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_split.h"
#include "lockstep/nn/state_space.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/context/piece_exchange.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using config::ContextSplit;
using lockstep::testing::parameter;
using lockstep::testing::random;
using lockstep::testing::relative_error;
using nn::PieceExchange;
using nn::StateSpace;
using nn::TokenPlaces;

constexpr int64_t kBatch = 2, kLength = 23, kHidden = 10;
constexpr double kBound = 1e-5;
// Chunks of 4: pieces of 3 to 12 tokens.
const arch::StateSpaceSizes kSizes{.heads = 4, .head_size = 3, .groups = 2, .state = 5, .convolution = 4, .chunk = 4, .norm_groups = 2};

struct Way {
  int ranks = 2;
  ContextSplit split = ContextSplit::kZigzag;
  bool documents = false;
};

int pieces_of(const Way& way) { return way.ranks * (way.split == ContextSplit::kZigzag ? 2 : 1); }

std::string text_of(const Way& way) {
  return cat("cp ", way.ranks, " ", config::name_of(way.split), way.documents ? " documents" : "");
}

// One that is longer than two pieces, one that ends within a convolution of the border of another.
std::vector<int32_t> documents_of(const Way& way, int64_t sequence) {
  if (!way.documents) return {0};
  return sequence == 0 ? std::vector<int32_t>{0, 4, 13, 22} : std::vector<int32_t>{0, 17};
}

at::Tensor first_seen_of(const Way& way) {  // [B, S]
  const at::Tensor first = at::zeros({kBatch, kLength}, at::kInt);
  for (int64_t b = 0; b < kBatch; ++b)
    for (const int32_t begin : documents_of(way, b)) first.select(0, b).narrow(0, begin, kLength - begin).fill_(begin);
  return first;
}

TokenPlaces whole_places(const Way& way) {
  const at::Tensor index = at::arange(kLength, at::kInt).expand({kBatch, kLength}).contiguous();
  return {.length = kLength, .positions = index.to(at::kLong), .index = index, .first_seen = first_seen_of(way)};
}

// What each rank is told. Pieces are those of a sequence of one document, whatever documents it has.
TokenPlaces places_of(const Way& way, int rank) {
  const auto by_rank = data::split_tokens(kLength, {.ranks = way.ranks, .split = way.split}, std::vector<int32_t>{0});
  TokenPlaces places{.length = kLength, .positions = {}, .index = {}, .first_seen = {}, .rank = rank};
  for (const std::vector<int32_t>& of : by_rank) {
    const at::Tensor index = at::zeros({kBatch, static_cast<int64_t>(of.size())}, at::kInt);
    for (int64_t b = 0; b < kBatch; ++b) std::ranges::copy(of, index.data_ptr<int32_t>() + b * index.size(1));
    places.index_of_ranks.push_back(index);
  }
  places.index = places.index_of_ranks[static_cast<size_t>(rank)].clone();
  places.first_seen_of_places = first_seen_of(way);
  const at::Tensor there = places.index.lt(kLength);
  const at::Tensor first = places.first_seen_of_places.gather(1, places.index.clamp_max(kLength - 1).to(at::kLong));
  places.first_seen = at::where(there, first, places.index).contiguous();
  places.positions = places.index.to(at::kLong);
  return places;
}

// The tokens of `whole` [B, S, D] at `index` [B, T]; zeros behind the end. And back.
at::Tensor cut(const at::Tensor& whole, const at::Tensor& index) {
  const at::Tensor part = at::zeros({kBatch, index.size(1), whole.size(2)});
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t i = 0; i < index.size(1); ++i)
      if (const int64_t place = index[b][i].item<int64_t>(); place < kLength) part[b][i].copy_(whole[b][place]);
  return part;
}
void put(const at::Tensor& part, const at::Tensor& index, const at::Tensor& whole) {
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t i = 0; i < index.size(1); ++i)
      if (const int64_t place = index[b][i].item<int64_t>(); place < kLength) whole[b][place].copy_(part[b][i]);
}

// --- The exchange of this room, with the faults that it may have.

enum class Fault {
  kNone,
  kColumnsNotPassed,
  kStatesNotPassed,
  kDecayForgotten,  // what lies before a piece goes through it as it is
  kStateGradientsNotPassed,
  kColumnGradientsNotPassed,
  kPiecesOfTheNextRank,  // everything is one rank further than it belongs
};

class Exchange : public PieceExchange {
 public:
  Exchange(comm::World& world, Fault fault)
      : all_(world.all_ranks("cp")), group_(*all_, {}), right_(make_piece_exchange(group_, program::named_call("block"), "ssm")), fault_(fault) {}
  int ranks() const override { return right_->ranks(); }
  int rank() const override { return right_->rank(); }

  nn::Pending gather(const at::Tensor& own, What what) override {
    nn::Pending coming = right_->gather(own, what);
    return [this, what, coming = std::move(coming)] { return spoilt(coming(), what); };
  }

 private:
  at::Tensor spoilt(const at::Tensor& all, What what) const {
    if (lost() && *lost() == what) return all.zero_();
    if (fault_ == Fault::kDecayForgotten && what == What::kStates) all.narrow(all.dim() - 1, all.size(-1) - 1, 1).fill_(1);
    return fault_ == Fault::kPiecesOfTheNextRank ? all.roll(1, 0) : all;
  }
  std::optional<What> lost() const {
    switch (fault_) {
      case Fault::kColumnsNotPassed: return What::kColumns;
      case Fault::kStatesNotPassed: return What::kStates;
      case Fault::kStateGradientsNotPassed: return What::kStateGradients;
      case Fault::kColumnGradientsNotPassed: return What::kColumnGradients;
      default: return std::nullopt;
    }
  }

  std::unique_ptr<comm::Communicator> all_;
  ContextGroup group_;
  std::unique_ptr<PieceExchange> right_;
  const Fault fault_;
};

// --- A pass, with the gradients of everything.

struct Parameters {
  nn::Parameter in = parameter("in", {kSizes.projected(), kHidden}, 0.4), convolution = parameter("conv", {kSizes.convolved(), kSizes.convolution}, 0.5),
                bias = parameter("conv.bias", {kSizes.convolved()}, 0.5), dt_bias = parameter("dt_bias", {kSizes.heads}, 0.3),
                a_log = parameter("a_log", {kSizes.heads}, 0.3), d = parameter("d", {kSizes.heads}), norm = parameter("norm", {kSizes.inner()}),
                out = parameter("out", {kHidden, kSizes.inner()}, 0.4);
  Parameters() { dt_bias.value.sub_(2); }  // steps near 0.1: a state outlives several pieces
  std::vector<at::Tensor> gradients() const {
    return {in.grad, convolution.grad, bias.grad, dt_bias.grad, a_log.grad, d.grad, norm.grad, out.grad};
  }
};

StateSpace layer_of(const Parameters& of, std::unique_ptr<PieceExchange> pieces) {
  const StateSpace::Shape shape{.sizes = kSizes, .heads = kSizes.heads, .groups = kSizes.groups, .first_group = 0, .read_groups = kSizes.groups};
  return StateSpace(shape, {.in = std::make_unique<nn::Linear>(of.in),
                            .convolution = of.convolution,
                            .convolution_bias = of.bias,
                            .dt_bias = of.dt_bias,
                            .a_log = of.a_log,
                            .d = of.d,
                            .norm = std::make_unique<nn::GatedNorm>(of.norm, kSizes.norm_groups, kSizes.inner() / kSizes.norm_groups, 1e-5, nullptr),
                            .out = std::make_unique<nn::Linear>(of.out),
                            .pieces = std::move(pieces)});
}

std::vector<at::Tensor> pass(const at::Tensor& x, const at::Tensor& dy, const TokenPlaces& places, std::unique_ptr<PieceExchange> pieces) {
  const Parameters parameters;
  StateSpace layer = layer_of(parameters, std::move(pieces));
  const std::unique_ptr<nn::Branch::Saved> saved = layer.new_saved();
  std::vector<at::Tensor> all = {layer.forward(x, saved.get(), {.count = x.size(0), .length = x.size(1), .valid = {}, .places = &places}).clone()};
  all.push_back(layer.backward_input(dy, *saved).clone());
  layer.backward_weight(*saved);
  for (const at::Tensor& gradient : parameters.gradients()) all.push_back(gradient);
  return all;
}

at::Tensor input() { return random("x", {kBatch, kLength, kHidden}); }
at::Tensor gradient() { return random("dy", {kBatch, kLength, kHidden}); }

using ChangePlaces = std::function<void(TokenPlaces&)>;

std::vector<at::Tensor> pass_over_ranks(const Way& way, Fault fault, const ChangePlaces& change) {
  std::vector<at::Tensor> whole = {at::zeros({kBatch, kLength, kHidden}), at::zeros({kBatch, kLength, kHidden})};
  for (const at::Tensor& of : Parameters().gradients()) whole.push_back(at::zeros(of.sizes()));
  std::mutex mutex;
  lockstep::testing::run_ranks(way.ranks, [&](comm::World& world) {
    TokenPlaces places = places_of(way, world.rank());
    const at::Tensor index = places.index.clone();
    if (change) change(places);
    const std::vector<at::Tensor> found = pass(cut(input(), index), cut(gradient(), index), places, std::make_unique<Exchange>(world, fault));
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < 2; ++i) put(found[i].view({kBatch, -1, kHidden}), index, whole[i]);
    for (size_t i = 2; i < whole.size(); ++i) whole[i].add_(found[i]);
  });
  return whole;
}

// The worst of the output, its input's gradient and those of all parameters.
double error_of(const Way& way, Fault fault, const ChangePlaces& change = {}) {
  const TokenPlaces places = whole_places(way);
  const std::vector<at::Tensor> expected = pass(input(), gradient(), places, nullptr), found = pass_over_ranks(way, fault, change);
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = relative_error(found[i].view(expected[i].sizes()), expected[i]);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  return worst;
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int ranks : {2, 3, 4})
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
      for (const bool documents : {false, true}) all.push_back({.ranks = ranks, .split = split, .documents = documents});
  return all;
}

TEST(StateSpaceOverRanks, IsThatOfWholeSequences) {
  for (const Way& way : ways()) EXPECT_LE(error_of(way, Fault::kNone), kBound) << text_of(way);
}

TEST(StateSpaceMutants, AnExchangeWithOneFault) {
  for (const Fault fault : {Fault::kColumnsNotPassed, Fault::kStatesNotPassed, Fault::kStateGradientsNotPassed, Fault::kColumnGradientsNotPassed,
                            Fault::kPiecesOfTheNextRank})
    for (const Way& way : ways())
      EXPECT_GT(error_of(way, fault), 100 * kBound) << "fault " << static_cast<int>(fault) << ", " << text_of(way);
}

// The first piece has nothing before it: of two pieces no decay counts.
TEST(StateSpaceMutants, ADecayThatIsForgotten) {
  for (const Way& way : ways())
    if (pieces_of(way) > 2) {
      EXPECT_GT(error_of(way, Fault::kDecayForgotten), 100 * kBound) << text_of(way);
    }
}

TEST(StateSpaceMutants, AStateThatIsNotReset) {
  const auto one_document = [](TokenPlaces& places) {
    places.first_seen.zero_();
    places.first_seen_of_places.zero_();
  };
  for (const Way& way : ways())
    if (way.documents) {
      EXPECT_GT(error_of(way, Fault::kNone, one_document), 100 * kBound) << text_of(way);
    }
}

}  // namespace
}  // namespace lockstep::parallel
