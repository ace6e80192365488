// What one layer takes on one rank for each kind of action: kernels and the calls between them. Layers of one pattern that recompute alike take
// the same.
#pragma once

#include <map>
#include <tuple>

#include "lockstep/plan/time/call_seconds.h"
#include "lockstep/plan/time/kernel_seconds.h"

namespace lockstep::plan {

// Of one rank. Layout, placement, stack and options outlive it.
class RankLayers {
 public:
  // `speed`: share of its full speed at which the rank computes.
  RankLayers(const program::Layout& layout, const Placement& placement, const Stack& stack, const EstimateOptions& options, int rank, double speed = 1);

  // F, B, I, W or RECOMPUTE of a layer, of a divided one those of the action's part: seconds of kernels, and of its calls those that computing
  // does not hide (Stack::tensor_exposed and its like; of x gathered once more what the pass's products do not cover).
  LayerSeconds::Part of(const program::Action& action);
  LayerSeconds::Part of(int layer, arch::Phase phase, int part = -1);
  // DISPATCH_* and COMBINE_*: of its calls, hidden or not.
  double exchange(const program::Action& action);
  CallSeconds& calls() { return calls_; }
  const KernelSeconds& kernels() const { return kernels_; }

 private:
  LayerSeconds::Part make(int layer, arch::Phase phase, int part);
  const arch::LayerDescription& description(int layer);  // of the first rank
  const LayerKernels& kernels_of(int layer);
  const LayerCalls& calls_of(int layer, arch::Phase phase, int part);
  void add_calls(int layer, arch::Phase phase, int part, LayerSeconds::Part& sum);

  const program::Layout& layout_;
  const Stack& stack_;
  const int rank_;
  KernelSeconds kernels_;
  CallSeconds calls_;
  std::map<int, int> patterns_;
  std::map<int, arch::LayerDescription> descriptions_;  // by pattern
  std::map<int, LayerKernels> known_;                   // by pattern
  std::map<std::tuple<int, arch::Phase, int>, LayerCalls> made_;
  std::map<std::tuple<int, arch::Phase, int>, LayerSeconds::Part> parts_;
  int pattern(int layer);
};

}  // namespace lockstep::plan
