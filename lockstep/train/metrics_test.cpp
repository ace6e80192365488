#include "lockstep/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "support/folders.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

fs::path fresh_folder(const std::string& name) { return support::fresh_folder("metrics-" + name); }

std::vector<std::string> lines_of(const fs::path& path) {
  auto lines = split(read_file(path), '\n');
  lines.pop_back();
  return lines;
}

TEST(Metrics, LinesAreFlatAndOrdered) {
  EXPECT_EQ(step_line(1200, 1790000000.1234, 157286400, {{"train/loss", 2.8134}, {"perf/step_ms", 318}}),
            R"({"step":1200,"time":1790000000.123,"tokens":157286400,"train/loss":2.8134,"perf/step_ms":318.0})");
  EXPECT_EQ(
      event_line("checkpoint", 1200, 1790000001.9, {{"path", "checkpoints/step-00001200"}, {"seconds", 1.7}}),
      R"({"event":"checkpoint","step":1200,"time":1790000001.9,"path":"checkpoints/step-00001200","seconds":1.7})");
  EXPECT_THROW(event_line("stop", 1, 1, {{"list", OrderedJson::array()}}), InternalError);
}

TEST(Metrics, NumbersComeBackToTheBit) {
  for (const double value : {1.0 / 3, 2.8134000301361084, 1e-300, 5e-324, std::nextafter(11.0, 12.0), -0.1}) {
    const Json json = parse_json(step_line(1, 0, 0, {{"train/loss", value}}), "line");
    EXPECT_EQ(json["train/loss"].get<double>(), value);
  }
}

TEST(Metrics, NonFiniteValuesAreNullAndAnEvent) {
  const fs::path folder = fresh_folder("nonfinite");
  MetricsWriter writer(folder, /*tensorboard=*/false);
  writer.step(
      3, 30,
      {{"train/loss", std::nan("")}, {"train/lr", 0.5}, {"train/grad_norm", std::numeric_limits<double>::infinity()}});
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  const Json step = parse_json(lines[0], "line"), event = parse_json(lines[1], "line");
  EXPECT_TRUE(step["train/loss"].is_null());
  EXPECT_EQ(step["train/lr"], 0.5);
  EXPECT_EQ(event["event"], "nonfinite");
  EXPECT_EQ(event["names"], "train/loss train/grad_norm");
}

TEST(Metrics, GoingOnAppendsOnANewLine) {
  const fs::path folder = fresh_folder("append");
  { MetricsWriter(folder).step(1, 10, {{"train/loss", 3.0}}); }
  const std::string before = read_file(folder / "metrics.jsonl");
  write_file(folder / "metrics.jsonl", before + "{\"step\":2,\"ti");  // cut by a crash
  { MetricsWriter(folder, false).event("resume", 1, {{"path", "checkpoints/step-00000001"}}); }
  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0] + "\n", before);
  EXPECT_EQ(parse_json(lines[2], "line")["event"], "resume");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "tb"), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace lockstep::train
