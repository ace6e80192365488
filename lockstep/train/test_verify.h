// Layouts under `verify`, over ranks as threads; for the tests of this room.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/data/token_file.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/train/verify.h"
#include "support/run_ranks.h"

namespace lockstep::train::testing {

inline std::filesystem::path folder() { return std::filesystem::path(::testing::TempDir()) / cat("verify_", getpid()); }

inline void write_tokens() {
  if (std::filesystem::exists(data::idx_path(folder() / "tokens"))) return;
  std::filesystem::create_directories(folder());
  data::TokenFileWriter writer(folder() / "tokens", 512);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 4000; ++i) ids.push_back(i * i % 509);
  writer.add_document(ids);
  writer.finish();
}

struct Job {
  int ranks = 2;
  std::vector<std::string> fields{};  // "parallel.zero=1"
  VerifyOptions options{};
  bool disk = false;  // as much of the optimizer's state as can lie there
};

inline VerifyReport verified(const Job& job) {
  write_tokens();
  std::vector<config::Override> overrides = {
      {"model.preset", "gpt2-test"}, {"model.vocab_size", "512"},      {"data.train", (folder() / "tokens").string()},
      {"train.steps", "10"},         {"train.seq_len", "16"},          {"train.global_batch", "8"},
      {"train.micro_batch", "1"},    {"train.threads", "1"},           {"optimizer.schedule", "constant"},
      {"optimizer.lr", "1e-3"},      {"optimizer.warmup_steps", "0"},  {"parallel.bucket_mib", "0.1"}};
  for (const std::string& field : job.fields)
    overrides.push_back({field.substr(0, field.find('=')), field.substr(field.find('=') + 1)});
  config::LoadedConfig loaded = config::load_config({}, overrides);
  program::Layout layout = program::layout_of(loaded, job.ranks);
  if (job.disk) engine::testing::put_on_disk(layout);
  loaded.config.memory.disk_path = folder().string();
  VerifyReport report;
  lockstep::testing::run_ranks(job.ranks, [&](comm::World& world) {
    VerifyReport mine = verify(loaded.config, layout, world, job.options);
    if (world.rank() == 0) report = std::move(mine);
  });
  return report;
}

inline std::vector<std::string> failures(const VerifyReport& report) {
  std::vector<std::string> all;
  for (const VerifyStep& step : report.steps) all.insert(all.end(), step.failures.begin(), step.failures.end());
  return all;
}

inline void expect_right(const Job& job) {
  const VerifyReport report = verified(job);
  EXPECT_TRUE(report.ok) << verify_text(report);
  EXPECT_EQ(static_cast<int64_t>(report.steps.size()), job.options.steps);
  EXPECT_THAT(failures(report), ::testing::IsEmpty());
  for (const VerifyStep& step : report.steps) EXPECT_LE(step.max_update_error, 1) << step.worst_update;
}

}  // namespace lockstep::train::testing
