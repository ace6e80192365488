// Broken programs of ZeRO and HSDP, and the rule of the verifier that must name each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "lockstep/base/text.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using K = ActionKind;
using Actions = std::vector<Action>;

constexpr int kHead = 3;  // two blocks

// Two blocks, 2 microbatches; dp_replicate 2 x dp_shard 2.
Layout layout_of(int zero) {
  config::ModelSection section{.preset = "llama-test"};
  section.layers = 2;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = degrees[mesh::Axis::kDpShard] = 2;
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh(degrees),
          .global_batch = 16,
          .micro_batch = 2,
          .seq_len = 16,
          .bucket_bytes = 0,
          .zero = zero};
}
Layout keeping_after_forward() {
  Layout layout = layout_of(3);
  layout.reshard_after_forward = false;
  return layout;
}
Layout keeping_after_microbatch() {
  Layout layout = layout_of(3);
  layout.reshard_after_microbatch = false;
  return layout;
}
// Room for the largest unit alone.
Layout narrow() {
  Layout layout = layout_of(3);
  layout.prefetch_limit = layout.flat_layout(0).units[1].numel() * 4;
  return layout;
}

// The `which`-th action of the kind, by any of layer, unit and bucket that is not -1.
size_t find(const Actions& actions, K kind, int place = -1, int which = 0) {
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool here = place < 0 || action.layer == place || action.unit == place || action.bucket == place;
    if (action.kind == kind && here && which-- == 0) return i;
  }
  throw std::runtime_error("no such action");
}
void erase(Actions& actions, size_t i) {
  actions.erase(actions.begin() + static_cast<int64_t>(i));
}
void insert(Actions& actions, size_t i, Action action) {
  actions.insert(actions.begin() + static_cast<int64_t>(i), action);
}
void move(Actions& actions, size_t from, size_t to) {
  const Action action = actions[from];
  erase(actions, from);
  insert(actions, to, action);
}
void twice(Actions& actions, size_t i) {
  insert(actions, i, actions[i]);
}

struct Mutant {
  const char* rule;
  const char* what;
  Layout layout;
  void (*breaks)(Actions&);  // of rank 1 alone
};

