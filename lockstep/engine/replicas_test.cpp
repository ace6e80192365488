// One bit of one rank is flipped in each kind of state of each layout: all ranks name the tensor and the rank.
#include "lockstep/engine/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/engine/test_steps.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Case;

struct Flip {
  std::string name;
  Case layout;
  int rank = 1;              // whose bit
  std::string tensor;        // where
  StateKind kind = StateKind::kParameter;
  std::string told;          // by all ranks; empty: nobody else holds it
};

void flip_bit(ParameterStore& store, const std::string& name, StateKind kind) {
  for (const StateTensor& tensor : store.state()) {
    if (tensor.name != name || tensor.kind != kind || tensor.local.numel() == 0) continue;
    static_cast<uint8_t*>(tensor.local.data_ptr())[tensor.local.nbytes() / 2] ^= 4;
    return;
  }
  FAIL() << "no " << name;
}

// What each rank says after a step, and after the flip.
void compare(const program::Layout& layout, const std::optional<Flip>& flip, std::vector<std::vector<std::string>>& before,
             std::vector<std::vector<std::string>>& after) {
  std::mutex mutex;
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    executor.step(testing::microbatches(layout, world.rank(), 0), 1, 1e-3);
    const auto first = replica_differences(executor, groups);
    if (flip && world.rank() == flip->rank) flip_bit(executor.store(), flip->tensor, flip->kind);
    const auto second = replica_differences(executor, groups);
    const std::lock_guard lock(mutex);
    before.push_back(first);
    after.push_back(second);
  });
}

class Replicas : public ::testing::TestWithParam<Flip> {};

TEST_P(Replicas, AFlippedBitIsNamed) {
  const Flip& flip = GetParam();
  std::vector<std::vector<std::string>> before, after;
  compare(testing::layout_for(flip.layout), flip, before, after);
  for (const auto& told : before) EXPECT_THAT(told, IsEmpty());
  ASSERT_EQ(after.size(), static_cast<size_t>(flip.layout.ranks()));
  for (const auto& told : after) {
    if (flip.told.empty())
      EXPECT_THAT(told, IsEmpty());
    else
      EXPECT_THAT(told, ElementsAre(flip.told));
  }
}

const std::string kExpert = "blocks.0.experts.0.up.weight", kRouter = "blocks.0.experts.router.weight";
const std::string kUp = "blocks.0.mlp.up.weight", kNorm = "blocks.1.mlp_norm.weight", kTokens = "embed.tokens.weight";

