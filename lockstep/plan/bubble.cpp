#include "lockstep/plan/bubble.h"

#include <algorithm>
#include <iomanip>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

using program::ActionKind;
using program::ScheduleInput;
using program::ScheduleKind;

// What the papers say of a schedule, of p ranks, v stages each, and m microbatches.
struct ClosedForms {
  ScheduleKind kind;
  std::string_view bubble;                     // its share at F = I = W
  double weight;                               // idle time / (p - 1) is F + I + so many W; of naive m times that
  int (*fewest)(int p);                        // microbatches from which on both hold
  int (*held)(int p, int v, int m, int rank);  // most in flight
};
constexpr ClosedForms kForms[] = {
    {ScheduleKind::kNaive, "(p-1)/p", 1, [](int) { return 1; }, [](int, int, int, int) { return 1; }},
    {ScheduleKind::kGPipe, "(p-1)/(m+p-1)", 1, [](int) { return 1; }, [](int, int, int m, int) { return m; }},
    {ScheduleKind::kOneFOneB, "(p-1)/(m+p-1)", 1, [](int) { return 1; },
     [](int p, int, int m, int rank) { return std::min(m, p - rank); }},
    {ScheduleKind::kInterleaved, "(p-1)/(mv+p-1)", 1, [](int p) { return p; },
     [](int p, int v, int m, int rank) { return std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1); }},
    {ScheduleKind::kZbH1, "(p-1)/(3m+p-1)", -1, [](int p) { return p; }, [](int p, int, int m, int) { return std::min(m, p); }},
    {ScheduleKind::kZbH2, "0", -2, [](int p) { return 2 * p - 1; }, [](int p, int, int m, int) { return std::min(m, 2 * p - 1); }},
    {ScheduleKind::kZbV, "0", -2, [](int p) { return 2 * p; }, [](int p, int, int m, int) { return std::min(2 * m, 2 * p); }},
    {ScheduleKind::kDualPipeV, "(p-1)/(6m+p-1)", -1, [](int p) { return 2 * p; },
     [](int p, int, int m, int) { return std::min(2 * m, 2 * p + 1); }},
    {ScheduleKind::kFile, "", 1, [](int) { return std::numeric_limits<int>::max(); }, nullptr},  // said of none
};

const ClosedForms& forms_of(ScheduleKind kind) { return *std::ranges::find(kForms, kind, &ClosedForms::kind); }

double work_time(const ScheduleInput& input) { return StageTimes{}.all() * input.microbatches * input.virtual_stages; }

std::string percent(double share) { return cat(std::fixed, std::setprecision(1), 100 * std::max(share, 0.0) + 1e-9, " %"); }

// A layout that has these stages, for what asks for one; nothing of its model plays a part.
program::Layout layout_of(const ScheduleInput& input) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = input.ranks;
  return {.model = {},
          .mesh = mesh::Mesh(degrees),
          .pipeline = {.kind = input.kind, .ranks = input.ranks, .virtual_stages = input.virtual_stages},
          .global_batch = input.microbatches};
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
  const auto share = bubble_share(input);
  const auto per_rank = [&](double stages) { return number_text(stages / input.virtual_stages); };
  return {program::schedule_name(input.kind), cat(input.virtual_stages),
          number_text(use.pipeline_seconds / input.virtual_stages), percent(use.bubble()), share ? percent(share->value) : "-", percent(use.idle()),
          per_rank(most), per_rank(bound)};
}

}  // namespace

double bubble_time(const ScheduleInput& input, const StageTimes& times) {
  const double turns = input.kind == ScheduleKind::kNaive ? input.microbatches : 1;
  return turns * (input.ranks - 1) * std::max(0.0, times.forward + times.input + forms_of(input.kind).weight * times.weight);
}

std::optional<BubbleShare> bubble_share(const ScheduleInput& input) {
  const ClosedForms& forms = forms_of(input.kind);
  if (input.microbatches < forms.fewest(input.ranks)) return std::nullopt;
  const double idle = bubble_time(input);
  return BubbleShare{.value = idle / (idle + work_time(input)), .formula = forms.bubble};
}

std::optional<int> most_in_flight(const ScheduleInput& input, int rank) {
  const ClosedForms& forms = forms_of(input.kind);
  if (!forms.held) return std::nullopt;
  return forms.held(input.ranks, input.virtual_stages, input.microbatches, rank);
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
  for (const ClosedForms& forms : kForms) {
    const ScheduleKind kind = forms.kind;
    const ScheduleInput input{.kind = kind,
                              .ranks = ranks,
                              .virtual_stages = program::v_shaped(kind) ? 2 : kind == ScheduleKind::kInterleaved ? virtual_stages : 1,
                              .microbatches = microbatches};
    if (forms.held && program::schedule_problems(input).empty()) rows.push_back(row_of(input));
  }
  return cat(ranks, " pipeline ranks, ", microbatches, " microbatches; forward and both halves of backward take a rank one unit each\n\n",
             program::table(rows, 1, 7),
             "\nstep: in units. bubble: idle time between the first and the last action of a rank / that and the work; idle: the\n"
             "share of the whole step in which a rank does nothing, the ranks' mean. in flight: microbatches whose activations a\n"
             "rank holds at one time, the rank that holds most.\n");
}

}  // namespace lockstep::plan