const Mutant kMutants[] = {
    {"ranks", "a unit that does not exist", layout_of(3), [](Actions& a) { a[find(a, K::kUnshard)].unit = 9; }},
    {"life", "never gathered", layout_of(3), [](Actions& a) { erase(a, find(a, K::kUnshard, 1)); }},
    {"life", "not gathered again for backward", layout_of(3),
     [](Actions& a) { erase(a, find(a, K::kUnshard, 1, 1)); }},
    {"life", "gathered twice", layout_of(3), [](Actions& a) { twice(a, find(a, K::kUnshard, 1)); }},
    {"life", "gathered behind its use", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kUnshard, 2), find(a, K::kForward, 2)); }},
    {"life", "dropped before its use", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kReshard, 1), find(a, K::kForward, 1)); }},
    {"life", "gathered where nothing is sharded", layout_of(1),
     [](Actions& a) { insert(a, 0, {.kind = K::kUnshard, .unit = 0}); }},
    {"life", "an updated unit that is not gathered", layout_of(1),
     [](Actions& a) { erase(a, find(a, K::kUnshard, 1)); }},
    {"life", "gathered before its update", layout_of(2),
     [](Actions& a) { move(a, find(a, K::kUnshard, 1), find(a, K::kStep, 1)); }},
    {"life", "gathered twice after its update", layout_of(2),
     [](Actions& a) { twice(a, find(a, K::kUnshard, kHead)); }},
    {"life", "zero 3 gathers after STEP", layout_of(3),
     [](Actions& a) { a.push_back({.kind = K::kUnshard, .unit = 0}); }},
    {"life", "dropped twice", layout_of(3), [](Actions& a) { twice(a, find(a, K::kReshard, 1)); }},
    {"life", "never dropped", layout_of(3), [](Actions& a) { erase(a, find(a, K::kReshard, 1, 3)); }},
    {"life", "dropped after STEP", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kReshard, 1, 3), a.size() - 1); }},
    {"life", "gathered for nothing", layout_of(3),
     [](Actions& a) {
       const size_t i = find(a, K::kLoss);
       insert(a, i, {.kind = K::kReshard, .unit = 2});
       insert(a, i, {.kind = K::kUnshard, .unit = 2});
     }},
    {"reshard", "the last layer dropped between its F and its B", layout_of(3),
     [](Actions& a) {
       const size_t i = find(a, K::kBackward, kHead);
       insert(a, i, {.kind = K::kUnshard, .unit = kHead});
       insert(a, i, {.kind = K::kReshard, .unit = kHead});
     }},
    {"reshard", "dropped and gathered again at once", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kUnshard, 2, 1), find(a, K::kReshard, 2) + 1); }},
    {"reshard", "dropped after forward, where it stays", keeping_after_forward(),
     [](Actions& a) {
       insert(a, find(a, K::kBackward, 1), {.kind = K::kUnshard, .unit = 1});
       insert(a, find(a, K::kForward, 1) + 1, {.kind = K::kReshard, .unit = 1});
     }},
    {"reshard", "dropped after a microbatch, where it stays", keeping_after_microbatch(),
     [](Actions& a) {
       insert(a, find(a, K::kForward, 1, 1), {.kind = K::kUnshard, .unit = 1});
       insert(a, find(a, K::kBackward, 1) + 1, {.kind = K::kReshard, .unit = 1});
     }},
    {"prefetch", "two units wait", narrow(), [](Actions& a) { move(a, find(a, K::kUnshard, 2), 0); }},
    {"buckets", "transient gradients of two units in one bucket", layout_of(2), nullptr},
    {"life", "transient gradients not reduced", layout_of(2),
     [](Actions& a) { erase(a, find(a, K::kReduceGrad, 1)); }},
    {"life", "reduced twice", layout_of(3), [](Actions& a) { twice(a, find(a, K::kReduceGrad, 1)); }},
    {"deadlock", "reduced for another microbatch", layout_of(2),
     [](Actions& a) { a[find(a, K::kReduceGrad, 1)].microbatch = 1; }},
    {"life", "zero 1 reduces a microbatch", layout_of(1),
     [](Actions& a) { insert(a, find(a, K::kForward, 0, 1), {.kind = K::kReduceGrad, .microbatch = 0, .bucket = 0}); }},
    {"life", "zero 1 does not reduce", layout_of(1), [](Actions& a) { erase(a, find(a, K::kReduceGrad, 1)); }},
    {"reduce", "pushed to a server", layout_of(2), [](Actions& a) { a[find(a, K::kReduceGrad, 1)].kind = K::kPush; }},
    {"life", "shards of gradients where there are none", layout_of(0),
     [](Actions& a) { insert(a, find(a, K::kLoss), {.kind = K::kShardGrad, .bucket = 0}); }},
    {"life", "gathered where nothing is shared out", layout_of(0),
     [](Actions& a) { a.push_back({.kind = K::kUnshard, .unit = 0}); }},
    {"life", "reduced before the last backward that writes", layout_of(2),
     [](Actions& a) { move(a, find(a, K::kReduceGrad, 1), find(a, K::kBackward, 2)); }},
    {"life", "zero 1 reduces before the last microbatch", layout_of(1),
     [](Actions& a) { move(a, find(a, K::kReduceGrad, 1), find(a, K::kForward, 0, 1)); }},
    {"life", "the next microbatch writes before SHARD_GRAD", layout_of(2),
     [](Actions& a) { move(a, find(a, K::kShardGrad, 1), find(a, K::kBackward, 2, 1)); }},
    {"life", "SHARD_GRAD missing", layout_of(3), [](Actions& a) { erase(a, find(a, K::kShardGrad, 1)); }},
    {"life", "SHARD_GRAD twice", layout_of(3), [](Actions& a) { twice(a, find(a, K::kShardGrad, 1)); }},
    {"life", "SHARD_GRAD before its REDUCE_GRAD", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kShardGrad, 1), find(a, K::kReduceGrad, 1)); }},
    {"life", "zero 1 drops no gradients", layout_of(1),
     [](Actions& a) { insert(a, find(a, K::kLoss), {.kind = K::kShardGrad, .bucket = 0}); }},
    {"life", "REDUCE_SHARD missing", layout_of(3), [](Actions& a) { erase(a, find(a, K::kReduceShard, 1)); }},
    {"life", "REDUCE_SHARD twice", layout_of(1), [](Actions& a) { twice(a, find(a, K::kReduceShard, 1)); }},
    {"life", "REDUCE_SHARD before SHARD_GRAD", layout_of(2),
     [](Actions& a) { move(a, find(a, K::kReduceShard, 1), find(a, K::kShardGrad, 1, 1)); }},
    {"life", "REDUCE_SHARD before REDUCE_GRAD", layout_of(1),
     [](Actions& a) { move(a, find(a, K::kReduceShard, 1), find(a, K::kReduceGrad, 1)); }},
    {"life", "SHARD_GRAD after NORM", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kShardGrad, 1, 1), find(a, K::kNorm)); }},
    {"life", "REDUCE_SHARD after NORM", layout_of(3),
     [](Actions& a) { move(a, find(a, K::kReduceShard, 1), find(a, K::kNorm)); }},
    {"life", "a unit that is not updated", layout_of(2), [](Actions& a) { erase(a, find(a, K::kStep, 1)); }},
    {"life", "a unit that is updated twice", layout_of(1), [](Actions& a) { twice(a, find(a, K::kStep, 1)); }},
    {"life", "a unit that is updated before NORM", layout_of(1),
     [](Actions& a) { move(a, find(a, K::kStep, 0), find(a, K::kNorm)); }},
    {"life", "zero 3 updates unit by unit", layout_of(3), [](Actions& a) { a[find(a, K::kStep)].unit = 0; }},
    {"update", "forward after the first update", layout_of(1), [](Actions& a) { move(a, 0, a.size() - 1); }},
    {"deadlock", "two gathers in another order", layout_of(1),
     [](Actions& a) {
       const size_t i = find(a, K::kUnshard, 1);
       std::swap(a[i].unit, a[find(a, K::kUnshard, 0)].unit);
     }},
    {"deadlock", "a gather behind a reduction", layout_of(3),
     [](Actions& a) { std::swap(a[find(a, K::kReduceGrad)], a[find(a, K::kUnshard, 1, 1)]); }},
    {"deadlock", "sums over the groups in another order", layout_of(1),
     [](Actions& a) { std::swap(a[find(a, K::kReduceShard, 0)], a[find(a, K::kReduceShard, 1)]); }},
};

