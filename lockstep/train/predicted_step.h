// What the planner says of a step of this run, beside what its steps take.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::train {

struct PredictedStep {
  double seconds = 0;
  double low = 0, high = 0;  // band that holds 9 of 10
  std::string machine{};     // file that describes it
};

// "652 ms a step (600 ms to 704 ms) by machine.toml".
std::string predicted_text(const PredictedStep& predicted);
// "step: measured 671 ms (median of 18), predicted 652 ms: 2.8 % less, within the band". At least one step.
std::string beside_measured(const PredictedStep& predicted, double measured, int64_t steps);

}  // namespace lockstep::train
