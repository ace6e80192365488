#include "lockstep/train/metrics.h"

#include <chrono>
#include <cmath>

#include "lockstep/base/check.h"

namespace lockstep::train {
namespace {

// nlohmann prints the shortest text that reads back as the same double, and null for what is not finite.
double to_milliseconds(double time) {
  return std::round(time * 1000) / 1000;
}

// A line cut short by a crash must not swallow the first line of the run that goes on.
void end_last_line(const std::filesystem::path& path) {
  std::ifstream old(path, std::ios::binary | std::ios::ate);
  if (!old || old.tellg() <= 0) return;
  old.seekg(-1, std::ios::end);
  if (old.get() != '\n') std::ofstream(path, std::ios::binary | std::ios::app) << '\n';
}

}  // namespace

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string step_line(int64_t step, double time, int64_t tokens, const Values& values) {
  OrderedJson json = {{"step", step}, {"time", to_milliseconds(time)}, {"tokens", tokens}};
  for (const auto& [name, value] : values) json[name] = value;
  return json.dump();
}

std::string event_line(const std::string& event, int64_t step, double time, const OrderedJson& fields) {
  OrderedJson json = {{"event", event}, {"step", step}, {"time", to_milliseconds(time)}};
  for (const auto& [name, value] : fields.items()) {
    LOCKSTEP_CHECK(!value.is_structured(), "event ", event, ": field ", name, " is not flat");
    json[name] = value;
  }
  return json.dump();
}

MetricsWriter::MetricsWriter(const std::filesystem::path& run_directory, bool tensorboard)
    : path_(run_directory / "metrics.jsonl") {
  end_last_line(path_);
  stream_.open(path_, std::ios::binary | std::ios::app);
  if (!stream_) throw EnvironmentError({.code = "LS3101", .what = cat("cannot write ", path_.string())});
  if (tensorboard) tensorboard_ = std::make_unique<EventFile>(run_directory / "tb", wall_time());
}

void MetricsWriter::step(int64_t step, int64_t tokens, const Values& values) {
  const double now = wall_time();
  write(step_line(step, now, tokens, values));
  std::vector<std::string> nonfinite;
  for (const auto& [name, value] : values) {
    if (!std::isfinite(value)) {
      nonfinite.push_back(name);
    } else if (tensorboard_) {
      tensorboard_->scalar(now, step, name, static_cast<float>(value));
    }
  }
  if (tensorboard_) tensorboard_->flush();
  if (!nonfinite.empty()) event("nonfinite", step, {{"names", join(nonfinite, " ")}});
}

void MetricsWriter::event(const std::string& event, int64_t step, const OrderedJson& fields) {
  write(event_line(event, step, wall_time(), fields));
}

void MetricsWriter::write(const std::string& line) {
  // Flushed line by line: a reader, or a crash, finds whole lines.
  if (!(stream_ << line << '\n' << std::flush))
    throw EnvironmentError({.code = "LS3101", .what = cat("cannot write ", path_.string())});
}

}  // namespace lockstep::train
