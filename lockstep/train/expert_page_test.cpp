// The load of experts comes onto the run's page, whether a step was traced or not, and a run that goes on has what it had.
#include "lockstep/train/expert_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/program/passes/job.h"
#include "lockstep/train/test_run_output.h"

namespace lockstep::train {
namespace {

using testing::TestOutput;
using ::testing::HasSubstr;
using ::testing::Not;

program::Layout layout_of(const std::string& preset, int ranks = 1) {
  config::LoadedConfig loaded = config::load_config({}, {{"model.preset", preset}, {"train.seq_len", "16"}, {"model.vocab_size", "512"}});
  loaded.config.parallel.ep = ranks;
  return program::layout_of(loaded, ranks);
}

// All tokens of every layer to expert 0, and from `second` on to expert 1 as well.
StepRecord step_of(const program::Layout& layout, int64_t step, int64_t second) {
  StepRecord record{.step = step};
  const auto each = static_cast<size_t>(layout.model.experts.count + program::kLoadExtras);
  record.result.loads.assign(static_cast<size_t>(layout.load_numbers()), 0.0);
  for (size_t begin = 0; begin < record.result.loads.size(); begin += each) {
    record.result.loads[begin] = 32;
    if (step >= second) record.result.loads[begin + 1] = 32;
  }
  return record;
}

TEST(ExpertPage, IsMadeAndMadeAgain) {
  const support::ScopedFolder folder("expert-page");
  const RunDirectory directory(folder / "small");
  std::filesystem::create_directories(directory.root());
  TestOutput output("expert-page-output");
  const program::Layout layout = layout_of("mixtral-test");
  ExpertPage page(directory, layout, *output, true);
  page.write();
  EXPECT_FALSE(std::filesystem::exists(directory.report())) << "nothing is known";
  page.known(step_of(layout, 1, 2), {.step = 1});
  page.write();
  EXPECT_THAT(read_file(directory.report()), HasSubstr("1 (never), 2 (never)"));
  page.known(step_of(layout, 2, 2), {.step = 2});
  page.write();
  const std::string text = read_file(directory.report());
  EXPECT_THAT(text, HasSubstr("<h1>small</h1>"));
  EXPECT_THAT(text, HasSubstr("steps 1 to 2"));
  EXPECT_THAT(text, Not(HasSubstr("1 (never)")));
  EXPECT_EQ(text.find("<section id=\"experts\">"), text.rfind("<section id=\"experts\">"));
  EXPECT_THAT(text, Not(HasSubstr("experts over ep")));
  const program::Layout elsewhere = layout_of("mixtral-test", 2);
  ExpertPage later(directory, elsewhere, *output, true);
  later.known(step_of(elsewhere, 3, 1), {.step = 3});
  later.write();
  EXPECT_THAT(read_file(directory.report()), HasSubstr("experts over ep 2"));
  write_file(directory.report(), "<p>a traced step</p></body>\n</html>\n");  // as StepTracer writes it
  page.write();
  EXPECT_THAT(read_file(directory.report()), HasSubstr("<p>a traced step</p><!-- experts -->\n<section"));
}

TEST(ExpertPage, GoesOnWithWhatWasLogged) {
  const support::ScopedFolder folder("expert-page-resumed");
  const RunDirectory directory(folder.path());
  TestOutput output("expert-page-resumed-output");
  const program::Layout layout = layout_of("mixtral-test");
  std::string even = "4";
  for (int64_t e = 1; e < layout.model.experts.count; ++e) even += " 4";
  std::string fields;
  for (int block = 0; block < static_cast<int>(layout.model.layers); ++block)
    if (!layout.model.experts.is_dense(block)) fields += cat(",\"blocks.", block, "\":\"", even, "\",\"blocks.", block, "/dropped\":8");
  std::string metrics;
  for (int step = 1; step <= 4; ++step) metrics += cat("{\"event\":\"expert_load\",\"step\":", step, ",\"time\":0.5", fields, "}\n");
  write_file(directory.metrics(), "{\"step\":1,\"train/loss\":2.5}\n" + metrics + "{\"event\":\"expert_load\",\"st");
  ExpertPage page(directory, layout, *output, true);
  page.resume(2);
  page.known(step_of(layout, 3, 1), {.step = 3});
  page.write();
  EXPECT_THAT(read_file(directory.report()), HasSubstr("steps 1 to 3"));
  EXPECT_THAT(read_file(directory.report()), HasSubstr("2 (step 2), 3 (step 2)"));
}

// A capacity drops, but for experts that choose their tokens.
TEST(ExpertPage, DrawsWhatACapacityDrops) {
  const support::ScopedFolder folder("expert-page-drops");
  const RunDirectory directory(folder.path());
  TestOutput output("expert-page-drops-output");
  for (const bool choice : {false, true}) {
    program::Layout layout = layout_of("mixtral-test");
    layout.moe.capacity_factor = 1;
    if (choice) layout.model.experts.router = config::Router::kExpertChoice;
    ExpertPage page(directory, layout, *output, true);
    StepRecord record = step_of(layout, 1, 1);  // 64 assignments of a layer
    const auto each = static_cast<size_t>(layout.model.experts.count + program::kLoadExtras);
    if (!choice) {
      for (size_t dropped = each - program::kLoadExtras; dropped < record.result.loads.size(); dropped += each) record.result.loads[dropped] = 16;
    }
    page.known(record, {.step = 1});
    page.write();
    const std::string text = read_file(directory.report());
    EXPECT_EQ(text.find("<th>dropped</th>") == std::string::npos, choice);
    EXPECT_EQ(text.find("<td>25 %</td>") == std::string::npos, choice);
  }
}

TEST(ExpertPage, OthersWriteNone) {
  const support::ScopedFolder folder("expert-page-none");
  const RunDirectory directory(folder.path());
  TestOutput output("expert-page-none-output");
  const program::Layout experts = layout_of("mixtral-test"), dense = layout_of("gpt2-test");
  ExpertPage other_rank(directory, experts, *output, false), without(directory, dense, *output, true);
  other_rank.known(step_of(experts, 1, 1), {.step = 1});
  without.known({.step = 1}, {.step = 1});
  other_rank.write();
  without.write();
  EXPECT_FALSE(std::filesystem::exists(directory.report()));
}

}  // namespace
}  // namespace lockstep::train
