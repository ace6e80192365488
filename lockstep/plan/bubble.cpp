#include "lockstep/plan/bubble.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

using program::ActionKind;
using program::ScheduleInput;
using program::ScheduleKind;

constexpr std::array<ScheduleKind, 8> kKinds = {ScheduleKind::kNaive, ScheduleKind::kGPipe, ScheduleKind::kOneFOneB,
                                                ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbH2,
                                                ScheduleKind::kZbV, ScheduleKind::kDualPipeV};

std::string percent(double share) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * std::max(share, 0.0) + 1e-9);
  return text.data();
}

// From how many on the formulas hold.
int fewest_microbatches(const ScheduleInput& input) {
  switch (input.kind) {
    case ScheduleKind::kInterleaved:
    case ScheduleKind::kZbH1:
      return input.ranks;
    case ScheduleKind::kZbH2:
      return 2 * input.ranks - 1;
    case ScheduleKind::kZbV:
    case ScheduleKind::kDualPipeV:
      return 2 * input.ranks;
    default:
      return 1;
  }
}

// A layout that has these stages, for what asks for one; nothing of its model plays a part.
program::Layout layout_of(const ScheduleInput& input) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = input.ranks;
  program::Layout layout{.model = {}, .mesh = mesh::Mesh(degrees)};
  layout.pipeline.kind = input.kind;
  layout.pipeline.ranks = input.ranks;
  layout.pipeline.virtual_stages = input.virtual_stages;
  layout.global_batch = input.microbatches;
  return layout;
}

program::Row row_of(const ScheduleInput& input) {
  const program::Program program = program::Program::of_ranks(program::make_schedule(input));
  const program::Layout layout = layout_of(input);
  const Utilisation use = simulate(program, layout, unit_times(program, layout)).use;
  int most = 0, bound = 0;
  for (int rank = 0; rank < input.ranks; ++rank) {
    most = std::max(most, count_in_flight(program.list(rank)));
    bound = std::max(bound, most_in_flight(input, rank).value_or(0));
  }
  const std::string share = bubble_share(input) ? percent(*bubble_share(input)) : "-";
  const auto per_rank = [&](double stages) { return number_text(stages / input.virtual_stages); };
  return {program::schedule_name(input.kind), cat(input.virtual_stages),
          number_text(use.pipeline_seconds / input.virtual_stages), percent(use.bubble()), share, percent(use.idle()),
          per_rank(most), per_rank(bound)};
}

}  // namespace

std::optional<double> bubble_time(const ScheduleInput& input, const StageTimes& times) {
  const double before = input.ranks - 1, all = times.all();
  if (input.microbatches < fewest_microbatches(input)) return std::nullopt;
  switch (input.kind) {
    case ScheduleKind::kNaive:
      return input.microbatches * before * all;
    case ScheduleKind::kGPipe:
    case ScheduleKind::kOneFOneB:
    case ScheduleKind::kInterleaved:
      return before * all;
    case ScheduleKind::kZbH1:
    case ScheduleKind::kDualPipeV:
      return std::max(0.0, before * (times.forward + times.input - times.weight));
    case ScheduleKind::kZbH2:
      return std::max(0.0, before * (times.forward + times.input - 2 * times.weight));
    case ScheduleKind::kZbV:
      if (times.forward != times.input || times.input != times.weight) return std::nullopt;
      return 0;
    case ScheduleKind::kFile:
      return std::nullopt;
  }
  throw InternalError("no such schedule");
}

std::optional<double> bubble_share(const ScheduleInput& input, const StageTimes& times) {
  const std::optional<double> idle = bubble_time(input, times);
  if (!idle) return std::nullopt;
  return *idle / (*idle + input.microbatches * input.virtual_stages * times.all());
}

std::string bubble_formula(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kNaive:
      return "(p-1)/p";
    case ScheduleKind::kGPipe:
    case ScheduleKind::kOneFOneB:
      return "(p-1)/(m+p-1)";
    case ScheduleKind::kInterleaved:
      return "(p-1)/(mv+p-1)";
    case ScheduleKind::kZbH1:
      return "(p-1)/(3m+p-1)";
    case ScheduleKind::kZbH2:
    case ScheduleKind::kZbV:
      return "0";
    case ScheduleKind::kDualPipeV:
      return "(p-1)/(6m+p-1)";
    case ScheduleKind::kFile:
      return "-";
  }
  throw InternalError("no such schedule");
}

std::optional<int> most_in_flight(const ScheduleInput& input, int rank) {
  const int p = input.ranks, v = input.virtual_stages, m = input.microbatches;
  switch (input.kind) {
    case ScheduleKind::kNaive:
      return 1;
    case ScheduleKind::kGPipe:
      return m;
    case ScheduleKind::kOneFOneB:
      return std::min(m, p - rank);
    case ScheduleKind::kInterleaved:
      return std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
    case ScheduleKind::kZbH1:
      return std::min(m, p);
    case ScheduleKind::kZbH2:
      return std::min(m, 2 * p - 1);
    case ScheduleKind::kZbV:
      return std::min(2 * m, 2 * p);
    case ScheduleKind::kDualPipeV:
      return std::min(2 * m, 2 * p + 1);
    case ScheduleKind::kFile:
      return std::nullopt;
  }
  throw InternalError("no such schedule");
}

std::string in_flight_formula(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kNaive:
      return "1";
    case ScheduleKind::kGPipe:
      return "m";
    case ScheduleKind::kInterleaved:
      return "p (1 + (p-1)/(pv))";
    case ScheduleKind::kZbH2:
      return "2p - 1";
    case ScheduleKind::kDualPipeV:
      return "p + 1/2";
    case ScheduleKind::kFile:
      return "-";
    default:
      return "p";
  }
}

int count_in_flight(const std::vector<program::Action>& actions) {
  int held = 0, most = 0;
  for (const program::Action& action : actions) {
    if (action.kind == ActionKind::kForward) most = std::max(most, ++held);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) --held;
  }
  return most;
}

std::string schedule_table(int ranks, int microbatches, int virtual_stages) {
  std::vector<program::Row> rows = {{"schedule", "stages a rank", "step", "bubble", "formula", "idle", "in flight", "formula"}};
  for (const ScheduleKind kind : kKinds) {
    const bool several = kind == ScheduleKind::kInterleaved || program::v_shaped(kind);
    const ScheduleInput input{.kind = kind,
                              .ranks = ranks,
                              .virtual_stages = program::v_shaped(kind) ? 2 : several ? virtual_stages : 1,
                              .microbatches = microbatches};
    if (program::schedule_problems(input).empty()) rows.push_back(row_of(input));
  }
  return cat(ranks, " pipeline ranks, ", microbatches, " microbatches; forward and both halves of backward take a rank one unit each\n\n",
             program::table(rows, 1, 7),
             "\nstep: in units. bubble: idle time between the first and the last action of a rank / that and the work; idle: the\n"
             "share of the whole step in which a rank does nothing, the ranks' mean. in flight: microbatches whose activations a\n"
             "rank holds at one time, the rank that holds most.\n");
}

}  // namespace lockstep::plan
