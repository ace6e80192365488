// Attention over ranks against autograd's of whole sequences, and the same comparison where a ring, or what ranks are told of their tokens,
// has one fault: each is found.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_split.h"
#include "lockstep/nn/attention_spans.h"
#include "lockstep/parallel/context/group.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using config::ContextKind;
using config::ContextSplit;
using lockstep::testing::leaf;
using lockstep::testing::random;
using lockstep::testing::relative_error;
using nn::ContextAttention;
using nn::TokenPlaces;

constexpr int64_t kBatch = 2, kLength = 15, kHeads = 6, kKvHeads = 2, kKey = 5, kValue = 3;
constexpr double kBound = 1e-5;

struct Way {
  int ranks = 2;
  ContextSplit split = ContextSplit::kZigzag;
  bool documents = false;
  int64_t window = 0;
};

std::string text_of(const Way& way) {
  return cat("cp ", way.ranks, " ", config::name_of(way.split), way.documents ? " documents" : "", " window ", way.window);
}

// Of each sequence.
std::vector<int32_t> documents_of(const Way& way, int64_t sequence) {
  if (!way.documents) return {0};
  return sequence == 0 ? std::vector<int32_t>{0, 1, 6, 8} : std::vector<int32_t>{0, 9, 10};
}

at::Tensor first_seen_of(const Way& way) {  // [B, S]
  const at::Tensor first = at::zeros({kBatch, kLength}, at::kInt);
  for (int64_t b = 0; b < kBatch; ++b)
    for (const int32_t begin : documents_of(way, b)) first.select(0, b).narrow(0, begin, kLength - begin).fill_(begin);
  return first;
}

// Attention in all: whole tensors [B, S, heads, width].
struct Tensors {
  at::Tensor out, dq, dk, dv;
};
at::Tensor queries() { return random("q", {kBatch, kLength, kHeads, kKey}); }
at::Tensor keys() { return random("k", {kBatch, kLength, kKvHeads, kKey}); }
at::Tensor values() { return random("v", {kBatch, kLength, kKvHeads, kValue}); }
at::Tensor gradient() { return random("dout", {kBatch, kLength, kHeads, kValue}); }

Tensors expected_of(const Way& way) {
  const at::Tensor q = leaf(queries()), k = leaf(keys()), v = leaf(values());
  const auto heads = [](const at::Tensor& x) { return x.to(at::kDouble).repeat_interleave(kHeads / x.size(2), 2).transpose(1, 2); };
  const at::Tensor query = at::arange(kLength).view({1, kLength, 1}), key = at::arange(kLength).view({1, 1, kLength});
  at::Tensor seen = at::logical_and(key.le(query), key.ge(first_seen_of(way).unsqueeze(2)));
  if (way.window > 0) seen = at::logical_and(seen, key.gt(query - way.window));
  const at::Tensor scores = at::matmul(heads(q), heads(k).transpose(2, 3)) / std::sqrt(static_cast<double>(kKey));
  const at::Tensor weights = at::softmax(scores.masked_fill(seen.logical_not().unsqueeze(1), -1e30), 3);
  const at::Tensor out = at::matmul(weights, heads(v)).transpose(1, 2);
  out.backward(gradient().to(at::kDouble));
  return {.out = out.detach(), .dq = q.grad(), .dk = k.grad(), .dv = v.grad()};
}

