// Whose turn it is where more computes than there are cores: what comes first has a core to itself, and the next begins where one is free.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::plan {

class CoreTurns {
 public:
  explicit CoreTurns(int cores) : busy_(static_cast<size_t>(cores)) {}

  // When work of so many seconds begins that is ready at that time, on the core where it begins first. The core is taken for it.
  double take(double ready, double seconds);
  // Nothing will be ready earlier any more.
  void pass(double time);

 private:
  struct Turn {
    double begin = 0, end = 0;
  };
  using Core = std::vector<Turn>;  // ascending, apart from each other
  static double first_gap(const Core& core, double ready, double seconds);

  std::vector<Core> busy_;
};

}  // namespace lockstep::plan
