#include "lockstep/plan/calibrate_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/plan/time/action_seconds.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::Layout;
using program::Program;

// Calls of one group follow each other: a call that waits for the one before it takes no longer for that.
void leave_out_queues(const Program& program, const Layout& layout, const Spans& measured, ActionTimes& times) {
  const Matching matching = match(program, layout);
  struct Call {
    double begin = 0, end = 0;
    const Meeting* meeting = nullptr;
  };
  std::vector<Call> calls;
  for (const Meeting& meeting : matching.meetings) {
    Call& call = calls.emplace_back(Call{.meeting = &meeting});
    for (const ActionRef& ref : meeting.actions) {
      call.begin = std::max(call.begin, of_action(measured, ref).start);
      call.end = std::max(call.end, of_action(measured, ref).end);
    }
  }
  std::ranges::stable_sort(calls, {}, &Call::begin);
  std::map<int, double> lane;  // by group: the end of the call before
  for (const Call& call : calls) {
    double& before = lane[call.meeting->group];
    for (const ActionRef& ref : call.meeting->actions) of_action(times.seconds, ref) = std::max(0.0, call.end - std::max(call.begin, before));
    before = std::max(before, call.end);
  }
}

// Waits of each action for the calls inside its layer.
ActionTimes waits_of(const Program& program, const std::vector<StepTrace>& traces) {
  ActionTimes waits;
  for (int rank = 0; rank < program.world_size(); ++rank) waits.seconds.emplace_back(program.list(rank).size());
  for (const StepTrace& trace : traces)
    for (const CallRecord& call : trace.calls)
      of_action(waits.seconds, {trace.rank, call.action}) += std::min(call.waited, call.end - call.start);
  return waits;
}

// A row of what was observed: an action that differs from the others in more than the microbatch, on the ranks of one pipeline coordinate.
struct Row {
  int rank = 0;  // the first of them
  Action action{};
  bool waits = false;  // for calls inside its layer; else its work
  Observation observed{};
};

std::string name_of(const Action& action, const Layout& layout) {
  const std::string name(program::action_name(action.kind));
  if (action.layer < 0) return name;
  return cat(name, action.layer == 0 ? " embedding" : action.layer == layout.num_layers() - 1 ? " head" : " block");
}

double median_over_ranks(const TracedRun& run, const ActionTimes& times, int first, int index) {
  std::vector<double> values;
  for (int rank = first; rank < first + run.layout.pipelines(); ++rank) values.push_back(of_action(times.seconds, {rank, index}));
  return median(std::move(values));
}

std::vector<Row> rows_of(const TracedRun& run) {
  std::vector<Row> rows;
  for (const int rank : program::stage_ranks(run.layout)) {
    std::map<Action, std::pair<size_t, size_t>> known;  // rows of work and of waits
    const std::vector<Action>& list = run.program.list(rank);
    for (int i = 0; i < static_cast<int>(list.size()); ++i) {
      const Action action = without_microbatch(list[static_cast<size_t>(i)]);
      const auto [entry, fresh] = known.try_emplace(action, rows.size(), rows.size() + 1);
      if (!fresh) {
        rows[entry->second.first].observed.times += 1;
        if (program::computes(action.kind)) rows[entry->second.second].observed.times += 1;
        continue;
      }
      const std::string name = name_of(action, run.layout);
      rows.push_back({rank, action, false, {name, median_over_ranks(run, run.work, rank, i)}});
      if (program::computes(action.kind)) rows.push_back({rank, action, true, {name + ", waits", median_over_ranks(run, run.waits, rank, i)}});
    }
  }
  return rows;
}

double said_of(const Row& row, const ActionTime& time) {
  const double waits = time.work.tensor + time.work.context + time.work.experts;
  if (row.waits) return waits;
  return program::computes(row.action.kind) || time.network == 0 ? time.seconds - waits : time.network;
}