TEST(ShardingMutantsTest, TheVerifierNamesWhatIsWrongWithEach) {
  for (const Mutant& mutant : kMutants) {
    Program program = build_program(mutant.layout);
    ASSERT_THAT(verify(program, mutant.layout), IsEmpty());
    if (mutant.breaks) {
      mutant.breaks(own_list(program, 1));
    } else {
      program.buckets[0].units = {kHead, 2};
      program.buckets[0].begin = program.buckets[1].begin;
    }
    EXPECT_THAT(join(verify(program, mutant.layout), "\n"), HasSubstr(cat("[", mutant.rule, "]"))) << mutant.what;
  }
}

// Every action of a good program is there for a reason: without it, or with it twice, the program is broken.
TEST(ShardingMutantsTest, NoActionIsTooManyOrTooFew) {
  for (const Layout& layout : {layout_of(1), layout_of(2), layout_of(3), keeping_after_forward(), narrow()}) {
    const Program good = build_program(layout);
    for (size_t i = 0; i < good.list(0).size(); ++i) {
      Program without = good, with = good;
      for (int rank = 0; rank < good.world_size(); ++rank) {
        erase(own_list(without, rank), i);
        twice(own_list(with, rank), i);
      }
      EXPECT_THAT(verify(without, layout), Not(IsEmpty())) << "without action " << i;
      EXPECT_THAT(verify(with, layout), Not(IsEmpty())) << "action " << i << " twice";
    }
  }
}

}  // namespace
}  // namespace lockstep::program
