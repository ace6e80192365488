// What a drawing of a step shows: its actions as boxes on the lanes of a rank.
#pragma once

#include <vector>

#include "lockstep/plan/matching.h"
#include "lockstep/plan/spans.h"
#include "lockstep/program/effects.h"

namespace lockstep::plan {

enum class BoxKind { kForward, kBackward, kInput, kWeight, kRecompute, kUpdate, kNetwork, kCopy };

// Neighbouring layers of one stage and microbatch as one.
struct Box {
  BoxKind kind = BoxKind::kForward;
  int stage = -1, microbatch = -1;  // of F, B, I, W, RECOMPUTE, SEND
  double start = 0, end = 0;
  int first = 0, last = 0;          // indices of actions
  bool critical = false;            // one of them is in the critical path
  bool computes() const { return kind < BoxKind::kNetwork; }
};

struct BoxOptions {
  const std::vector<ActionRef>* critical_path = nullptr;
  double gap = 0;  // neighbours with less time between them are one box
};
// By rank, in the order of their lists; nothing that takes no time.
std::vector<std::vector<Box>> boxes(const program::Program& program, const program::Layout& layout, const Spans& spans,
                                    const BoxOptions& options = {});

// "F", "B", "I", "W", "RECOMPUTE", "update", "network", "copy".
const char* box_name(BoxKind kind);

}  // namespace lockstep::plan
