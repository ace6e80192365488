// The table "Memory, measured" of docs/parallelism/zero.md: every stage of ZeRO over 2, 3 and 4 ranks; formula, prediction
// and measurement side by side. Where the page says something else, the failure prints the table that belongs there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::layout_for;
using engine::testing::microbatches;
using program::MemoryBytes;

constexpr const char* kBegin = "<!-- memory table -->\n";
constexpr const char* kEnd = "<!-- end of memory table -->\n";

program::Layout layout_of(int zero, int dp) {
  return layout_for({.preset = "gpt2-10m", .dp = dp, .micro_batch = 2, .seq_len = 64, .zero = zero}, 2 * dp);
}

struct Row {
  MemoryBytes predicted, measured;
};

// Of rank 0 after a step.
Row run(const program::Layout& layout) {
  Row row;
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
    if (world.rank() == 0) row = {program::predict_memory(layout, executor.program(), 0), executor.measured_memory()};
  });
  return row;
}

std::string mib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", bytes / (1 << 20));
  return text;
}
std::string mib(int64_t bytes) { return mib(static_cast<double>(bytes)); }

// Bytes by the formulas of the page: N elements of all units; u of the two that are gathered at one time, the largest
// neighbours; u' of those whose gradients are not reduced yet.
struct Formula {
  std::string text;
  double bytes;
};

struct Sizes {
  double n, dp, unit, pair;
};

Sizes sizes_of(const program::Layout& layout, int dp) {
  const arch::FlatLayout flat = layout.flat_layout(0);
  double unit = 0, pair = 0;
  for (size_t i = 0; i < flat.units.size(); ++i) {
    const auto here = static_cast<double>(flat.units[i].numel());
    unit = std::max(unit, here);
    if (i > 0) pair = std::max(pair, here + static_cast<double>(flat.units[i - 1].numel()));
  }
  return {.n = static_cast<double>(flat.numel), .dp = static_cast<double>(dp), .unit = unit, .pair = pair};
}

Formula parameters(int zero, const Sizes& s) {
  if (zero < 3) return {"4 N", 4 * s.n};
  return {cat("4 N/", s.dp, " + 4 u"), 4 * s.n / s.dp + 4 * s.pair};
}
Formula gradients(int zero, const Sizes& s) {
  if (zero < 2) return {"4 N", 4 * s.n};
  return {cat("4 N/", s.dp, " + 4 u'"), 0};
}
Formula optimizer(int zero, const Sizes& s) {
  if (zero == 0) return {"8 N", 8 * s.n};
  return {cat("8 N/", s.dp), 8 * s.n / s.dp};
}

std::string table() {
  const program::Layout model = layout_of(0, 2);
  std::string text = cat(
      "Rank 0 after one step, bytes in MiB: ", arch::describe(model.model),
      ", fp32, one microbatch of 2 x 64 tokens, one layer of prefetch. Predicted by walking the program, measured by the "
      "allocator; a test (`engine.memory_docs_test`) makes the table and holds the two within 5 %.\n\n");
  text +=
      "| zero | dp | parameters | | | gradients | | | optimizer | | | peak | |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
      "| | | formula | predicted | measured | formula | predicted | measured | formula | predicted | measured | predicted "
      "| measured |\n";
  for (int zero = 0; zero <= 3; ++zero)
    for (int dp = 2; dp <= 4; ++dp) {
      const program::Layout layout = layout_of(zero, dp);
      const Sizes s = sizes_of(layout, dp);
      const Row row = run(layout);
      const auto cells = [&](const Formula& formula, MemoryCategory category) {
        const auto predicted = static_cast<double>(row.predicted[category]);
        if (formula.bytes > 0) {
          EXPECT_NEAR(predicted, formula.bytes, 1e-9 * formula.bytes) << formula.text;
        }
        EXPECT_NEAR(static_cast<double>(row.measured[category]), predicted, 0.05 * predicted);
        return cat(formula.text, " | ", mib(row.predicted[category]), " | ", mib(row.measured[category]), " | ");
      };
      text += cat("| ", zero, " | ", dp, " | ", cells(parameters(zero, s), MemoryCategory::kParameters),
                  cells(gradients(zero, s), MemoryCategory::kGradients), cells(optimizer(zero, s), MemoryCategory::kOptimizer),
                  mib(row.predicted.peak), " | ", mib(row.measured.peak), " |\n");
    }
  return text;
}

TEST(MemoryDocs, TheTableOfThePageIsWhatIsMeasured) {
  install_memory_tracking();
  const std::string page = read_file(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "docs" / "parallelism" / "zero.md");
  const size_t begin = page.find(kBegin), end = page.find(kEnd, begin);
  const std::string made = table();
  ASSERT_NE(begin, std::string::npos) << "no table:\n" << kBegin << made << kEnd;
  const size_t from = begin + std::string(kBegin).size();
  EXPECT_EQ(page.substr(from, end - from), made);
}

}  // namespace
}  // namespace lockstep::engine
