// The walk over computing actions, and over what they hand to one another on this rank and others.
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/predict/memory_walk.h"

namespace lockstep::program {
namespace {

constexpr int64_t kLoss = 4;  // of a microbatch, from the head's backward to the end of the step

}  // namespace

void MemoryWalk::hand_on(const Flow& flow, int64_t bytes) {
  LOCKSTEP_CHECK(flowing_.emplace(flow, bytes).second, "layer ", flow.layer, " has not taken what it has of microbatch ",
                 flow.microbatch);
  live(MemoryCategory::kActivations) += bytes;
}

// Nothing where there is none: the embedding has no input, and the head's own gradient is 1.
void MemoryWalk::take_flow(const Flow& flow) {
  if (const auto found = flowing_.extract(flow)) live(MemoryCategory::kActivations) -= found.mapped();
}

void MemoryWalk::forward(const Action& action) {
  take_flow({action.layer, action.microbatch, false});
  live(MemoryCategory::kActivations) += kept_[{action.layer, action.microbatch}] = cost(action).kept;
  if (cost(action).output > 0) hand_on({action.layer + 1, action.microbatch, false}, cost(action).output);
  workspace_ = cost(action).forward_workspace;
}

void MemoryWalk::recompute(const Action& action) {
  const Key key{action.layer, action.microbatch};
  kept_.at(key) += cost(action).restored;
  live(MemoryCategory::kActivations) += cost(action).restored;
  live(MemoryCategory::kHost) -= std::exchange(on_host_[key], 0);
  workspace_ = cost(action).recompute_workspace;
}

int64_t& MemoryWalk::kept(const Action& action) {
  const auto found = kept_.find({action.layer, action.microbatch});
  LOCKSTEP_CHECK(found != kept_.end(), "layer ", action.layer, " kept nothing for microbatch ", action.microbatch);
  return found->second;
}

// Of the input of the action's layer, and so of its gradient.
int64_t MemoryWalk::input_bytes(const Action& action) const {
  return action.layer == 0 ? 0 : costs_[static_cast<size_t>(action.layer) - 1].output;
}

// dx joins dy and all that was kept; behind the action dy is gone.
void MemoryWalk::take_gradient(const Action& action) {
  const int64_t dx = input_bytes(action);
  activations_ = live(MemoryCategory::kActivations) + dx;
  take_flow({action.layer, action.microbatch, true});
  if (dx > 0) hand_on({action.layer - 1, action.microbatch, true}, dx);
  if (action.layer == layout_.num_layers() - 1) live(MemoryCategory::kActivations) += kLoss;
}

void MemoryWalk::backward(const Action& action) {
  take_gradient(action);
  live(MemoryCategory::kActivations) -= kept(action);
  kept_.erase({action.layer, action.microbatch});
  workspace_ = cost(action).backward_workspace;
  open_gradients(action);
}

void MemoryWalk::backward_input(const Action& action) {
  take_gradient(action);
  live(MemoryCategory::kActivations) += cost(action).held - std::exchange(kept(action), cost(action).held);
  workspace_ = cost(action).input_workspace;
  open_gradients(action);  // of the head's projection
}

void MemoryWalk::backward_weight(const Action& action) {
  live(MemoryCategory::kActivations) -= kept(action);
  kept_.erase({action.layer, action.microbatch});
  workspace_ = cost(action).weight_workspace;
  open_gradients(action);
}

// The one Program::channel_depth before it on the channel is waited for first.
void MemoryWalk::send(const Action& action) {
  const bool forward = action.kind == ActionKind::kSendForward;
  const auto [begin, end] = layout_.stage_layers(action.stage);
  const auto sent = flowing_.extract({forward ? end : begin - 1, action.microbatch, !forward});
  LOCKSTEP_CHECK(!sent.empty(), "stage ", action.stage, " has made nothing of microbatch ", action.microbatch);
  std::deque<int64_t>& waiting = sent_[{layout_.rank_at(rank_, action.stage + (forward ? 1 : -1)), forward}];
  if (static_cast<int>(waiting.size()) == program_.channel_depth) {
    live(MemoryCategory::kActivations) -= waiting.front();
    waiting.pop_front();
  }
  waiting.push_back(sent.mapped());
}

void MemoryWalk::receive(const Action& action) {
  const bool forward = action.kind == ActionKind::kRecvForward;
  const auto [begin, end] = layout_.stage_layers(action.stage);
  const int maker = forward ? begin - 1 : end - 1;  // or whose output it is the gradient of
  hand_on({forward ? begin : end - 1, action.microbatch, !forward}, costs_.at(static_cast<size_t>(maker)).output);
}

void MemoryWalk::wait_for_sends() {
  for (const auto& [channel, bytes] : sent_)
    live(MemoryCategory::kActivations) -= std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  sent_.clear();
}

}  // namespace lockstep::program
