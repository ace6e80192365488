// Measured times of one step on one rank, as a traced run writes them: RUN/trace/step-N-rank-R.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/spans.h"

namespace lockstep::plan {

// Seconds since the step's common start, which is one moment for all ranks (a barrier, or one clock of a machine).
//   computing actions   from when all that they use is there, to when they are done: waiting is left out
//   communication       from when it was started (RECV: posted; collectives: this rank came to it), to when it was seen to
//                       be complete
//   all others          from their start to their end
// overhead: what this rank's thread spent on no work of the model and not waiting, since the action before it ended: the way
// from one action to the next; before F, B, I, W and RECOMPUTE what it takes to find out that all is there; of SEND and RECV
// also their own call, which starts them, without the transfer itself, which another thread does; where threads share a
// core, as time on the core. All else that an action
// does counts as its work.
struct ActionRecord {
  int action = 0;  // index in the rank's list
  double start = 0;
  double end = 0;
  double overhead = 0;  // seconds
  bool operator==(const ActionRecord&) const = default;
};

// A call inside a layer's action: of tp, of cp. It ran from `start` to `end`, beside what the action computes but for the last `waited`
// seconds, in which the action waited for it.
struct CallRecord {
  int action = 0;  // index in the rank's list
  std::string what{};  // of every layer alike: "blocks.*.attention kv_1"
  double start = 0;
  double end = 0;
  double waited = 0;
  bool operator==(const CallRecord&) const = default;
};

using CallsOfRanks = std::vector<std::vector<CallRecord>>;

struct StepTrace {
  int64_t step = 0;
  int rank = 0;
  int world_size = 1;
  int actions = 0;                    // of the rank's list, to see that trace and program are of one run
  std::vector<ActionRecord> records{};  // ascending by action; one that took no time may be left out
  std::vector<CallRecord> calls{};      // ascending by action
  bool operator==(const StepTrace&) const = default;
};

std::string step_trace_name(int64_t step, int rank);  // "step-10-rank-3.json"
std::string step_trace_json(const StepTrace& trace);
// DataError LS1260 where the text is no such trace.
StepTrace parse_step_trace(std::string_view text, std::string_view origin);
// The traces of all ranks of a step in `folder` (RUN/trace), by rank; DataError LS1203 for a missing file, LS1260 for one of
// another step or program.
std::vector<StepTrace> read_step(const std::filesystem::path& folder, int64_t step, const program::Program& program);
// The overhead of an action: all ranks, and the rank whose mean is largest. Nothing recorded: 0.
struct Overhead {
  int actions = 0;  // recorded
  double mean = 0;  // seconds
  double median = 0;
  double worst_rank = 0;  // its mean
};
Overhead overhead(const std::vector<StepTrace>& traces);
// The steps in `folder` of which there is a trace of rank 0, ascending.
std::vector<int64_t> traced_steps(const std::filesystem::path& folder);

// As Spans, from the first action of any rank on. Actions without a record take no time, at the end of the one before them; a collective begins where the last
// of its ranks came to it, a RECV where its SEND began.
Spans measured_spans(const program::Program& program, const program::Layout& layout,
                     const std::vector<StepTrace>& traces);
// The calls inside layers by rank, from that first action on.
CallsOfRanks measured_calls(const std::vector<StepTrace>& traces);

// The calls of one kind, on average of the ranks.
struct CallTotals {
  std::string what{};
  double calls = 0;
  double seconds = 0;  // they ran
  double waited = 0;   // of them
  double hidden() const { return seconds > 0 ? 1 - waited / seconds : 0; }
};
// By the time for which they are waited, then by name.
std::vector<CallTotals> call_totals(const CallsOfRanks& calls);

}  // namespace lockstep::plan
