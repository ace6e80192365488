// Steps whose actions are timed, and their drawing: RUN/trace/ and RUN/report.html.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/world.h"
#include "lockstep/config/check.h"
#include "lockstep/engine/executor.h"
#include "lockstep/train/run_directory.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

class StepTracer : public StepPolicy {
 public:
  // The references outlive the tracer.
  StepTracer(const RunDirectory& directory, config::TracedSteps steps, comm::World& world, engine::Groups& groups,
             engine::Executor& executor)
      : directory_(directory), steps_(steps), world_(world), groups_(groups), executor_(executor) {}

  // The steps that are timed, and the one before: what it leaves pending would count as time of the first.
  bool due(int64_t step) const override { return steps_.contains(step) || steps_.contains(step + 1); }

  // Around step `step`, counted from 1; collective over the world where it is one of the traced ones, else nothing. Every
  // rank writes its times, trace/step-N-rank-R.json; rank 0 a Chrome trace of all of them, trace/step-N.chrome.json, and
  // after the last one report.html. Returns what there is to tell, on rank 0. A folder that the ranks do not share: rank 0
  // says so and draws nothing.
  void before(int64_t step);
  std::optional<std::string> after(int64_t step);

 private:
  std::string draw(int64_t step) const;

  const RunDirectory& directory_;
  config::TracedSteps steps_;
  comm::World& world_;
  engine::Groups& groups_;
  engine::Executor& executor_;
};

}  // namespace lockstep::train
