// What the papers say of the schedules of pipelines: closed forms beside which simulations are held.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/program/passes/schedules.h"

namespace lockstep::plan {

// Times of a stage: with v of them a rank's layers take v times as long.
struct StageTimes {
  double forward = 1, input = 1, weight = 1;
  double all() const { return forward + input + weight; }
};

// p ranks, v stages each, m microbatches. Idle time between the first and the last action of the rank that has most:
//   naive             m (p - 1) (F + I + W)
//   gpipe, 1f1b       (p - 1) (F + I + W)              Huang et al. 2019; Narayanan et al. 2021
//   interleaved       (p - 1) (F + I + W)              the same, of stages 1/v as long; m a multiple of p
//   zb-h1             (p - 1) (F + I - W)              Qi et al. 2023; from m = p on
//   zb-h2             (p - 1) (F + I - 2 W)            the same; from m = 2p - 1 on
//   zb-v              0 at F = I = W                   Qi et al. 2024; from m = 2p on; no closed form for others
//   dualpipe-v        (p - 1) (F + I - W)              of stages half as long; from m = 2p on. DeepSeek-AI 2024 gives
//                     (p - 1) (F&B + B - 3 W) (their p/2 = p), which with F&B = F + I + W and B = I + W is one I more: here
//                     the I that another rank waits for goes ahead of its W
// By the same forms where there are fewer microbatches too; of a file that of 1f1b. Never below 0.
double bubble_time(const program::ScheduleInput& input, const StageTimes& times = {});
// That time / (m v (F + I + W) + that time) at F = I = W. Nothing where there is no form, or fewer microbatches.
struct BubbleShare {
  double value = 0;
  std::string_view formula{};  // "(p-1)/(m+p-1)"
};
std::optional<BubbleShare> bubble_share(const program::ScheduleInput& input);

// The most stages x microbatches of a rank whose F has run and whose B, or W, has not: what it keeps activations of. The same
// papers; a bound where m is small. Nothing for a file.
std::optional<int> most_in_flight(const program::ScheduleInput& input, int rank);
// Counted in a list of stages.
int count_in_flight(const std::vector<program::Action>& actions);

// A row for every schedule that can run p ranks and m microbatches with `virtual_stages` where it has several: step, bubble and
// most in flight, simulated at F = I = W = 1 beside the formulas.
std::string schedule_table(int ranks, int microbatches, int virtual_stages);

}  // namespace lockstep::plan
