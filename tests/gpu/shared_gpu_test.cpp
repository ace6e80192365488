// Layouts whose ranks share one GPU, as threads over shared memory: `verify` against one rank on the same GPU. Long on the
// emulated one, where each of the optimizer's elements is a fiber's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/data/token_file.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/train/verify.h"
#include "support/run_ranks.h"

namespace lockstep::train {
namespace {

std::filesystem::path tokens() {
  const std::filesystem::path prefix = std::filesystem::path(::testing::TempDir()) / cat("shared_gpu_", getpid()) / "tokens";
  if (std::filesystem::exists(data::idx_path(prefix))) return prefix;
  std::filesystem::create_directories(prefix.parent_path());
  data::TokenFileWriter writer(prefix, 512);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 4000; ++i) ids.push_back(i * i % 509);
  writer.add_document(ids);
  writer.finish();
  return prefix;
}

struct Shared {
  std::string name;
  int ranks = 2;
  std::vector<std::string> fields{};  // "parallel.zero=1"
};
std::ostream& operator<<(std::ostream& out, const Shared& layout) { return out << layout.name; }

class SharedGpu : public ::testing::TestWithParam<Shared> {};

TEST_P(SharedGpu, ComputesWhatOneRankDoes) {
  std::vector<config::Override> overrides = {
      {"model.preset", "gpt2-test"}, {"model.vocab_size", "512"},      {"data.train", tokens().string()},
      {"train.device", "cuda"},      {"train.steps", "10"},            {"train.seq_len", "16"},
      {"train.global_batch", "8"},   {"train.micro_batch", "1"},       {"train.threads", "1"},
      {"optimizer.schedule", "constant"}, {"optimizer.lr", "1e-3"},    {"optimizer.warmup_steps", "0"},
      {"parallel.backend", "shared_memory"}, {"parallel.bucket_mib", "0.1"}};
  for (const std::string& field : GetParam().fields)
    overrides.push_back({field.substr(0, field.find('=')), field.substr(field.find('=') + 1)});
  config::LoadedConfig loaded = config::load_config({}, overrides);
  const program::Layout layout = program::layout_of(loaded, GetParam().ranks);
  VerifyReport report;
  const auto run = [&](comm::World& world) {
    VerifyReport mine = verify(loaded.config, layout, world, {});
    if (world.rank() == 0) report = std::move(mine);
  };
  // The others wait while rank 0 runs its twin.
  lockstep::testing::run_ranks(GetParam().ranks, run, {.deadline = std::chrono::minutes(5), .limit = std::chrono::minutes(5)});
  EXPECT_TRUE(report.ok) << verify_text(report);
  EXPECT_EQ(report.steps.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(LongLayouts, SharedGpu,
                         ::testing::Values(Shared{"dp"}, Shared{"zero1", 2, {"parallel.zero=1"}},
                                           Shared{"zero2", 2, {"parallel.zero=2"}},
                                           Shared{"zero3", 3, {"parallel.zero=3", "train.global_batch=9"}},
                                           Shared{"tp", 2, {"parallel.tp=2"}}, Shared{"pp", 2, {"parallel.pp=2"}},
                                           Shared{"tp_pp", 4, {"parallel.tp=2", "parallel.pp=2"}},
                                           Shared{"zero1_bf16", 2, {"parallel.zero=1", "train.precision=bf16"}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::train
