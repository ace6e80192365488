#include "lockstep/plan/evidence/prediction.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>

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
  bool counts = true;  // as one that fits
};

// Closed forms of memory are off by up to that. Nobody makes whole layers again, a third of all computing, for the sake of so little.
constexpr double kMemoryDoubt = 0.10;

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
    const RunMemory memory = memory_of(parts, frame.stack);
    const bool there = fits(run, frame, parts);
    const bool nearly = choice.recompute == config::Recompute::kSelective && memory.device <= (1 + kMemoryDoubt) * frame.cluster.device.memory;
    (there || nearly ? fitting : others).push_back({.choice = choice, .memory = memory, .fits = there, .counts = there || nearly});
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

Estimated estimated(const RunFrame& frame, const Candidate& candidate, bool with_memory, const Estimator& estimate) {
  EstimateOptions options = frame.options;
  options.memory = with_memory;
  RunPieces pieces = pieces_of(frame, candidate.choice);
  Estimated result{.of = candidate, .notes = std::move(pieces.notes)};
  for (const RunPiece& piece : pieces.pieces) {
    const StepEstimate step = estimate(piece.layout, frame.cluster, frame.stack, options);
    for (const StageEstimate& stage : step.stages) result.own_memory = std::max(result.own_memory, stage.peak);
    if (result.step.widest.empty()) result.step.widest = step.widest;
    add(result.step, step, piece.weight);
  }
  return result;
}

// Its memory is found once it is known which it is.
Estimated best_of(const PublishedRun& run, const RunFrame& frame, const Estimator& estimate, const PredictOptions& options) {
  std::optional<Estimated> best;
  std::optional<ConfigError> refused;
  const std::vector<Candidate> candidates = candidates_of(run, frame);
  const bool only = candidates.size() == 1;
  for (const Candidate& candidate : candidates) {
    if (best && !candidate.counts) break;  // it needs least memory of those that do not fit
    try {
      Estimated next = estimated(frame, candidate, only && options.own_memory, estimate);
      if (!best || next.step.seconds < best->step.seconds) best = std::move(next);
    } catch (const ConfigError& error) {
      if (!refused) refused = error;
    }
  }
  if (!best) throw *refused;
  if (!only && options.own_memory) best = estimated(frame, best->of, true, estimate);
  if (!best->of.fits)
    best->notes.push_back(cat("it ran, but needs ", format_bytes(best->of.memory.device), " of ", format_bytes(frame.cluster.device.memory),
                              " by this prediction"));
  return std::move(*best);
}

// The row with each degree that it does not print, in ascending order of devices that one copy of the model takes; where gradients are shared out, one.
std::vector<PublishedRun> with_degrees(const PublishedRun& run) {
  constexpr std::array<int64_t, 4> kTensor = {1, 2, 4, 8};
  constexpr std::array<int64_t, 5> kStages = {1, 2, 4, 8, 16};
  std::vector<PublishedRun> all;
  for (const int64_t tp : kTensor)
    for (const int64_t pp : kStages) {
      if ((run.layout.tp && tp > 1) || (run.layout.pp && pp > 1)) continue;
      if (shards_gradients(run) && tp * pp > 1) continue;
      PublishedRun& one = all.emplace_back(run);
      if (!run.layout.tp) one.layout.tp = tp;
      if (!run.layout.pp) one.layout.pp = pp;
      // Experts are shared out as far as that goes.
      if (run.model.experts && !run.layout.ep) one.layout.ep = std::clamp<int64_t>(run.gpus / (tp * pp), 1, std::max<int64_t>(1, run.model.experts->count));
    }
  std::ranges::stable_sort(all, {}, [](const PublishedRun& one) { return *one.layout.tp * *one.layout.pp; });
  return all;
}

