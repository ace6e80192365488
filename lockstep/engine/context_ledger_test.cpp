// What ranks that hold sequences in parts put on the links: recorded is predicted, and both are the closed formulas of each way.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/engine/test_context.h"

namespace lockstep::engine {
namespace {

using config::ContextKind;
using config::ContextSplit;
using program::Ledger;
using program::LedgerEntry;
using testing::ContextCase;

std::vector<Ledger> record(const program::Layout& layout) {
  const int ranks = layout.mesh.world_size();
  std::vector<Ledger> recorded(static_cast<size_t>(ranks));
  std::mutex mutex;
  lockstep::testing::run_ranks(ranks, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    const std::vector<nn::Microbatch> own = testing::parts_of_microbatches(layout, world.rank(), 0);
    groups.take_ledger();
    executor.step(own, 1, 1e-3);
    const Ledger found = groups.take_ledger(), predicted = program::predict_ledger(layout, executor.program(), world.rank());
    const std::lock_guard lock(mutex);
    EXPECT_EQ(Ledger::difference(predicted, found), std::vector<std::string>()) << "rank " << world.rank();
    recorded[static_cast<size_t>(world.rank())] = found;
  });
  return recorded;
}

// Of a block and microbatch.
struct Expected {
  std::string call;  // "ring forward"
  int64_t calls = 1;
  int64_t bytes = 0;  // of all these calls
  int64_t sent = 0;   // of them, to other ranks
};

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Heads of a rank among `n` that exchange them, and the most key/value heads that one of them needs.
std::pair<int64_t, int64_t> heads_of(const arch::ModelConfig& model, int64_t n) {
  const int64_t each = divided_up(model.heads, n), per_key = model.heads / model.kv_heads;
  int64_t most = 0;
  for (int64_t first = 0; first < model.heads; first += each)
    most = std::max(most, (std::min(first + each, model.heads) - 1) / per_key - first / per_key + 1);
  return {each, most};
}

std::vector<Expected> expected_of(const program::Layout& layout) {
  const arch::ModelConfig& model = layout.model;
  const int64_t n = layout.mesh.degree(mesh::Axis::kCp), rows = layout.micro_batch * layout.tokens_here(), e = layout.element_size();
  const bool latent = model.latent.kv_rank > 0;
  const int64_t key = latent ? model.latent.nope + model.latent.rope : model.head_size, value = latent ? model.latent.value : model.head_size;
  const int64_t keys_values = rows * model.kv_heads * (key + value);
  const auto ring = [&](int64_t ranks, int64_t numel) -> std::vector<Expected> {
    const auto calls = [&](const char* name, int64_t count, int64_t size) {
      return Expected{.call = name, .calls = count, .bytes = count * numel * size, .sent = count * numel * size};
    };
    return {calls("ring forward", ranks - 1, e), calls("ring gather", ranks - 1, e), calls("ring backward", ranks, 4)};
  };
  const auto exchange = [&](int64_t ranks) -> std::vector<Expected> {
    const auto [queries, keys] = heads_of(model, ranks);
    const int64_t there = ranks * rows * (queries * key + keys * (key + value)) * e, back = ranks * rows * queries * value * e;
    const auto calls = [&](const char* name, int64_t count, int64_t bytes) {
      return Expected{.call = name, .calls = count, .bytes = bytes, .sent = bytes / ranks * (ranks - 1)};
    };
    return {calls("heads forward", 1, there), calls("heads gather", 1, back), calls("heads backward", 2, there + back)};
  };
  switch (layout.context) {
    case ContextKind::kRing: return ring(n, latent ? rows * (model.latent.kv_rank + model.latent.rope) : keys_values);
    case ContextKind::kAllToAll: return exchange(n);
    case ContextKind::kAllGather: {
      const auto whole = [&](const char* name, int64_t size) {
        return Expected{.call = name, .calls = 1, .bytes = n * keys_values * size, .sent = (n - 1) * keys_values * size};
      };
      return {whole("gather forward", e), whole("gather gather", e), whole("gather backward", 4)};
    }
    case ContextKind::k2d: {
      const int64_t inner = layout.context_inner;
      std::vector<Expected> all = exchange(inner);
      for (const Expected& one : ring(n / inner, inner * rows * heads_of(model, inner).second * (key + value))) all.push_back(one);
      return all;
    }
  }
  return {};
}

LedgerEntry entry_of(const Ledger& ledger, const std::string& text) {
  for (const auto& [call, key, entry] : ledger.printed())
    if (call == text) return entry;
  ADD_FAILURE() << "no " << text;
  return {};
}

void expect_formulas(const ContextCase& c) {
  SCOPED_TRACE(testing::text_of(c));
  const program::Layout layout = testing::layout_for(c);
  const std::vector<Ledger> recorded = record(layout);
  for (const Ledger& ledger : recorded) {
    size_t of_attention = 0;
    for (const auto& [call, key, entry] : ledger.printed()) of_attention += call.find(".attention.") != std::string::npos ? 1 : 0;
    const std::vector<Expected> expected = expected_of(layout);
    if (c.base.tp == 1) {
      EXPECT_EQ(of_attention, expected.size() * static_cast<size_t>(layout.model.layers)) << "no other calls";
    }
    for (int64_t block = 0; block < layout.model.layers; ++block)
      for (const Expected& one : expected) {
        const LedgerEntry entry = entry_of(ledger, cat("blocks.", block, ".attention.", one.call));
        EXPECT_EQ(entry.count, one.calls * layout.num_microbatches()) << one.call;
        EXPECT_EQ(entry.payload, one.bytes * layout.num_microbatches()) << one.call;
        EXPECT_EQ(entry.sent_total(), one.sent * layout.num_microbatches()) << one.call;
      }
  }
}

ContextCase case_of(const std::string& preset, ContextKind kind, int cp) {
  return {.base = {.preset = preset, .dp = 1, .micro_batch = 2, .seq_len = 16, .blocks = 2},
          .cp = cp,
          .kind = kind,
          .inner = kind == ContextKind::k2d ? 2 : 1};
}

TEST(ContextLedger, OfEveryKindIsItsFormula) {
  for (const char* preset : {"gpt2-test", "llama-test", "deepseek-test"})
    for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather, ContextKind::k2d})
      for (const int cp : {2, 4})
        if (kind != ContextKind::k2d || cp == 4) expect_formulas(case_of(preset, kind, cp));
}

