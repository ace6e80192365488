#include "lockstep/plan/step_trace.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

constexpr std::string_view kFormat = "lockstep step trace 1";

[[noreturn]] void refuse(std::string_view origin, const std::string& what) {
  throw DataError({.code = "LS1260",
                   .what = cat("not the trace of a step: ", what),
                   .where = std::string(origin),
                   .way_out = "a run with [trace] steps writes them; they belong to the configuration of that run"});
}

// What passes before any rank's first action is the tracing's own.
double first_start(const std::vector<StepTrace>& traces) {
  double first = std::numeric_limits<double>::infinity();
  for (const StepTrace& trace : traces)
    if (!trace.records.empty()) first = std::min(first, trace.records.front().action == 0 ? trace.records.front().start : 0);
  return std::isfinite(first) ? first : 0;
}

}  // namespace

std::string step_trace_name(int64_t step, int rank) { return cat("step-", step, "-rank-", rank, ".json"); }

std::string step_trace_json(const StepTrace& trace) {
  OrderedJson json = {{"format", kFormat},           {"step", trace.step},       {"rank", trace.rank},
                      {"world_size", trace.world_size}, {"actions", trace.actions}, {"records", OrderedJson::array()}};
  for (const ActionRecord& record : trace.records)
    json["records"].push_back({record.action, record.start, record.end, record.overhead});
  for (const CallRecord& call : trace.calls) json["calls"].push_back({call.action, call.what, call.start, call.end, call.waited});
  return json.dump() + "\n";
}

StepTrace parse_step_trace(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin);
  StepTrace trace;
  try {
    if (json.at("format") != kFormat) refuse(origin, cat("format ", json.at("format").dump()));
    trace.step = json.at("step").get<int64_t>();
    trace.rank = json.at("rank").get<int>();
    trace.world_size = json.at("world_size").get<int>();
    trace.actions = json.at("actions").get<int>();
    for (const Json& record : json.at("records"))
      trace.records.push_back({record.at(0).get<int>(), record.at(1).get<double>(), record.at(2).get<double>(),
                               record.size() > 3 ? record.at(3).get<double>() : 0});  // older traces have none
    for (const Json& call : json.value("calls", Json::array()))
      trace.calls.push_back({call.at(0).get<int>(), call.at(1).get<std::string>(), call.at(2).get<double>(), call.at(3).get<double>(),
                             call.at(4).get<double>()});
  } catch (const Json::exception& error) {
    refuse(origin, error.what());
  }
  if (trace.rank < 0 || trace.rank >= trace.world_size)
    refuse(origin, cat("rank ", trace.rank, " of ", trace.world_size));
  int next = 0;
  for (const ActionRecord& record : trace.records) {
    if (record.action < next || record.action >= trace.actions)
      refuse(origin, cat("action ", record.action, " after ", next - 1, " of ", trace.actions));
    if (!std::isfinite(record.start) || !std::isfinite(record.end) || !std::isfinite(record.overhead) || record.end < record.start)
      refuse(origin, cat("action ", record.action, " runs from ", record.start, " to ", record.end));
    next = record.action + 1;
  }
  for (const CallRecord& call : trace.calls)
    if (call.action < 0 || call.action >= trace.actions || !(call.start <= call.end) || !(call.waited >= 0))
      refuse(origin, cat("a call of action ", call.action, " runs from ", call.start, " to ", call.end, ", waited for ", call.waited));
  return trace;
}

std::vector<StepTrace> read_step(const std::filesystem::path& folder, int64_t step, const program::Program& program) {
  std::vector<StepTrace> traces;
  const int ranks = program.world_size();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::filesystem::path path = folder / step_trace_name(step, rank);
    StepTrace trace = parse_step_trace(read_file(path), path.string());
    const int actions = static_cast<int>(program.list(rank).size());
    if (trace.step != step || trace.rank != rank)
      refuse(path.string(), cat("it is of step ", trace.step, ", rank ", trace.rank));
    if (trace.world_size != ranks || trace.actions != actions)
      refuse(path.string(), cat("it is of ", trace.actions, " actions on one of ", trace.world_size,
                                " ranks, and this layout has ", actions, " on one of ", ranks));
    traces.push_back(std::move(trace));
  }
  return traces;
}

Overhead overhead(const std::vector<StepTrace>& traces) {
  Overhead result;
  std::vector<double> all;
  double sum = 0;
  for (const StepTrace& trace : traces) {
    double of_rank = 0;
    for (const ActionRecord& record : trace.records) of_rank += record.overhead;
    for (const ActionRecord& record : trace.records) all.push_back(record.overhead);
    if (!trace.records.empty()) result.worst_rank = std::max(result.worst_rank, of_rank / static_cast<double>(trace.records.size()));
    sum += of_rank;
  }
  if (all.empty()) return result;
  result.actions = static_cast<int>(all.size());
  result.mean = sum / static_cast<double>(all.size());
  result.median = median(std::move(all));
  return result;
}

std::vector<int64_t> traced_steps(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    const std::vector<std::string> words = split(name, '-');
    const auto step = words.size() > 1 ? parse_number<int64_t>(words[1]) : std::nullopt;
    if (step && name == step_trace_name(*step, 0)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Spans measured_spans(const program::Program& program, const program::Layout& layout,
                     const std::vector<StepTrace>& traces) {
  LOCKSTEP_CHECK_EQ(static_cast<int>(traces.size()), program.world_size());
  Spans spans;
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    std::vector<Span>& row = spans.emplace_back();
    double before = 0;
    for (const ActionRecord& record : traces[rank].records) {
      row.resize(static_cast<size_t>(record.action), {before, before});
      row.push_back({record.start, record.end});
      before = record.end;
    }
    row.resize(program.list(static_cast<int>(rank)).size(), {before, before});
  }
  const double first = first_start(traces);
  for (std::vector<Span>& row : spans)
    for (Span& span : row) span = {span.start - first, span.end - first};
  const Matching matching = match(program, layout);
  for (const Transfer& transfer : matching.transfers) {
    Span& recv = of_action(spans, transfer.recv);
    recv.start = std::min(recv.end, std::max(recv.start, of_action(spans, transfer.send).start));
  }
  for (const Meeting& meeting : matching.meetings) {
    double begin = 0;
    for (const ActionRef& ref : meeting.actions) begin = std::max(begin, of_action(spans, ref).start);
    for (const ActionRef& ref : meeting.actions) of_action(spans, ref).start = std::min(begin, of_action(spans, ref).end);
  }
  return spans;
}

CallsOfRanks measured_calls(const std::vector<StepTrace>& traces) {
  const double first = first_start(traces);
  CallsOfRanks calls;
  for (const StepTrace& trace : traces)
    for (CallRecord& call : calls.emplace_back(trace.calls)) {
      call.start -= first;
      call.end -= first;
    }
  return calls;
}

std::vector<CallTotals> call_totals(const CallsOfRanks& calls) {
  std::map<std::string, CallTotals> found;
  const double share = 1 / static_cast<double>(std::max<size_t>(1, calls.size()));
  for (const std::vector<CallRecord>& of_rank : calls)
    for (const CallRecord& call : of_rank) {
      CallTotals& totals = found[call.what];
      totals.calls += share;
      totals.seconds += share * (call.end - call.start);
      totals.waited += share * std::min(call.waited, call.end - call.start);
    }
  std::vector<CallTotals> rows;
  for (auto& [what, totals] : found) {
    totals.what = what;
    rows.push_back(std::move(totals));
  }
  std::ranges::stable_sort(rows, std::greater<>{}, &CallTotals::waited);
  return rows;
}

}  // namespace lockstep::plan