// What each rank is told.
TokenPlaces places_of(const Way& way, int rank) {
  TokenPlaces places{.length = kLength, .positions = {}, .index = {}, .first_seen = {}, .rank = rank};
  std::vector<std::vector<std::vector<int32_t>>> split;  // [sequence][rank]
  for (int64_t b = 0; b < kBatch; ++b)
    split.push_back(data::split_tokens(kLength, {.ranks = way.ranks, .split = way.split}, documents_of(way, b)));
  const auto here = static_cast<int64_t>(split[0][0].size());
  for (int of = 0; of < way.ranks; ++of) {
    const at::Tensor index = at::zeros({kBatch, here}, at::kInt);
    for (int64_t b = 0; b < kBatch; ++b)
      std::ranges::copy(split[static_cast<size_t>(b)][static_cast<size_t>(of)], index.data_ptr<int32_t>() + b * here);
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

// The tokens of `whole` [B, S, ...] at `index` [B, T]; zeros behind the end.
at::Tensor cut(const at::Tensor& whole, const at::Tensor& index) {
  const at::Tensor part = at::zeros({kBatch, index.size(1), whole.size(2), whole.size(3)});
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

using Make = std::function<std::unique_ptr<ContextAttention>(comm::World& world)>;
using ChangePlaces = std::function<void(TokenPlaces&)>;

Tensors attention_over_ranks(const Way& way, const Make& make, const ChangePlaces& change) {
  Tensors whole{.out = at::zeros({kBatch, kLength, kHeads, kValue}),
                .dq = at::zeros({kBatch, kLength, kHeads, kKey}),
                .dk = at::zeros({kBatch, kLength, kKvHeads, kKey}),
                .dv = at::zeros({kBatch, kLength, kKvHeads, kValue})};
  std::mutex mutex;
  lockstep::testing::run_ranks(way.ranks, [&](comm::World& world) {
    TokenPlaces places = places_of(way, world.rank());
    const at::Tensor index = places.index.clone();
    if (change) change(places);
    const ContextAttention::Heads heads{.q = cut(queries(), index), .k = cut(keys(), index), .v = cut(values(), index)};
    const std::unique_ptr<ContextAttention> attention = make(world);
    std::unique_ptr<ContextAttention::Saved> saved;
    const at::Tensor out = attention->forward(heads, places, {.window = way.window}, &saved).clone();
    const nn::AttentionCoreGrads grads{.dq = at::zeros_like(heads.q), .dk = at::zeros_like(heads.k), .dv = at::zeros_like(heads.v)};
    attention->backward(cut(gradient(), index).flatten(2), std::move(saved), grads);
    const std::lock_guard lock(mutex);
    put(out.view({kBatch, -1, kHeads, kValue}), index, whole.out);
    put(grads.dq, index, whole.dq);
    put(grads.dk, index, whole.dk);
    put(grads.dv, index, whole.dv);
  });
  return whole;
}

double error_of(const Way& way, const Make& make, const ChangePlaces& change = {}) {
  const Tensors found = attention_over_ranks(way, make, change), expected = expected_of(way);
  double worst = 0;
  for (const auto& [a, b] : {std::pair(found.out, expected.out), {found.dq, expected.dq}, {found.dk, expected.dk}, {found.dv, expected.dv}}) {
    const double error = relative_error(a, b);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  return worst;
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int ranks : {2, 3, 4})
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
      for (const bool documents : {false, true}) all.push_back({.ranks = ranks, .split = split, .documents = documents});
  all.push_back({.ranks = 3, .window = 4});
  all.push_back({.ranks = 2, .documents = true, .window = 3});
  return all;
}

// --- Those of this room.

// With the communicators it uses.
template <typename Base>
class Owning : public Base {
 public:
  using Saved = ContextAttention::Saved;
  Owning(comm::World& world, ContextKind kind, int inner) : all_(world.all_ranks("cp")) {
    ContextOptions options{.kind = kind, .documents = true};
    if (kind == ContextKind::k2d) {
      std::vector<int> inside, across;
      for (int rank = 0; rank < world.size(); ++rank) {
        if (rank / inner == world.rank() / inner) inside.push_back(rank);
        if (rank % inner == world.rank() % inner) across.push_back(rank);
      }
      inner_ = world.communicator(inside, "cp_inner");
      outer_ = world.communicator(across, "cp_outer");
      options.inner = inner_.get();
      options.outer = outer_.get();
    }
    group_ = std::make_unique<ContextGroup>(*all_, options);
  }

 protected:
  ContextGroup& group() { return *group_; }

 private:
  std::unique_ptr<comm::Communicator> all_, inner_, outer_;
  std::unique_ptr<ContextGroup> group_;
};

class OfKind : public Owning<ContextAttention> {
 public:
  OfKind(comm::World& world, ContextKind kind, int inner)
      : Owning(world, kind, inner), attention_(make_context_attention(group(), program::named_call("block"), "attention")) {}
  at::Tensor forward(const Heads& heads, const TokenPlaces& places, const Options& options, std::unique_ptr<Saved>* saved) override {
    return attention_->forward(heads, places, options, saved);
  }
  void backward(const at::Tensor& dout, std::unique_ptr<Saved> saved, const nn::AttentionCoreGrads& grads) override {
    attention_->backward(dout, std::move(saved), grads);
  }

 private:
  std::unique_ptr<ContextAttention> attention_;
};

Make kind_of(ContextKind kind) {
  return [kind](comm::World& world) { return std::make_unique<OfKind>(world, kind, /*inner=*/2); };
}

std::vector<ContextKind> kinds_of(const Way& way) {
  std::vector<ContextKind> kinds = {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather};
  if (way.ranks == 4) kinds.push_back(ContextKind::k2d);
  return kinds;
}

TEST(AttentionOverRanks, IsThatOfWholeSequences) {
  for (const Way& way : ways())
    for (const ContextKind kind : kinds_of(way))
      EXPECT_LE(error_of(way, kind_of(kind)), kBound) << config::name_of(kind) << ", " << text_of(way);
}

// Told to one rank, or to all.
void expect_found(const ChangePlaces& change, bool documents, const std::vector<ContextKind>& kinds) {
  for (const Way& way : ways())
    for (const ContextKind kind : kinds)
      if (way.documents == documents && way.window == 0) {
        EXPECT_GT(error_of(way, kind_of(kind), change), 100 * kBound) << config::name_of(kind) << ", " << text_of(way);
      }
}

TEST(AttentionMutants, PlacesFromTheLocalIndex) {
  const auto local = [](TokenPlaces& places) {
    for (int64_t i = 0; i < places.index.size(1); ++i) places.index.select(1, i).fill_(i);
    places.first_seen.zero_();
  };
  for (const bool documents : {false, true}) expect_found(local, documents, {ContextKind::kRing, ContextKind::kAllGather});
}

TEST(AttentionMutants, DocumentsThatSeeEachOther) {
  const auto see_all = [](TokenPlaces& places) {
    places.first_seen.zero_();
    places.first_seen_of_places.zero_();
  };
  expect_found(see_all, true, {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather});
}

// --- A ring that is written here, with the faults that a ring may have.

enum class Fault {
  kNone,
  kBlocksAddedUp,       // each block's softmax counts as a whole
  kBlocksReplace,       // the last block's alone; a query that sees none of it is left with nothing
  kMaskedBlockLeftOut,  // a block that one query does not see is merged for none
  kKeysLate,            // what a block's gradient gets is that of the block before
  kKeysNotHome,         // gradients stop one step before the rank that has the tokens
  kKeysDivided,         // a mean over ranks
};

class Ring : public Owning<ContextAttention> {
 public:
  Ring(comm::World& world, Fault fault) : Owning(world, ContextKind::kRing, 1), fault_(fault) {}

  at::Tensor forward(const Heads& heads, const TokenPlaces& places, const Options& options, std::unique_ptr<Saved>* saved) override {
    auto kept = std::make_unique<Kept>();
    kept->q = heads.q.transpose(1, 2);
    kept->own = at::cat({heads.k, heads.v}, 3).contiguous();
    kept->places = &places;
    kept->window = options.window;
    kept->seen = nn::nothing_seen(kept->q, kValue);
    at::Tensor block = kept->own;
    for (int step = 0; step < ranks(); ++step) {
      if (step > 0) block = shifted(block);
      merge(rectangle(*kept, block, step), kept->seen);
    }
    at::Tensor out = kept->seen.out.flatten(2);
    *saved = std::move(kept);
    return out;
  }

  void backward(const at::Tensor& dout, std::unique_ptr<Saved> saved, const nn::AttentionCoreGrads& grads) override {
    auto& kept = static_cast<Kept&>(*saved);
    at::Tensor block = kept.own, travelling = at::zeros_like(kept.own), before = at::zeros_like(kept.own);
    const at::Tensor d = dout.view({kBatch, -1, kHeads, kValue}).contiguous();
    grads.dq.zero_();
    for (int step = 0; step < ranks(); ++step) {
      if (step > 0) block = shifted(block);
      const at::Tensor dk = at::zeros_like(grads.dk), dv = at::zeros_like(grads.dv);
      nn::attend_backward(d, kept.seen, rectangle(kept, block, step), {.dq = grads.dq, .dk = dk, .dv = dv});
      const at::Tensor part = at::cat({dk, dv}, 3);
      travelling = travelling + (fault_ == Fault::kKeysLate ? before : part);
      before = part;
      if (fault_ != Fault::kKeysNotHome || step + 1 < ranks()) travelling = shifted(travelling);
    }
    if (fault_ == Fault::kKeysDivided) travelling = travelling / ranks();
    grads.dk.copy_(travelling.narrow(3, 0, kKey));
    grads.dv.copy_(travelling.narrow(3, kKey, kValue));
  }

 private:
  struct Kept : Saved {
    at::Tensor q, own;  // [B, H, T, K]; k | v [B, T, KV, K + V]
    const TokenPlaces* places = nullptr;
    int64_t window = 0;
    nn::SeenSums seen{};
  };

  int ranks() { return group().size(); }
  at::Tensor shifted(const at::Tensor& tensor) { return group().shift(tensor.contiguous(), program::named_call("ring"))(); }

  nn::AttentionRectangle rectangle(const Kept& kept, const at::Tensor& block, int step) {
    const int owner = (group().rank() - step + ranks()) % ranks();
    const at::Tensor heads = block.transpose(1, 2);
    return {.q = kept.q,
            .k = heads.narrow(3, 0, kKey),
            .v = heads.narrow(3, kKey, kValue),
            .spans = nn::spans_of(*kept.places, owner, kept.window)};
  }

  void merge(const nn::AttentionRectangle& rectangle, nn::SeenSums& seen) const {
    nn::SeenSums alone = nn::nothing_seen(rectangle.q, kValue);
    const bool sees_none = rectangle.spans.first.ge(rectangle.spans.last).any().item<bool>();
    if (fault_ == Fault::kMaskedBlockLeftOut && sees_none) return;
    if (fault_ != Fault::kBlocksAddedUp && fault_ != Fault::kBlocksReplace) nn::attend(rectangle, seen);
    nn::attend(rectangle, alone);
    if (fault_ == Fault::kBlocksAddedUp) seen = {.out = seen.out + alone.out, .logsumexp = at::logaddexp(seen.logsumexp, alone.logsumexp)};
    if (fault_ == Fault::kBlocksReplace) seen = alone;
  }

  const Fault fault_;
};

Make ring_with(Fault fault) {
  return [fault](comm::World& world) { return std::make_unique<Ring>(world, fault); };
}

TEST(AttentionMutants, ARingWithoutAFault) {
  for (const Way& way : ways()) EXPECT_LE(error_of(way, ring_with(Fault::kNone)), kBound) << text_of(way);
}

// Contiguous parts without documents have blocks that all queries see, or none: one that is left out changes nothing there.
TEST(AttentionMutants, AMaskedBlockThatIsNotMerged) {
  for (const Way& way : ways())
    if (way.split == ContextSplit::kZigzag) {
      EXPECT_GT(error_of(way, ring_with(Fault::kMaskedBlockLeftOut)), 100 * kBound) << text_of(way);
    }
}

TEST(AttentionMutants, ARingWithOneFault) {
  for (const Fault fault : {Fault::kBlocksAddedUp, Fault::kBlocksReplace, Fault::kKeysLate, Fault::kKeysNotHome, Fault::kKeysDivided})
    for (const Way& way : ways())
      EXPECT_GT(error_of(way, ring_with(fault)), 100 * kBound) << "fault " << static_cast<int>(fault) << ", " << text_of(way);
}

}  // namespace
}  // namespace lockstep::parallel
