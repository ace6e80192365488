#include "lockstep/plan/other_choices.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/plan/what_if.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/pipeline.h"

namespace lockstep::plan {
namespace {

constexpr const char* kGroup = "one choice of the layout is another";

bool simple(const Candidate& candidate) { return candidate.schedule == config::ScheduleKind::kOneFOneB && candidate.virtual_stages == 1; }

Candidate with_simple_pipeline(Candidate candidate) {
  candidate.schedule = config::ScheduleKind::kOneFOneB;
  candidate.virtual_stages = 1;
  return candidate;
}

// "tp 8, dp 32": what is another.
std::string changes_text(const Candidate& from, const Candidate& to) {
  static constexpr std::pair<const char*, int Candidate::*> kWhole[] = {
      {"tp", &Candidate::tp}, {"cp", &Candidate::cp}, {"pp", &Candidate::pp}, {"ep", &Candidate::ep}, {"etp", &Candidate::etp},
      {"dp", &Candidate::dp}, {"zero", &Candidate::zero}, {"shard groups", &Candidate::dp_replicate}, {"micro-batch", &Candidate::micro_batch}};
  std::vector<std::string> parts;
  for (const auto& [name, field] : kWhole)
    if (from.*field != to.*field) parts.push_back(cat(name, " ", to.*field));
  const bool pipeline = to.pp > 1 && (from.schedule != to.schedule || from.virtual_stages != to.virtual_stages);
  if (pipeline) parts.push_back(program::schedule_name(to.schedule));
  if (from.recompute != to.recompute) parts.push_back(cat("recompute ", config::name_of(to.recompute)));
  if (from.sequence_parallel != to.sequence_parallel) parts.push_back(to.sequence_parallel ? "sequence parallel" : "no sequence parallelism");
  return join(parts, ", ");
}

class Choices {
 public:
  Choices(const Choosing& choosing, const StepEstimate& now)
      : choosing_(choosing), now_(now), devices_(devices_of(choosing.candidate)), options_(choosing.options) {
    options_.traffic = options_.spans = false;
  }

  std::vector<WhatIf> all() {
    const Candidate& now = choosing_.candidate;
    for (int Candidate::*const degree : {&Candidate::tp, &Candidate::pp, &Candidate::cp, &Candidate::ep}) {
      if (degree == &Candidate::ep && !choosing_.model.has_experts()) continue;
      for (const int value : {now.*degree / 2, 2 * (now.*degree)}) set(degree, value);
    }
    int wide = 2;
    while (wide <= choosing_.cluster.domain) wide *= 2;
    set(&Candidate::tp, wide);
    set(&Candidate::pp, 1);
    for (const int zero : {0, 1, 2, 3}) set(&Candidate::zero, zero);
    if (now.zero > 0)
      for (const int groups : {now.dp_replicate / 2, 2 * now.dp_replicate})
        if (groups > 0 && now.dp % groups == 0) set(&Candidate::dp_replicate, groups);
    for (const int size : {now.micro_batch / 2, 2 * now.micro_batch}) set(&Candidate::micro_batch, size);
    for (const config::Recompute recompute : {config::Recompute::kNone, config::Recompute::kSelective, config::Recompute::kFull}) {
      Candidate other = now;
      other.recompute = recompute;
      add(other);
    }
    if (now.pp > 1) add(with_simple_pipeline(now));
    if (now.tp > 1) {
      Candidate other = now;
      other.sequence_parallel = !other.sequence_parallel;
      add(other);
    }
    return std::move(found_);
  }

 private:
  void set(int Candidate::*field, int value) {
    Candidate other = choosing_.candidate;
    other.*field = value;
    const int inner = other.tp * other.pp * other.cp;
    if (value < (field == &Candidate::zero ? 0 : 1) || inner > devices_ || devices_ % inner != 0) return;
    other.dp = devices_ / inner;
    if (other.pp == 1) other = with_simple_pipeline(other);
    if (other.zero == 0 || other.dp % other.dp_replicate != 0) other.dp_replicate = 1;
    add(other);
  }

  bool legal(const Candidate& candidate) const {
    return program::layout_problems(with_candidate(choosing_.config, candidate), choosing_.model, devices_).empty();
  }

  // A schedule that the new layout cannot have gives way to 1F1B.
  void add(Candidate other) {
    if (!simple(other) && !legal(other)) other = with_simple_pipeline(other);
    if (other == choosing_.candidate || std::ranges::find(tried_, other) != tried_.end() || !legal(other)) return;
    tried_.push_back(other);
    const program::Layout layout = program::make_layout(with_candidate(choosing_.config, other), choosing_.model, devices_);
    const StepEstimate then = estimate_step(layout, choosing_.cluster, choosing_.stack, options_);
    found_.push_back({.what = changes_text(choosing_.candidate, other),
                      .seconds = then.seconds,
                      .fits = then.fits,
                      .note = note_of(now_, then, choosing_.cluster),
                      .group = kGroup,
                      .choice = true});
  }

  const Choosing& choosing_;
  const StepEstimate& now_;
  const int devices_;
  EstimateOptions options_;
  std::vector<Candidate> tried_{};
  std::vector<WhatIf> found_{};
};

}  // namespace

std::vector<WhatIf> other_choices(const Choosing& choosing, const StepEstimate& now) { return Choices(choosing, now).all(); }

}  // namespace lockstep::plan
