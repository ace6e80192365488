#include "lockstep/program/passes.h"

namespace lockstep::program {
namespace {

// One rank's list with its transfers.
class Transfers {
 public:
  Transfers(const Layout& layout, int rank, const std::vector<Action>& actions) : layout_(layout), rank_(rank) {
    for (const Action& action : actions) add(action);
    flush();
  }
  std::vector<Action> take() { return std::move(merged_); }

 private:
  const Pipeline& pipeline() const { return layout_.pipeline; }
  bool elsewhere(int stage) const {
    return stage >= 0 && stage < pipeline().stages() && pipeline().rank_of(stage) != layout_.pipeline_rank(rank_);
  }

  // `waiting_`: one stretch of a stage for one microbatch, so that what it needs can be asked for ahead of it.
  void add(const Action& action) {
    const int stage = pipeline().stage_of(action.layer);
    const bool forward = action.kind == ActionKind::kForward;
    const auto [begin, end] = layout_.stage_layers(stage);
    const bool first = action.layer == (forward ? begin : end - 1);
    const bool computes_again = action.kind == ActionKind::kRecompute;
    const bool recomputed = !waiting_.empty() && waiting_.back().kind == ActionKind::kRecompute;
    if (first && !recomputed) begin_stretch(action, stage);
    waiting_.push_back(action);
    const bool last = action.layer == (forward ? end - 1 : begin);
    if (!last || computes_again || action.kind == ActionKind::kBackwardWeight) return;
    const int next = forward ? stage + 1 : stage - 1;
    if (elsewhere(next))
      waiting_.push_back({.kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                          .stage = stage,
                          .microbatch = action.microbatch});
  }

  void begin_stretch(const Action& action, int stage) {
    const bool forward = action.kind == ActionKind::kForward;
    const bool needs = action.kind != ActionKind::kBackwardWeight && elsewhere(forward ? stage - 1 : stage + 1);
    if (!layout_.overlap) flush();
    // In front of the stretch before this one: it arrives while that one computes.
    if (needs)
      merged_.push_back({.kind = forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
                         .stage = stage,
                         .microbatch = action.microbatch});
    if (layout_.overlap) flush();
  }
  void flush() {
    merged_.insert(merged_.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
  }

  const Layout& layout_;
  const int rank_;
  std::vector<Action> merged_, waiting_;
};

}  // namespace

Program transfer_activations(Program program, const Layout& layout) {
  if (layout.pipeline.ranks == 1) return program;
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    std::vector<Action>& actions = program.ranks[static_cast<size_t>(rank)];
    actions = Transfers(layout, rank, actions).take();
  }
  return program;
}

}  // namespace lockstep::program
