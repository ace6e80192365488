#include "lockstep/plan/calibrate_run.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/plan/time/action_seconds.h"
#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::Layout;
using program::Program;

// A collective as its ranks made it.
struct Call {
  Span span{};  // from when all of them had come to it and the one before it of their group was done
  const Meeting* meeting = nullptr;
};

// Calls of one group follow each other: a call that waits for the one before it takes no longer for that.
std::vector<Call> calls_of(const Matching& matching, const Spans& measured) {
  std::vector<Call> calls;
  for (const Meeting& meeting : matching.meetings) {
    Call& call = calls.emplace_back(Call{.meeting = &meeting});
    for (const ActionRef& ref : meeting.actions) {
      call.span.start = std::max(call.span.start, of_action(measured, ref).start);
      call.span.end = std::max(call.span.end, of_action(measured, ref).end);
    }
  }
  std::ranges::stable_sort(calls, {}, [](const Call& call) { return call.span.start; });
  std::map<int, double> lane;  // by group: the end of the call before
  for (Call& call : calls) {
    double& before = lane[call.meeting->group];
    call.span.start = std::min(call.span.end, std::max(call.span.start, before));
    before = std::max(before, call.span.end);
  }
  return calls;
}

double overlap(const Span& a, const Span& b) { return std::max(0.0, std::min(a.end, b.end) - std::max(a.start, b.start)); }

void set_calls(const Program& program, const std::vector<Call>& calls, const Spans& measured, bool takes_cores, ActionTimes& times) {
  constexpr double kHalf = 0.5;
  for (const Call& call : calls) {
    double beside = 0;  // of its ranks together
    for (const ActionRef& ref : call.meeting->actions) {
      const std::vector<Action>& list = program.list(ref.rank);
      for (int i = 0; takes_cores && i < static_cast<int>(list.size()); ++i) {
        if (!program::computes(list[static_cast<size_t>(i)].kind)) continue;
        const ActionRef other{ref.rank, i};
        const double both = overlap(call.span, of_action(measured, other));
        of_action(times.seconds, other) = std::max(0.0, of_action(times.seconds, other) - kHalf * both);
        beside += both;
      }
    }
    const double alone = call.span.seconds() - kHalf * beside / static_cast<double>(call.meeting->actions.size());
    for (const ActionRef& ref : call.meeting->actions) of_action(times.seconds, ref) = std::max(0.0, alone);
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

// Of a rank's actions that compute.
double computed(const Program& program, const ActionTimes& times, int rank) {
  double sum = 0;
  const std::vector<Action>& list = program.list(rank);
  for (int i = 0; i < static_cast<int>(list.size()); ++i)
    if (program::computes(list[static_cast<size_t>(i)].kind)) sum += of_action(times.seconds, {rank, i});
  return sum;
}

// Medians over microbatches and steps. What holds actions up now and then strikes any of them: of what a rank computes, the medians are as many times
// longer as add up to what it computes in its median step.
ActionTimes usual_times(const Program& program, const std::vector<ActionTimes>& steps) {
  ActionTimes usual = typical_times(program, steps);
  for (int rank = 0; rank < program.world_size(); ++rank) {
    std::vector<double> of_steps;
    for (const ActionTimes& step : steps) of_steps.push_back(computed(program, step, rank));
    const double medians = computed(program, usual, rank);
    if (!(medians > 0)) continue;
    const double longer = median(std::move(of_steps)) / medians;
    const std::vector<Action>& list = program.list(rank);
    for (int i = 0; i < static_cast<int>(list.size()); ++i)
      if (program::computes(list[static_cast<size_t>(i)].kind)) of_action(usual.seconds, {rank, i}) *= longer;
  }
  return usual;
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

// Of the ranks of one pipeline coordinate.
std::vector<double> over_ranks(const TracedRun& run, const ActionTimes& times, int first, int index) {
  std::vector<double> values;
  for (int rank = first; rank < first + run.layout.pipelines(); ++rank) values.push_back(of_action(times.seconds, {rank, index}));
  return values;
}
double usual_work(const TracedRun& run, int first, int index) { return median(over_ranks(run, run.work, first, index)); }
// Of the rank that came last to most of the calls: the others wait for it, too.
double least_waits(const TracedRun& run, int first, int index) { return std::ranges::min(over_ranks(run, run.waits, first, index)); }

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
      rows.push_back({rank, action, false, {name, usual_work(run, rank, i)}});
      if (program::computes(action.kind)) rows.push_back({rank, action, true, {name + ", waits", least_waits(run, rank, i)}});
    }
  }
  return rows;
}