// Parts that are filled up, heads that do not divide, fewer key/value heads than ranks, and numbers of half the size.
TEST(ContextLedger, OfUnevenPartsAndHeads) {
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather})
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      ContextCase c = case_of("llama-test", kind, 3);
      c.base.seq_len = 13;
      c.split = split;
      c.base.precision = config::Precision::kBf16;
      c.documents = true;
      expect_formulas(c);
      c.cp = 4;
      c.base.kv_heads = 2;
      expect_formulas(c);
    }
}

// What is computed again, stages, states that are shared out: predicted is recorded, whatever else is cut.
TEST(ContextLedger, BesideAllElse) {
  for (const char* preset : {"llama-test", "deepseek-test"})
    for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather, ContextKind::k2d}) {
      const ContextCase plain = case_of(preset, kind, kind == ContextKind::k2d ? 4 : 2);
      for (const arch::Recompute recompute : {arch::Recompute::kSelective, arch::Recompute::kFull}) {
        ContextCase c = plain;
        c.base.recompute.assign(2, recompute);
        SCOPED_TRACE(cat(testing::text_of(c), " recompute ", static_cast<int>(recompute)));
        record(testing::layout_for(c));
      }
      ContextCase tensor = plain, shards = plain;
      tensor.base.tp = 2;
      record(testing::layout_for(tensor));
      ContextCase window = plain;
      window.window = 4;
      record(testing::layout_for(window));
      window.split = ContextSplit::kContiguous;
      record(testing::layout_for(window));
      shards.base.zero = 3;
      shards.documents = true;
      record(testing::layout_for(shards));
    }
}

}  // namespace
}  // namespace lockstep::engine
