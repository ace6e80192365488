// The history of a long run stays small and loses no token; its picture says who takes what and names the dead.
#include "lockstep/plan/expert_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/drawing.h"
#include "support/folders.h"

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
    LoadHistory history({"blocks.0", "blocks.1"}, 2, true);
    for (int64_t i = 1; i <= 1000; ++i) history.add(i * every, std::vector<double>{1, 2, 3, 0}, std::vector<double>{1, 0.5});
    EXPECT_LE(history.columns().size(), LoadHistory::kMost);
    EXPECT_GT(history.columns().size(), LoadHistory::kMost / 4);
    EXPECT_EQ(total(history), 6000);
    int64_t steps = 0, last = 0;
    for (const LoadColumn& column : history.columns()) {
      EXPECT_GT(column.first, last);
      EXPECT_GE(column.last, column.first);
      const auto of_steps = static_cast<double>(column.steps);
      EXPECT_EQ(column.routed[2], 3 * of_steps);
      EXPECT_EQ(column.dropped, (std::vector<double>{of_steps, 0.5 * of_steps}));
      EXPECT_NEAR(column.max_over_mean[0], 4.0 / 3 * of_steps, 1e-9);
      EXPECT_EQ(column.max_over_mean[1], 2 * of_steps);
      steps += column.steps;
      last = column.last;
    }
    EXPECT_EQ(steps, 1000);
    EXPECT_EQ(last, 1000 * every);
  }
}

TEST(LoadHistory, GoesBackWithTheRun) {
  LoadHistory history({"blocks.0"}, 2, true);
  for (int64_t step = 1; step <= 10; ++step) history.add(step, std::vector<double>{1, 0}, std::vector<double>{1});
  history.add(4, std::vector<double>{0, 1}, std::vector<double>{0});
  ASSERT_EQ(history.columns().size(), 4u);
  EXPECT_EQ(history.columns().back().routed, (std::vector<double>{0, 1}));
  EXPECT_EQ(history.columns().back().dropped, std::vector<double>{0});
  EXPECT_EQ(total(history), 4);
}

// One expert of two has all, the other one in the next step: even over two steps, in none of them.
TEST(LoadHistory, LoadsThatChangePlacesAreUneven) {
  LoadHistory history({"blocks.0"}, 2, false);
  const int64_t steps = 4 * LoadHistory::kMost;
  for (int64_t step = 1; step <= steps; ++step)
    history.add(step, step % 2 == 0 ? std::vector<double>{4, 0} : std::vector<double>{0, 4}, std::vector<double>{0});
  for (const LoadColumn& column : history.columns()) {
    EXPECT_EQ(column.routed[0], column.routed[1]);
    EXPECT_EQ(column.max_over_mean[0], 2 * static_cast<double>(column.steps));
  }
  EXPECT_THAT(expert_section(history), HasSubstr("largest load over the mean, 2 to 2<"));
}

TEST(LoadHistory, ReadsWhatWasLogged) {
  const support::ScopedFolder folder("expert-load");
  const std::filesystem::path metrics = folder / "metrics.jsonl";
  write_file(metrics,
             "{\"step\":1,\"train/loss\":2.5}\n"
             "{\"event\":\"expert_load\",\"step\":1,\"blocks.0\":\"6 2\",\"blocks.0/dropped\":3}\n"
             "{\"event\":\"expert_load\",\"step\":2,\"blocks.0\":\"5 3\",\"blocks.0/dropped\":0}\n"
             "{\"event\":\"expert_load\",\"step\":3,\"blocks.0\":\"5 3\"}\n"                              // dropped is missing,
             "{\"event\":\"expert_load\",\"step\":3,\"blocks.0\":\"5 3\",\"blocks.0/dropped\":\"two\"}\n"  // no number,
             "{\"event\":\"expert_load\",\"step\":3,\"blocks.0\":\"5 3 1\",\"blocks.0/dropped\":1}\n"      // of another model,
             "{\"event\":\"expert_load\",\"step\":4,\"blocks.0\":\"8 0\",\"blocks.0/dropped\":1}\n"        // behind the last
             "{\"event\":\"expert_load\",\"st");
  LoadHistory history({"blocks.0"}, 2, true);
  read_loads(metrics, 3, history);
  ASSERT_EQ(history.columns().size(), 2u);
  EXPECT_EQ(history.columns()[0].routed, (std::vector<double>{6, 2}));
  EXPECT_EQ(history.columns()[0].dropped, std::vector<double>{3});
  EXPECT_EQ(history.columns()[1].dropped, std::vector<double>{0});
}

