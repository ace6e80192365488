// Memory, measured: what every layout holds and takes, beside what the program predicts; limits that are kept.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/test_steps.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using ::testing::HasSubstr;

struct Compared {
  program::MemoryBytes predicted, measured;
};

// One step on every rank.
std::vector<Compared> step_of(const program::Layout& layout) {
  install_memory_tracking();
  const int ranks = layout.mesh.world_size();
  std::vector<Compared> all(static_cast<size_t>(ranks));
  lockstep::testing::run_ranks(ranks, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
    all[static_cast<size_t>(world.rank())] = {program::predict_memory(layout, executor.program(), world.rank()),
                                              executor.measured_memory()};
  });
  return all;
}

void expect_predicted(const program::Layout& layout, const std::string& what) {
  const std::vector<Compared> all = step_of(layout);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto expect_near = [&](int64_t measured, int64_t predicted, std::string_view name) {
      EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(predicted), 0.05 * static_cast<double>(predicted))
          << what << ", " << program::describe(layout) << ", rank " << rank << ": " << name;
    };
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
      expect_near(all[rank].measured.bytes[i], all[rank].predicted.bytes[i],
                  program::category_name(static_cast<MemoryCategory>(i)));
    expect_near(all[rank].measured.peak, all[rank].predicted.peak, "peak");
  }
}

constexpr int64_t kSequences = 12;

Case base(int zero, int dp) {
  Case c{.preset = "llama-test", .dp = dp, .micro_batch = 1, .seq_len = 64};
  c.zero = zero;
  return c;
}

TEST(Memory, OfEveryStageIsThePredictedOne) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
    for (const int dp : {2, 3})
      for (const int zero : {0, 1, 2, 3}) {
        Case c = base(zero, dp);
        c.precision = precision;
        c.micro_batch = 2;  // packing areas of bf16 products are bounded by a constant: not for the smallest sizes
        expect_predicted(layout_for(c, kSequences), cat("zero ", zero));
      }
}

TEST(Memory, OfGroupsOfShardsAndOfTensorParallelShards) {
  for (const int zero : {1, 2, 3}) {
    Case hsdp = base(zero, 4);
    hsdp.dp_replicate = 2;
    expect_predicted(layout_for(hsdp, kSequences), "hsdp");
    Case tensor = base(zero, 2);
    tensor.tp = 2;
    expect_predicted(layout_for(tensor, kSequences), "tp");
    tensor.row_groups = true;
    expect_predicted(layout_for(tensor, kSequences), "tp, row groups");
  }
}

TEST(Memory, OfParametersThatStayAndOfOnesThatComeEarly) {
  program::Layout layout = layout_for(base(3, 2), kSequences);
  layout.prefetch = 2;
  expect_predicted(layout, "prefetch 2");
  layout.reshard_after_forward = false;
  expect_predicted(layout, "kept after forward");
  layout.reshard_after_microbatch = false;
  expect_predicted(layout, "kept across microbatches");
  layout = layout_for(base(2, 2), kSequences);
  layout.overlap = false;
  expect_predicted(layout, "without overlap");
}

TEST(Memory, OfEveryChoiceOfRecomputation) {
  for (const arch::Recompute recompute : {arch::Recompute::kSelective, arch::Recompute::kFull})
    for (const int zero : {0, 3}) {
      Case c = base(zero, 2);
      c.recompute.assign(3, recompute);
      expect_predicted(layout_for(c, kSequences), cat("zero ", zero, ", recompute ", static_cast<int>(recompute)));
      c.recompute[0] = arch::Recompute::kNone;
      expect_predicted(layout_for(c, kSequences), cat("zero ", zero, ", recompute of one block"));
    }
}

