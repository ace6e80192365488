// The numbers of a run: metrics.jsonl (one flat object per logged step and one per event) and TensorBoard files in tb/.
// Written by rank 0 alone. A run that goes on appends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/train/tfevents.h"

namespace lockstep::train {

// Seconds since 1970.
double wall_time();

// Names and values in the order in which they are written: {"train/loss", 2.8134}.
using Values = std::vector<std::pair<std::string, double>>;

// {"step":1200,"time":1790000000.123,"tokens":157286400,"train/loss":2.8134}: the shortest digits that read back as the
// same number; what is not finite is null.
std::string step_line(int64_t step, double time, int64_t tokens, const Values& values);
// {"event":"checkpoint","step":1200,"time":1790000001.9,"path":"checkpoints/step-00001200","seconds":1.7}
std::string event_line(const std::string& event, int64_t step, double time, const OrderedJson& fields);

class MetricsWriter {
 public:
  // `tensorboard` = false: metrics.jsonl alone. EnvironmentError LS3101 where the files cannot be written.
  explicit MetricsWriter(const std::filesystem::path& run_directory, bool tensorboard = true);

  // One line, and one scalar for each value that is finite. For the others an event "nonfinite" with their names
  // follows.
  void step(int64_t step, int64_t tokens, const Values& values);
  // "checkpoint", "eval", "expert_load", "expert_overload", "resume", "changed", "set_aside", "stop", "nonfinite"; `fields` is a flat object.
  void event(const std::string& event, int64_t step, const OrderedJson& fields = OrderedJson::object());

 private:
  void write(const std::string& line);
  std::filesystem::path path_;
  std::ofstream stream_;
  std::unique_ptr<EventFile> tensorboard_;
};

}  // namespace lockstep::train