// Expert 1 of the first layer has its last token in step 30; expert 2 of the second never has one.
LoadHistory forty_steps() {
  LoadHistory history({"blocks.0", "blocks.1"}, 4, false);
  for (int64_t step = 1; step <= 40; ++step) {
    const double second = step <= 30 ? 8 : 0;
    history.add(step, std::vector<double>{24 - second, second, 4, 4, 8, 8, 0, 16}, std::vector<double>{0, 0});
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
  EXPECT_THAT(section, Not(HasSubstr("dropped"))) << "without a capacity";
  EXPECT_EQ(expert_section(LoadHistory({"blocks.0"}, 4, false)), "");
}

// The `d` of each path of a style, one after the other.
std::vector<std::string> lines_of(const std::string& section, const std::string& style) {
  std::vector<std::string> lines;
  const std::string begin = cat("<path class=\"", style, "\" d=\"");
  for (size_t at = section.find(begin); at != std::string::npos; at = section.find(begin, at + 1))
    lines.push_back(section.substr(at + begin.size(), section.find('"', at + begin.size()) - at - begin.size()));
  return lines;
}

// Two columns over 1076 pixels from 104 on, lines 28 high: max / mean below the map of 4 x 10 and 5 between, what is dropped 5 below.
TEST(ExpertLoad, LinesOverTime) {
  LoadHistory history({"blocks.0", "blocks.1"}, 4, true);
  history.add(1, std::vector<double>{16, 0, 0, 0, 4, 4, 4, 4}, std::vector<double>{8, 0});  // 4 and 1 times the mean
  history.add(2, std::vector<double>{4, 4, 4, 4, 8, 0, 8, 0}, std::vector<double>{0, 4});   // 1 and 2
  const std::string section = expert_section(history);
  EXPECT_THAT(lines_of(section, "l"), ::testing::ElementsAre("M104 45H642V73H1180", "M104 73H642V63.67H1180"));
  EXPECT_THAT(section, HasSubstr(">1 to 4</text>"));
  EXPECT_THAT(lines_of(section, "l d"), ::testing::ElementsAre("M104 82.67H642V106H1180", "M104 106H642V94.33H1180"));
  EXPECT_THAT(section, HasSubstr(">0 % to 60 %</text>"));
  EXPECT_THAT(section, HasSubstr("<title>blocks.0: largest load over the mean, 1 to 4</title>"));
  EXPECT_THAT(section, HasSubstr("<title>blocks.0: share of the assignments that was dropped, 0 % to 50 %</title>"));
  EXPECT_THAT(section, HasSubstr("<td>blocks.1</td><td>2</td><td>0</td><td>25 %</td><td class=\"l\">1 (step 1), 3 (step 1)</td>"));
  for (const char* expert : {">0</text>", ">1</text>", ">2</text>", ">3</text>"}) EXPECT_GE(count(section, expert), 2) << expert;
}

TEST(ExpertLoad, ALargeModelsPictureIsBounded) {
  std::vector<std::string> layers;
  for (int layer = 0; layer < 60; ++layer) layers.push_back(cat("blocks.", layer));
  LoadHistory history(layers, 256, true);
  std::vector<double> routed(layers.size() * 256);
  const std::vector<double> dropped(layers.size(), 1.0);
  for (int64_t step = 1; step <= 100; ++step) {
    for (size_t i = 0; i < routed.size(); ++i) routed[i] = static_cast<double>((i * 7919 + static_cast<size_t>(step) * 104729) % 23);
    history.add(step, routed, dropped);
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
