// The history of a long run stays small and loses no token; its picture says who takes what and names the dead.
#include "lockstep/plan/expert_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

double total(const LoadHistory& history) {
  double sum = 0;
  for (const LoadColumn& column : history.columns())
    for (const double load : column.routed) sum += load;
  return sum;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(LoadHistory, StaysSmallAndLosesNothing) {
  for (const int64_t every : {int64_t{1}, int64_t{10}}) {  // each step, or those that were logged
    LoadHistory history({"blocks.0", "blocks.1"}, 2);
    for (int64_t i = 1; i <= 1000; ++i) history.add(i * every, std::vector<double>{1, 2, 3, 0});
    EXPECT_LE(history.columns().size(), LoadHistory::kMost);
    EXPECT_GT(history.columns().size(), LoadHistory::kMost / 4);
    EXPECT_EQ(total(history), 6000);
    int64_t steps = 0, last = 0;
    for (const LoadColumn& column : history.columns()) {
      EXPECT_GT(column.first, last);
      EXPECT_GE(column.last, column.first);
      EXPECT_EQ(column.routed[2], 3 * static_cast<double>(column.steps));
      steps += column.steps;
      last = column.last;
    }
    EXPECT_EQ(steps, 1000);
    EXPECT_EQ(last, 1000 * every);
  }
}

TEST(LoadHistory, GoesBackWithTheRun) {
  LoadHistory history({"blocks.0"}, 2);
  for (int64_t step = 1; step <= 10; ++step) history.add(step, std::vector<double>{1, 0});
  history.add(4, std::vector<double>{0, 1});
  ASSERT_EQ(history.columns().size(), 4u);
  EXPECT_EQ(history.columns().back().routed, (std::vector<double>{0, 1}));
  EXPECT_EQ(total(history), 4);
}

// Expert 1 of the first layer has its last token in step 30; expert 2 of the second never has one.
LoadHistory forty_steps() {
  LoadHistory history({"blocks.0", "blocks.1"}, 4);
  for (int64_t step = 1; step <= 40; ++step) {
    const double second = step <= 30 ? 8 : 0;
    history.add(step, std::vector<double>{24 - second, second, 4, 4, 8, 8, 0, 16});
  }
  return history;
}

TEST(ExpertLoad, NamesTheDead) {
  const std::vector<LayerLoad> layers = last_loads(forty_steps());
  ASSERT_EQ(layers.size(), 2u);
  ASSERT_EQ(layers[0].dead.size(), 1u);
  EXPECT_EQ(layers[0].dead[0].expert, 1);
  EXPECT_EQ(layers[0].dead[0].last_step, 30);
  EXPECT_EQ(layers[0].largest, 3);
  EXPECT_EQ(layers[0].smallest, 0);
  ASSERT_EQ(layers[1].dead.size(), 1u);
  EXPECT_EQ(layers[1].dead[0].expert, 2);
  EXPECT_EQ(layers[1].dead[0].last_step, 0);
  EXPECT_EQ(layers[1].largest, 2);
}

TEST(ExpertLoad, SectionOfAPage) {
  const std::string section = expert_section(forty_steps());
  EXPECT_THAT(section, HasSubstr("2 of 8 experts had no token"));
  EXPECT_THAT(section, HasSubstr("<td>blocks.0</td><td>3</td><td>0</td><td class=\"l\">1 (step 30)</td>"));
  EXPECT_THAT(section, HasSubstr("<td>blocks.1</td><td>2</td><td>0</td><td class=\"l\">2 (never)</td>"));
  EXPECT_THAT(section, HasSubstr("steps 1 to 40"));
  EXPECT_EQ(count(section, "<path class=\"z\""), 2);
  EXPECT_EQ(count(section, "http"), 1);  // the name of SVG's namespace
  EXPECT_THAT(section, Not(HasSubstr("nan")));
  EXPECT_EQ(expert_section(LoadHistory({"blocks.0"}, 4)), "");
}

TEST(ExpertLoad, ALargeModelsPictureIsBounded) {
  std::vector<std::string> layers;
  for (int layer = 0; layer < 60; ++layer) layers.push_back(cat("blocks.", layer));
  LoadHistory history(layers, 256);
  std::vector<double> routed(layers.size() * 256);
  for (int64_t step = 1; step <= 100; ++step) {
    for (size_t i = 0; i < routed.size(); ++i) routed[i] = static_cast<double>((i * 7919 + static_cast<size_t>(step) * 104729) % 23);
    history.add(step, routed);
  }
  const std::string section = expert_section(history);
  EXPECT_LT(section.size(), 20u << 20);
  for (const std::string& layer : layers) EXPECT_THAT(section, HasSubstr(">" + layer + "</text>"));
}

TEST(Page, HasASectionOnce) {
  const std::string page = "<body>\n<p>a</p>\n</body>\n</html>\n";
  const std::string one = with_section(page, "experts", "<p>one</p>\n"), two = with_section(one, "experts", "<p>two</p>\n");
  EXPECT_EQ(one, "<body>\n<p>a</p>\n<!-- experts -->\n<p>one</p>\n<!-- end of experts -->\n</body>\n</html>\n");
  EXPECT_EQ(two, "<body>\n<p>a</p>\n<!-- experts -->\n<p>two</p>\n<!-- end of experts -->\n</body>\n</html>\n");
}

}  // namespace
}  // namespace lockstep::plan
