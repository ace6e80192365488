// Layouts and programs for the tests of this room.
#pragma once

#include "lockstep/plan/time/test_times.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/schedules.h"

namespace lockstep::plan {

using test_times::PipelineCase;
using test_times::pipeline_layout;

inline program::Program stage_program(const PipelineCase& of) {
  return program::Program::of_ranks(program::make_schedule(
      {.kind = of.kind, .ranks = of.ranks, .virtual_stages = of.virtual_stages, .microbatches = of.microbatches}));
}

// Of two microbatches on one rank.
inline config::RunConfig small_run() {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.train.global_batch = 8;
  config.train.micro_batch = 4;
  config.train.seq_len = 64;
  return config;
}
inline program::Layout layout_of(const config::RunConfig& config, int ranks) {
  return program::make_layout(config, arch::resolve_model(config.model), ranks);
}

}  // namespace lockstep::plan