TEST(Memory, OfWhatLivesOnTheHost) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
    for (const auto& [zero, dp] : {std::pair{0, 1}, {0, 2}, {2, 2}, {3, 2}})
      for (const bool parameters : {false, true}) {
        if (parameters && dp > 1 && zero != 3) continue;  // config/check.h refuses it
        Case c = base(zero, dp);
        const bool bf16 = precision == config::Precision::kBf16;
        if (bf16 && zero != 3) continue;
        if (bf16) c.preset = "gpt2-10m";  // as above
        c.precision = precision;
        c.micro_batch = bf16 ? 2 : 1;
        c.offload = {.optimizer = true, .parameters = parameters};
        const int64_t sequences = bf16 ? 4 : kSequences;
        expect_predicted(layout_for(c, sequences), cat("zero ", zero, parameters ? ", parameters offloaded" : ", optimizer offloaded"));
        c.recompute.assign(bf16 ? 4 : 3, arch::Recompute::kFull);
        c.offload.activations = true;
        expect_predicted(layout_for(c, sequences), cat("zero ", zero, ", activations offloaded too"));
      }
}

TEST(Memory, OfGradientsThatTravelInBf16) {
  for (const int zero : {1, 2, 3}) {
    program::Layout layout = layout_for(base(zero, 2), kSequences);
    layout.reduce_precision = config::Precision::kBf16;
    expect_predicted(layout, cat("zero ", zero, ", bf16 on the wire"));
  }
}

TEST(DeviceLimit, AnAllocationBeyondItNamesRankActionAndBytes) {
  install_memory_tracking();
  program::Layout layout = layout_for(base(0, 1), kSequences);
  const program::MemoryBytes needed = step_of(layout)[0].measured;
  const auto step_with = [&](int64_t limit) {
    layout.device_limit = limit;
    step_of(layout);
  };
  EXPECT_NO_THROW(step_with(needed.peak));
  try {
    step_with(needed.peak - 1);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kOutOfMemory);
    EXPECT_EQ(error.message().code, "LS4001");
    EXPECT_THAT(error.message().what, HasSubstr("rank 0 ("));
    EXPECT_THAT(error.message().what, HasSubstr(", microbatch "));
    EXPECT_THAT(error.message().what, HasSubstr("free of memory.device_limit"));
    EXPECT_EQ(error.measured[MemoryCategory::kParameters], needed[MemoryCategory::kParameters]);
  }
}

TEST(DeviceLimit, TheHostIsNotPartOfIt) {
  install_memory_tracking();
  const auto account = std::make_shared<MemoryAccount>(1000);
  const auto take = [&](MemoryCategory category, int64_t bytes) {
    const MemoryScope scope(account, category);
    return at::empty({bytes}, at::kByte);
  };
  const at::Tensor host = take(MemoryCategory::kHost, 5000), first = take(MemoryCategory::kParameters, 600);
  EXPECT_THROW(take(MemoryCategory::kGradients, 401), DeviceLimitReached);
  EXPECT_EQ(account->live_total(), 600);
  {
    const at::Tensor second = take(MemoryCategory::kGradients, 400);
    EXPECT_EQ(account->live_total(), 1000);
  }
  EXPECT_EQ(account->live_total(), 600);
  EXPECT_EQ(account->peak_total(), 1000);
  EXPECT_EQ(account->peak(MemoryCategory::kHost), 5000);
}

TEST(OutOfMemory, OfTheHostOrTheDeviceNamesTheActionToo) {
  const program::Layout layout = layout_for(base(0, 1), kSequences);
  const auto failing = [&](const std::function<void()>& fail) {
    lockstep::testing::run_ranks(1, [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout,
                         .before_action =
                             [&](const program::Action& action, ParameterStore&) {
                               if (action.kind == program::ActionKind::kBackward && action.layer == 1) fail();
                             }},
                        groups);
      executor.step(microbatches(layout, 0, 0), 1, 1e-3);
    });
  };
  for (const std::function<void()>& fail : {std::function<void()>([] { throw std::bad_alloc(); }),
                                            std::function<void()>([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); })}) {
    try {
      failing(fail);
      FAIL() << "no error";
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.message().code, "LS4002");
      EXPECT_THAT(error.message().what, HasSubstr("backward of blocks.0, microbatch 0"));
    }
  }
  EXPECT_THROW(failing([] { throw PeerLostError({.code = "LS3003", .what = "gone"}); }), PeerLostError);
}

}  // namespace
}  // namespace lockstep::engine
