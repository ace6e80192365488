// What the planner says of a published run, from its row alone.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/plan/evidence/run_memory.h"

namespace lockstep::plan {

// estimate_step(), or what a test puts in its place.
using Estimator = std::function<StepEstimate(const program::Layout&, const Cluster&, const Stack&, const EstimateOptions&)>;

struct Prediction {
  std::string id{}, source{}, tier{}, model{}, device{};
  int gpus = 0;
  std::string reason{};  // why there is none; empty: there is one, and all below is set
  double seconds = 0;
  double low = 0, high = 0;  // band that holds 9 of 10
  double mfu = 0, mfu_causal = 0;  // shares of the peak in bf16; attention counted full, and by its causal half
  double tokens = 0;               // of a step
  RunMemory memory{};         // of the software that ran it
  double own_memory = 0;      // that this library would allocate for the layout; 0: it was not asked for
  Breakdown breakdown{};
  bool fits = true;
  std::string stack{};   // name of the constants
  std::string widest{};  // the term that makes the band wide
  RunChoice choice{};
  std::vector<std::pair<std::string, std::string>> assumed{};  // fields that the row leaves open, and what was taken
  std::vector<std::string> notes{};
  bool predicted() const { return reason.empty(); }
  // By which runs of one model compare, whatever their batch and number of devices.
  double device_seconds_per_token() const { return seconds * gpus / tokens; }
};

struct PredictOptions {
  bool own_memory = true;  // found, too: it takes as long as all else
  int threads = 1;         // of predict_runs, which call the estimator at the same time
};

// Of the choices that the row leaves open, the fastest that fits by the memory of the software that ran it; where none does, the one that needs
// least memory, and a note. Less recomputing is never slower, so of choices that differ in that alone the first that fits counts; selective
// recomputation counts as fitting up to 10 % above the device's memory, which closed forms are off by. Degrees tp and pp that are not printed are the
// least that fit. Reasons, not errors, where a row cannot be laid out.
Prediction predict_run(const PublishedRun& run, const RunSource& source, const Estimator& estimate, const PredictOptions& options = {});
// In the order of the rows; of rows that say the same one is estimated.
std::vector<Prediction> predict_runs(const PublishedRuns& runs, const Estimator& estimate, const PredictOptions& options = {});

// The terms of a step by the names that JSON has for them.
struct NamedTerm {
  std::string_view name{};
  double Breakdown::*seconds = nullptr;
};
inline constexpr std::array<NamedTerm, 12> kNamedTerms = {{{"products", &Breakdown::products},
                                                           {"attention", &Breakdown::attention},
                                                           {"pointwise", &Breakdown::pointwise},
                                                           {"recompute", &Breakdown::recompute},
                                                           {"optimizer", &Breakdown::optimizer},
                                                           {"host", &Breakdown::host},
                                                           {"tensor", &Breakdown::tensor},
                                                           {"context", &Breakdown::context},
                                                           {"experts", &Breakdown::experts},
                                                           {"pipeline", &Breakdown::pipeline},
                                                           {"data", &Breakdown::data},
                                                           {"bubble", &Breakdown::bubble}}};

}  // namespace lockstep::plan
