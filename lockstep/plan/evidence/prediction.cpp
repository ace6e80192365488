#include "lockstep/plan/evidence/prediction.h"

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/time/breakdown.h"

namespace lockstep::plan {
namespace {

struct Candidate {
  RunChoice choice{};
  RunMemory memory{};
  bool fits = true;
};

struct Estimated {
  Candidate of{};
  StepEstimate step{};  // seconds, band and breakdown of all pieces; the rest of the first
  double own_memory = 0;
  std::vector<std::string> notes{};
};

// Those that differ in recomputing alone.
bool alike(const RunChoice& a, RunChoice b) {
  b.recompute = a.recompute;
  return a == b;
}

// All that fit, but for those with more recomputing than is needed; else all, that with the least memory first.
std::vector<Candidate> candidates_of(const PublishedRun& run, const RunFrame& frame) {
  std::vector<Candidate> fitting, others;
  for (const RunChoice& choice : choices_of(run, frame)) {
    if (!fitting.empty() && alike(fitting.back().choice, choice)) continue;
    const RunMemoryParts parts = memory_parts(run, frame, choice);
    const bool there = fits(run, frame, parts);
    (there ? fitting : others).push_back({.choice = choice, .memory = memory_of(parts, frame.stack), .fits = there});
  }
  std::ranges::stable_sort(others, {}, [](const Candidate& one) { return one.memory.device; });
  return fitting.empty() ? others : fitting;
}

void add(StepEstimate& sum, const StepEstimate& step, double weight) {
  sum.seconds += weight * step.seconds;
  sum.low += weight * step.low;
  sum.high += weight * step.high;
  add(sum.breakdown, step.breakdown, weight);
}

Estimated estimated(const RunFrame& frame, const Candidate& candidate, const Estimator& estimate) {
  RunPieces pieces = pieces_of(frame, candidate.choice);
  Estimated result{.of = candidate, .notes = std::move(pieces.notes)};
  for (const RunPiece& piece : pieces.pieces) {
    const StepEstimate step = estimate(piece.layout, frame.cluster, frame.stack, frame.options);
    for (const StageEstimate& stage : step.stages) result.own_memory = std::max(result.own_memory, stage.peak);
    if (result.step.widest.empty()) result.step.widest = step.widest;
    add(result.step, step, piece.weight);
  }
  return result;
}

Estimated best_of(const PublishedRun& run, const RunFrame& frame, const Estimator& estimate) {
  std::optional<Estimated> best;
  std::optional<ConfigError> refused;
  for (const Candidate& candidate : candidates_of(run, frame)) {
    if (best && !candidate.fits) break;  // it needs least memory of those that do not fit
    try {
      Estimated next = estimated(frame, candidate, estimate);
      if (!best || next.step.seconds < best->step.seconds) best = std::move(next);
    } catch (const ConfigError& error) {
      if (!refused) refused = error;
    }
  }
  if (!best) throw *refused;
  if (!best->of.fits)
    best->notes.push_back(cat("it ran, but needs ", format_bytes(best->of.memory.device), " of ", format_bytes(frame.cluster.device.memory),
                              " by this prediction"));
  return std::move(*best);
}

void fill(Prediction& result, const PublishedRun& run, const RunSource& source, const Estimator& estimate) {
  const RunFrame frame = frame_of(run, source);
  Estimated best = best_of(run, frame, estimate);
  result.seconds = best.step.seconds;
  result.low = best.step.low;
  result.high = best.step.high;
  result.tokens = frame.tokens;
  const double peak = best.step.seconds * frame.gpus * frame.cluster.device.flops_bf16;
  result.mfu = frame.flops.noncausal * frame.tokens / peak;
  result.mfu_causal = frame.flops.causal * frame.tokens / peak;
  result.memory = best.of.memory;
  result.own_memory = best.own_memory;
  result.breakdown = best.step.breakdown;
  result.fits = best.of.fits;
  result.stack = frame.stack.name;
  result.widest = best.step.widest;
  result.choice = best.of.choice;
  result.assumed = assumed_fields(run, best.of.choice);
  result.notes = frame.notes;
  result.notes.insert(result.notes.end(), best.notes.begin(), best.notes.end());
}

}  // namespace

Prediction predict_run(const PublishedRun& run, const RunSource& source, const Estimator& estimate) {
  Prediction result{.id = run.id, .source = run.source, .tier = run.tier, .model = run.model.id, .device = run.device, .gpus = run.gpus};
  try {
    fill(result, run, source, estimate);
  } catch (const ConfigError& error) {
    result.reason = error.message().what;
  } catch (const InternalError& error) {  // of one row: the others are predicted all the same
    result.reason = cat("internal error: ", error.what());
  }
  return result;
}

std::vector<Prediction> predict_runs(const PublishedRuns& runs, const Estimator& estimate) {
  std::vector<Prediction> predictions;
  for (const PublishedRun& run : runs.runs) {
    const auto source = runs.sources.find(run.source);
    predictions.push_back(predict_run(run, source == runs.sources.end() ? RunSource{} : source->second, estimate));
  }
  return predictions;
}

}  // namespace lockstep::plan
