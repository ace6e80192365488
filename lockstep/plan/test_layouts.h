// Layouts and programs for the tests of this room.
#pragma once

#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/schedules.h"

namespace lockstep::plan {

struct PipelineCase {
  program::ScheduleKind kind = program::ScheduleKind::kOneFOneB;
  int ranks = 4;
  int microbatches = 4;
  int virtual_stages = 1;
};

// A block to every stage, the first with the embedding and the last with the head.
inline program::Layout pipeline_layout(const PipelineCase& of) {
  config::ModelSection section{.preset = "gpt2-test"};
  section.layers = of.ranks * of.virtual_stages;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = of.ranks;
  program::Pipeline pipeline{.kind = of.kind, .ranks = of.ranks, .virtual_stages = of.virtual_stages};
  pipeline.first_layer = program::stages_of_blocks(std::vector<int>(static_cast<size_t>(pipeline.stages()), 1));
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh(degrees),
          .pipeline = pipeline,
          .global_batch = of.microbatches,
          .micro_batch = 1,
          .seq_len = 16};
}

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
