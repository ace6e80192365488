// What a drawing of a step shows: its actions as boxes on the lanes of a rank.
#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

#include "lockstep/plan/matching.h"
#include "lockstep/plan/spans.h"
#include "lockstep/program/effects.h"

namespace lockstep::plan {

enum class BoxKind { kForward, kBackward, kInput, kWeight, kRecompute, kUpdate, kNetwork, kCopy };
// How each is shown.
struct BoxWords {
  BoxKind kind;
  std::string_view letter;  // in the grid; its class in a picture
  std::string_view legend;
  program::Work work = program::Work::kNone;  // of the actions that it is of
};
inline constexpr BoxWords kBoxKinds[] = {
    {BoxKind::kForward, "F", "F forward", program::Work::kForward},
    {BoxKind::kBackward, "B", "B backward", program::Work::kInputAndWeight},
    {BoxKind::kInput, "I", "I input gradient", program::Work::kInput},
    {BoxKind::kWeight, "W", "W weight gradient", program::Work::kWeight},
    {BoxKind::kRecompute, "R", "RECOMPUTE", program::Work::kAgain},
    {BoxKind::kUpdate, "U", "optimizer"},
    {BoxKind::kNetwork, "C", "communication"},
    {BoxKind::kCopy, "H", "host copy"},
};
constexpr std::string_view letter_of(BoxKind kind) { return kBoxKinds[static_cast<size_t>(kind)].letter; }
static_assert([] {
  for (size_t i = 0; i < std::size(kBoxKinds); ++i)
    if (static_cast<size_t>(kBoxKinds[i].kind) != i) return false;
  return true;
}());

// Of F, B, I, W, RECOMPUTE and what sends or receives; of others -1.
int stage_of(const program::Action& action, const program::Layout& layout);

// Neighbouring layers of one stage and microbatch as one.
struct Box {
  BoxKind kind = BoxKind::kForward;
  int stage = -1, microbatch = -1;  // of F, B, I, W, RECOMPUTE, SEND
  double start = 0, end = 0;
  int first = 0;                    // index of its first action
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

}  // namespace lockstep::plan