std::vector<double> said(const TracedRun& run, const std::vector<Row>& rows, const Machine& machine) {
  const Placement placement(machine.cluster, run.layout.mesh);
  const EstimateOptions options{.traffic = false};
  std::map<int, ActionSeconds> known;
  std::vector<double> seconds;
  for (const Row& row : rows) {
    const auto entry = known.try_emplace(row.rank, run.layout, run.program, placement, machine.stack, options, row.rank).first;
    seconds.push_back(said_of(row, entry->second.of(row.action)));
  }
  return seconds;
}

std::string steps_text(const std::vector<int64_t>& steps) {
  std::vector<std::string> texts;
  for (const int64_t step : steps) texts.push_back(cat(step));
  return cat(steps.size() == 1 ? "step " : "steps ", join(texts, ", "));
}

}  // namespace

TracedRun traced_run(const Layout& layout, const Program& program, const std::vector<std::vector<StepTrace>>& steps) {
  LOCKSTEP_CHECK(!steps.empty());
  TracedRun run{.layout = layout, .program = program, .ranks = {.ranks = layout.mesh.world_size()}};
  std::vector<ActionTimes> work, waits;
  std::vector<double> whole;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    const std::vector<StepTrace>& traces = steps[i];
    const Spans measured = measured_spans(program, layout, traces);
    work.push_back(measured_times(program, layout, measured));
    leave_out_queues(program, layout, measured, work.back());
    waits.push_back(waits_of(program, traces));
    for (size_t rank = 0; rank < measured.size(); ++rank)
      for (size_t action = 0; action < measured[rank].size(); ++action)
        work.back().seconds[rank][action] = std::max(0.0, work.back().seconds[rank][action] - waits.back().seconds[rank][action]);
    whole.push_back(utilisation(program, measured).step_seconds);
    run.steps.push_back(traces.front().step);
  }
  run.work = typical_times(program, work);
  run.waits = typical_times(program, waits);
  run.step_seconds = median(std::move(whole));
  return run;
}

TracedRun read_traced_run(const std::filesystem::path& run) {
  const std::filesystem::path folder = run / "trace", tokenizer = run / "tokenizer.json";
  const std::vector<int64_t> numbers = traced_steps(folder);
  if (numbers.empty())
    throw ConfigError({.code = "LS1154",
                       .what = cat(run.string(), " has no traced step"),
                       .way_out = "train it with --trace.steps=10-13, steps behind the first few, and name the folder of the run"});
  config::LoadedConfig loaded = config::load_config({run / "config.resolved.toml"}, {});
  // The run's own copy, wherever this is asked from.
  if (std::filesystem::exists(tokenizer)) loaded.config.data.tokenizer = tokenizer.string();
  const std::filesystem::path first = folder / step_trace_name(numbers.front(), 0);
  const int ranks = parse_step_trace(read_file(first), first.string()).world_size;
  const Layout layout = program::layout_of(loaded, ranks);
  const Program program = program::make_program(layout);
  std::vector<std::vector<StepTrace>> steps;
  for (const int64_t step : numbers) steps.push_back(read_step(folder, step, program));
  TracedRun traced = traced_run(layout, program, steps);
  traced.ranks.threads = loaded.config.train.threads;
  return traced;
}

std::vector<Observation> observations(const TracedRun& run) {
  std::vector<Observation> observed;
  for (Row& row : rows_of(run)) observed.push_back(std::move(row.observed));
  return observed;
}

MachineModel machine_model(const TracedRun& run) {
  return [&run, rows = rows_of(run)](const Machine& machine) { return said(run, rows, machine); };
}

Calibration calibrate_run(const TracedRun& run, const Machine& start, const std::string& name) {
  return calibrate(start, observations(run), machine_model(run), {.origin = cat("fitted to ", name, ", ", steps_text(run.steps))});
}

Calibration calibrate_run(const std::filesystem::path& run, const Machine& start) { return calibrate_run(read_traced_run(run), start, run.string()); }

}  // namespace lockstep::plan
