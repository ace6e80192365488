// Layouts of a model with experts, for tests.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/program/layout.h"

namespace lockstep::program {

struct ExpertLayout {
  int replicate = 1, shard = 1, tp = 1, pp = 1;
  int ep = 1, etp = 1;
  int zero = 0;
  int64_t microbatches = 2;
  ScheduleKind schedule = ScheduleKind::kOneFOneB;
  int virtual_stages = 1;
  config::Dispatcher dispatcher = config::Dispatcher::kAllToAll;
  int node = 1;
};

inline std::string text_of(const ExpertLayout& of) {
  return cat(schedule_name(of.schedule), " pp ", of.pp, " dp ", of.replicate, " x ", of.shard, " tp ", of.tp, " ep ", of.ep, " etp ", of.etp,
             " zero ", of.zero);
}

// "mixtral-test": 8 experts, 2 a token; a block for each stage, four in one.
inline Layout layout_of(const ExpertLayout& of) {
  const int stages = of.pp * of.virtual_stages;
  config::ModelSection section{.preset = "mixtral-test"};
  section.layers = of.pp == 1 ? 4 : stages;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = of.pp;
  degrees[mesh::Axis::kDpReplicate] = of.replicate;
  degrees[mesh::Axis::kDpShard] = of.shard;
  degrees[mesh::Axis::kTp] = of.tp;
  Layout layout;
  layout.model = arch::resolve_model(section);
  layout.mesh = mesh::Mesh(degrees);
  if (of.pp > 1) {
    layout.pipeline.kind = of.schedule;
    layout.pipeline.ranks = of.pp;
    layout.pipeline.virtual_stages = of.virtual_stages;
    layout.pipeline.first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(stages), 1));
  }
  layout.micro_batch = 2;
  layout.seq_len = 16;
  layout.global_batch = layout.micro_batch * of.replicate * of.shard * of.microbatches;
  layout.bucket_bytes = 0;
  layout.zero = of.zero;
  layout.ep = of.ep;
  layout.etp = of.etp;
  layout.dispatcher = of.dispatcher;
  layout.node_ranks = of.node;
  return layout;
}

}  // namespace lockstep::program