std::vector<Flip> flips() {
  const Case zero1{.dp = 2, .zero = 1}, hsdp{.dp = 4, .zero = 3, .dp_replicate = 2}, tp{.dp = 1, .tp = 2}, pp{.dp = 1, .pp = 2};
  const Case ep{.preset = "mixtral-test", .dp = 4, .micro_batch = 1, .ep = 2};
  std::vector<Flip> all = {
      {.name = "dp", .layout = {.dp = 3}, .tensor = kUp, .told = cat("parameter ", kUp, ": rank 1 differs from ranks 0,2 (dp)")},
      {.name = "dp_moment", .layout = {.dp = 2}, .tensor = kUp, .kind = StateKind{"exp_avg_sq"},
       .told = cat("second moment ", kUp, ": rank 1 differs from rank 0 (dp)")},
      {.name = "dp_rank_0", .layout = {.dp = 3}, .rank = 0, .tensor = kUp, .kind = StateKind{"exp_avg"},
       .told = cat("first moment ", kUp, ": rank 0 differs from ranks 1-2 (dp)")},
      {.name = "bf16_copy", .layout = {.dp = 2, .precision = config::Precision::kBf16}, .tensor = kUp,
       .told = cat("parameter ", kUp, ": rank 1 differs from rank 0 (dp)")},
      {.name = "bf16_master", .layout = {.dp = 2, .precision = config::Precision::kBf16}, .tensor = kUp, .kind = StateKind::kMaster,
       .told = cat("master weight ", kUp, ": rank 1 differs from rank 0 (dp)")},
      {.name = "zero1_gathered", .layout = zero1, .tensor = kUp, .told = cat("parameter ", kUp, ": rank 1 differs from rank 0 (dp)")},
      {.name = "zero1_moment_of_one_owner", .layout = zero1, .tensor = kTokens, .kind = StateKind{"exp_avg"}, .told = ""},
      {.name = "hsdp_shard", .layout = hsdp, .rank = 3, .tensor = kUp,
       .told = cat("parameter ", kUp, ": rank 3 differs from rank 1 (dp_replicate)")},
      {.name = "hsdp_moment", .layout = hsdp, .rank = 2, .tensor = kUp, .kind = StateKind{"exp_avg"},
       .told = cat("first moment ", kUp, ": rank 2 differs from rank 0 (dp_replicate)")},
      {.name = "tp_norm", .layout = tp, .tensor = kNorm, .told = cat("parameter ", kNorm, ": rank 1 differs from rank 0 (tp)")},
      {.name = "tp_bias_of_row_parallel", .layout = tp, .tensor = "blocks.0.mlp.down.bias", .kind = StateKind{"exp_avg"},
       .told = "first moment blocks.0.mlp.down.bias: rank 1 differs from rank 0 (tp)"},
      {.name = "tp_norm_of_row_groups", .layout = {.dp = 1, .tp = 2, .row_groups = true}, .tensor = kNorm, .kind = StateKind{"exp_avg"},
       .told = cat("first moment ", kNorm, ": rank 1 differs from rank 0 (tp)")},
      {.name = "tp_piece_of_one_rank", .layout = tp, .tensor = kUp, .told = ""},
      {.name = "tp_shared_heads", .layout = {.preset = "llama-test", .dp = 1, .tp = 4, .kv_heads = 2}, .rank = 3,
       .tensor = "blocks.0.attention.k.weight", .told = "parameter blocks.0.attention.k.weight: rank 3 differs from rank 2 (kv)"},
      {.name = "pp_tied", .layout = pp, .tensor = kTokens, .told = cat("parameter ", kTokens, ": rank 1 differs from rank 0 (tied)")},
      {.name = "pp_tied_moment", .layout = pp, .rank = 0, .tensor = kTokens, .kind = StateKind{"exp_avg_sq"},
       .told = cat("second moment ", kTokens, ": rank 1 differs from rank 0 (tied)")},
      {.name = "server", .layout = {.dp = 2, .kind = config::DataParallel::kParameterServer}, .tensor = kUp,
       .told = cat("parameter ", kUp, ": rank 1 differs from rank 0 (dp)")},
      {.name = "server_moment", .layout = {.dp = 2, .kind = config::DataParallel::kParameterServer}, .rank = 0, .tensor = kUp,
       .kind = StateKind{"exp_avg"}, .told = ""},
      {.name = "host", .layout = {.dp = 2, .offload = {.optimizer = true}}, .tensor = kUp, .kind = StateKind{"exp_avg"},
       .told = cat("first moment ", kUp, ": rank 1 differs from rank 0 (dp)")},
      {.name = "expert", .layout = ep, .rank = 2, .tensor = kExpert,
       .told = cat("parameter ", kExpert, ": rank 2 differs from rank 0 (edp)")},
      {.name = "expert_moment", .layout = ep, .rank = 0, .tensor = kExpert, .kind = StateKind{"exp_avg"},
       .told = cat("first moment ", kExpert, ": rank 2 differs from rank 0 (edp)")},
      {.name = "expert_of_one_rank", .layout = {.preset = "mixtral-test", .ep = 2}, .rank = 0, .tensor = kExpert, .told = ""},
      {.name = "expert_over_tp", .layout = {.preset = "mixtral-test", .dp = 1, .tp = 2}, .tensor = kExpert,
       .told = cat("parameter ", kExpert, ": rank 1 differs from rank 0 (edp)")},
      {.name = "router", .layout = ep, .rank = 3, .tensor = kRouter,
       .told = cat("parameter ", kRouter, ": rank 3 differs from ranks 0-2 (dp)")},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(, Replicas, ::testing::ValuesIn(flips()),
                         [](const ::testing::TestParamInfo<Flip>& info) { return info.param.name; });

// The value that the host updates, of which the device has a copy.
TEST(ReplicasOnTheHost, ValuesAreCompared) {
  const program::Layout layout = testing::layout_for({.dp = 2, .offload = {.optimizer = true}});
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    executor.step(testing::microbatches(layout, world.rank(), 0), 1, 1e-3);
    EXPECT_THAT(replica_differences(executor, groups), IsEmpty());
    if (world.rank() == 0) executor.store().value_part(1)[7] += 1.0;
    EXPECT_THAT(replica_differences(executor, groups), ElementsAre(::testing::StartsWith("master weight blocks.0.")));
  });
}

// Many tensors at once: as many as one can read.
TEST(ReplicasOfAnotherSeed, AreToldWithABound) {
  const program::Layout layout = testing::layout_for({.dp = 2});
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .seed = static_cast<uint64_t>(world.rank())}, groups);
    const auto told = replica_differences(executor, groups);
    ASSERT_EQ(told.size(), 9u);
    EXPECT_THAT(told.back(), ::testing::MatchesRegex("and [0-9]+ more"));
  });
}

}  // namespace
}  // namespace lockstep::engine