// Degrees that are not printed are the least that fit: what a model needs no more of costs time.
PublishedRun with_least_degrees(const PublishedRun& run, const RunSource& source) {
  if (run.layout.tp && run.layout.pp) return run;
  std::optional<ConfigError> refused;
  std::optional<PublishedRun> last;
  for (PublishedRun& one : with_degrees(run)) {
    try {
      const RunFrame frame = frame_of(one, source);
      const bool there = candidates_of(one, frame).front().counts;
      last = std::move(one);
      if (there) break;
    } catch (const ConfigError& error) {
      if (!refused) refused = error;
    }
  }
  if (!last) throw *refused;
  return *last;
}

void add_degrees(Prediction& result, const PublishedRun& printed, const PublishedRun& run) {
  if (!printed.layout.tp) result.assumed.emplace_back("tp", cat(*run.layout.tp));
  if (!printed.layout.pp) result.assumed.emplace_back("pp", cat(*run.layout.pp));
  if (printed.layout.ep != run.layout.ep) result.assumed.emplace_back("ep", cat(*run.layout.ep));
}

void fill(Prediction& result, const PublishedRun& printed, const RunSource& source, const Estimator& estimate, const PredictOptions& options) {
  const PublishedRun run = with_least_degrees(printed, source);
  const RunFrame frame = frame_of(run, source);
  Estimated best = best_of(run, frame, estimate, options);
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
  add_degrees(result, printed, run);
  result.notes = frame.notes;
  result.notes.insert(result.notes.end(), best.notes.begin(), best.notes.end());
}

// All that a prediction reads of them.
bool say_the_same(const PublishedRun& a, const PublishedRun& b) {
  return a.gpus == b.gpus && a.device == b.device && a.layout == b.layout && a.model == b.model && a.flags == b.flags && a.problem == b.problem &&
         a.eager == b.eager && a.compiled == b.compiled && a.fused == b.fused && a.async == b.async;
}

RunSource source_of(const PublishedRuns& runs, const PublishedRun& run) {
  const auto source = runs.sources.find(run.source);
  return source == runs.sources.end() ? RunSource{} : source->second;
}

// Of each row the first that says the same.
std::vector<size_t> first_alike(const PublishedRuns& runs) {
  std::vector<size_t> first;
  for (size_t i = 0; i < runs.runs.size(); ++i) {
    const PublishedRun& run = runs.runs[i];
    const RunSource source = source_of(runs, run);
    size_t j = 0;
    while (j < i && !(first[j] == j && say_the_same(runs.runs[j], run) && source_of(runs, runs.runs[j]) == source)) ++j;
    first.push_back(j);
  }
  return first;
}

}  // namespace

Prediction predict_run(const PublishedRun& run, const RunSource& source, const Estimator& estimate, const PredictOptions& options) {
  Prediction result{.id = run.id, .source = run.source, .tier = run.tier, .model = run.model.id, .device = run.device, .gpus = run.gpus};
  result.reason = run.problem;
  if (!run.problem.empty()) return result;
  try {
    fill(result, run, source, estimate, options);
  } catch (const ConfigError& error) {
    result.reason = error.message().what;
  } catch (const std::exception& error) {  // of one row: the others are predicted all the same
    result.reason = cat("internal error: ", error.what());
  }
  return result;
}

std::vector<Prediction> predict_runs(const PublishedRuns& runs, const Estimator& estimate, const PredictOptions& options) {
  const size_t count = runs.runs.size();
  const std::vector<size_t> first = first_alike(runs);
  std::vector<Prediction> predictions(count);
  std::atomic<size_t> next = 0;
  const auto predict = [&] {
    for (size_t i = next++; i < count; i = next++)
      if (first[i] == i) predictions[i] = predict_run(runs.runs[i], source_of(runs, runs.runs[i]), estimate, options);
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < options.threads; ++i) others.emplace_back(predict);
    predict();
  }
  for (size_t i = 0; i < count; ++i) {
    if (first[i] == i) continue;
    const PublishedRun& run = runs.runs[i];
    predictions[i] = predictions[first[i]];
    predictions[i].id = run.id;
    predictions[i].source = run.source;
    predictions[i].tier = run.tier;
  }
  return predictions;
}

}  // namespace lockstep::plan