double said_of(const Row& row, const ActionTime& time) {
  const double waits = time.work.tensor + time.work.context + time.work.experts;
  if (row.waits) return waits;
  return time.seconds - waits + (program::computes(row.action.kind) ? 0 : time.network);
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

// What steps take beyond their actions: cores wait for each other where other work holds one up.
template <typename MachineOf>
void add_straggling(const std::vector<NamedRun>& runs, const MachineOf& machine_of, Calibration& calibration) {
  constexpr double kMost = 0.5;
  Stack& stack = calibration.machine.stack;
  const double before = stack.straggle;
  stack.straggle = 0;
  std::vector<double> beyond;
  for (const NamedRun& named : runs) {
    const Machine machine = machine_of(named.run);
    const double said = estimate_step(named.run.layout, machine.cluster, machine.stack, {.memory = false, .traffic = false}).seconds;
    beyond.push_back(named.run.step_seconds / said - 1);
  }
  const double error = beyond.size() > 1 ? std::ranges::max(beyond) - std::ranges::min(beyond) : std::numeric_limits<double>::infinity();
  stack.straggle = std::clamp(median(std::move(beyond)), 0.0, kMost);
  stack.origins["straggle"] = "steps of the same runs beyond their actions";
  calibration.constants.push_back({"straggle", before, stack.straggle, error});
}

std::string steps_text(const std::vector<int64_t>& steps) {
  std::vector<std::string> texts;
  for (const int64_t step : steps) texts.push_back(cat(step));
  return cat(steps.size() == 1 ? "step " : "steps ", join(texts, ", "));
}

// As often as in a step that takes as long as those of all runs do on average.
std::vector<Observation> of_mean_step(std::vector<Observation> observed, const std::vector<NamedRun>& runs) {
  double whole = 0, mean = 0;
  for (const Observation& one : observed) whole += one.times * one.seconds;
  for (const NamedRun& named : runs) mean += named.run.step_seconds / static_cast<double>(runs.size());
  if (runs.size() > 1 && whole > 0)
    for (Observation& one : observed) one.times *= mean / whole;
  return observed;
}

}  // namespace

TracedRun traced_run(const Layout& layout, const Program& program, const std::vector<std::vector<StepTrace>>& steps, bool takes_cores) {
  LOCKSTEP_CHECK(!steps.empty());
  TracedRun run{.layout = layout, .program = program, .ranks = {.ranks = layout.mesh.world_size()}};
  std::vector<ActionTimes> work, waits;
  std::vector<double> whole;
  const Matching matching = match(program, layout);
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    const std::vector<StepTrace>& traces = steps[i];
    const Spans measured = measured_spans(program, layout, traces);
    work.push_back(measured_times(program, layout, measured));
    set_calls(program, calls_of(matching, measured), measured, takes_cores, work.back());
    waits.push_back(waits_of(program, traces));
    for (size_t rank = 0; rank < measured.size(); ++rank)
      for (size_t action = 0; action < measured[rank].size(); ++action)
        work.back().seconds[rank][action] = std::max(0.0, work.back().seconds[rank][action] - waits.back().seconds[rank][action]);
    whole.push_back(utilisation(program, measured).step_seconds);
    run.steps.push_back(traces.front().step);
  }
  run.work = usual_times(program, work);
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
  TracedRun traced = traced_run(layout, program, steps, loaded.config.train.device == config::Device::kCpu);
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

HostCalibration calibrate_runs(const std::vector<NamedRun>& runs, const HostMachine& start) {
  LOCKSTEP_CHECK(!runs.empty());
  std::vector<Observation> observed;
  std::vector<MachineModel> models;
  std::vector<std::string> names;
  for (const auto& [name, run] : runs) {
    std::ranges::move(of_mean_step(observations(run), runs), std::back_inserter(observed));
    models.push_back(machine_model(run));
    names.push_back(cat(name, ", ", steps_text(run.steps)));
  }
  const auto on_host = [&](const Machine& machine, const MachineRanks& ranks) {
    return with_ranks({.machine = machine, .host = start.host}, ranks).machine;
  };
  const MachineModel model = [&](const Machine& machine) {
    std::vector<double> said;
    for (size_t i = 0; i < runs.size(); ++i) std::ranges::move(models[i](on_host(machine, runs[i].run.ranks)), std::back_inserter(said));
    return said;
  };
  HostCalibration found{.calibration = calibrate(start.machine, observed, model, {.origin = cat("fitted to ", join(names, "; "))})};
  const auto machine_of = [&](const TracedRun& run) { return on_host(found.calibration.machine, run.ranks); };
  if (start.machine.cluster.device.generation == Generation::kCpu) add_straggling(runs, machine_of, found.calibration);
  found.machine = {.machine = found.calibration.machine, .host = start.host};
  return found;
}

}  // namespace lockstep::plan
