// The load of experts over a run, kept small however long the run is, and drawn on the run's page: a heat map of which experts take how
// much of their layer's tokens, when, and which have died; lines of how uneven the load is and how much is dropped (Fedus et al. 2021;
// Wang et al. 2024).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::plan {

// Neighbouring steps as one: sums of those that are known.
struct LoadColumn {
  int64_t first = 0, last = 0;          // the first and the last of them, counted from 1
  int64_t steps = 0;                    // known ones
  std::vector<double> routed{};         // [layer][expert]: assignments, before dropping
  std::vector<double> dropped{};        // [layer]: of them, beyond the capacity
  std::vector<double> max_over_mean{};  // [layer]: of each step; loads that change places with each step are not even

  void add(const LoadColumn& next);  // `next` is behind it
};

// At most kMost columns, all of as many steps: where there are more, each is of twice as many from then on.
class LoadHistory {
 public:
  static constexpr size_t kMost = 128;
  // Names of the layers with experts, in their order; experts of each; whether a capacity may drop assignments.
  LoadHistory(std::vector<std::string> layers, int64_t experts, bool drops) : layers_(std::move(layers)), experts_(experts), drops_(drops) {}

  const std::vector<std::string>& layers() const { return layers_; }
  int64_t experts() const { return experts_; }
  bool drops() const { return drops_; }
  const std::vector<LoadColumn>& columns() const { return columns_; }

  // routed [layer][expert], dropped [layer]. A step that is not above the last one takes the place of all from there on: the run has
  // gone back.
  void add(int64_t step, std::span<const double> routed, std::span<const double> dropped);

 private:
  int64_t column_of(int64_t step) const { return (step - 1) / width_; }
  void append(LoadColumn column);

  std::vector<std::string> layers_;
  int64_t experts_;
  bool drops_;
  int64_t width_ = 1;  // steps of a column
  std::vector<LoadColumn> columns_;
};

// The events expert_load of a run's metrics.jsonl up to step `last`, into `history`. What is of other layers or cut off is passed over.
void read_loads(const std::filesystem::path& metrics, int64_t last, LoadHistory& history);

// Of a layer in the last tenth of the columns.
struct LayerLoad {
  struct Dead {
    int64_t expert = 0;
    int64_t last_step = 0;  // in which it had a token, or the last of that column; 0 = none
  };
  double largest = 0, smallest = 0;  // load of an expert over the layer's mean
  double dropped = 0;                // share of the assignments
  std::vector<Dead> dead{};          // without a token
};
std::vector<LayerLoad> last_loads(const LoadHistory& history);

// <section id="experts">: a sentence; a picture like that of gantt_svg (it refers to nothing outside, light and dark), of each layer the heat
// map with a row for each expert, below it a line of max / mean and, where a capacity may drop, one of the share that it has dropped; and
// a table of layers that names the dead experts. "" where no step is known.
std::string expert_section(const LoadHistory& history);

}  // namespace lockstep::plan
