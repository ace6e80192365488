// The lists of a pipeline run against each other, without times: whether all come to their end. Internal to the verifier
// and to schedules from files.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/pipeline.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

struct WalkInput {
  const Pipeline& pipeline;
  int microbatches = 1;
  bool layers = false;     // actions are of layers (Pipeline::first_layer), else of stages
  bool transfers = false;  // what goes to another rank is there from its SEND on, else from the action that computes it
  int channel_depth = 1;     // Program::channel_depth
  std::vector<const std::vector<Action>*> lists{};  // by coordinate on pp
  std::vector<int> ranks{};                         // their names; empty = by coordinate
};

// F waits for the output of the stage before it, B and I for the gradient of the stage behind it. Of every channel
// `channel_depth` tensors may be on their way: a SEND waits until the one so many before it has met its RECV. Empty = every list ends, whatever the actions
// take. Else the actions that wait for each other in a circle, one after the other:
// "rank 0: F stage 1 m0 waits for F stage 0 m0 of rank 1, behind B stage 0 m1". Every (stage, microbatch) is there once.
// Time and memory: a few words for every action.
std::vector<std::string> find_deadlock(const WalkInput& input);

// The least channel_depth with which no SEND waits where F, I and W of every stage take as long, B twice that and transfers
// nothing: each of what is sent before it has been asked for. 1 where the lists never end. Of lists with transfers.
int unhindered_channel_depth(WalkInput input);

}  // namespace lockstep::program
