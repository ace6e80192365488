// The communication of one rank in a step as a table: a row for each axis, collective and algorithm.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/cluster/placement.h"
#include "lockstep/program/predict/steps.h"

namespace lockstep::plan {

struct CallRow {
  std::string axis{};        // as the ledger names it: "tp", "dp_shard"
  std::string collective{};  // "all_gather"
  std::string algorithm{};   // as the cost model chooses it for the largest call: "ring"
  GroupShape shape{};        // of the rank's group
  double calls = 0;          // of a step
  double bytes = 0;          // that the rank sends in all of them, by the planned algorithm (ledger.h)
  double seconds = 0;        // of all of them one after the other, hidden or not
};

// Rows of `rank`, most bytes first. Groups of one rank and calls of rare purposes (checkpoints, start of a job) are not part of a step.
std::vector<CallRow> call_rows(const program::JudgedSteps& steps, int rank, const Placement& placement);

// "8 ranks on 1 node", "16 ranks on 16 nodes in 2 leaves, 8 such groups share the NICs of a node".
std::string shape_text(const GroupShape& shape);

}  // namespace lockstep::plan
