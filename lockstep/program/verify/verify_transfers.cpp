#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/names.h"
#include "lockstep/program/passes/pipeline_walk.h"
#include "lockstep/program/rank_class.h"
#include "lockstep/program/verify/rules.h"

namespace lockstep::program {
namespace {

// The ranks of one copy of a stage each, that hand over to each other.
class PipelineCheck {
 public:
  PipelineCheck(const Program& program, const Layout& layout, Pass after, std::vector<int> ranks)
      : program_(program), layout_(layout), after_(after), ranks_(std::move(ranks)) {}

  std::vector<std::string> run() {
    if (after_ >= Pass::kTransferActivations) {
      check_channels(true);
      check_channels(false);
    }
    if (problems_.empty()) check_ends();
    return std::move(problems_);
  }

 private:
  const std::vector<Action>& list(size_t at) const { return program_.list(ranks_[at]); }
  std::string text(const Action& action) const { return action_text(action, {}, layout_.num_layers()); }

  // By peer, what a rank sends or receives, in its order.
  std::vector<std::vector<Action>> transfers(size_t at, bool sends, bool forward) const {
    std::vector<std::vector<Action>> by_peer(ranks_.size());
    for (const Action& action : list(at)) {
      if (!is_transfer(action.kind)) continue;
      const Transfer transfer = transfer_of(action);
      if (transfer.sends == sends && transfer.forward == forward)
        by_peer[static_cast<size_t>(layout_.pipeline.rank_of(transfer.neighbour))].push_back(action);
    }
    return by_peer;
  }

  // Of activations, or of their gradients.
  void check_channels(bool forward) {
    std::vector<std::vector<std::vector<Action>>> received;  // by rank and sender
    for (size_t to = 0; to < ranks_.size(); ++to) received.push_back(transfers(to, /*sends=*/false, forward));
    for (size_t from = 0; from < ranks_.size(); ++from) {
      const std::vector<std::vector<Action>> sent = transfers(from, /*sends=*/true, forward);
      for (size_t to = 0; to < ranks_.size(); ++to) check_channel(from, to, sent[to], received[to][from], forward ? 1 : -1);
    }
  }

  // `step`: from the stage that sends to the one that receives.
  void check_channel(size_t from, size_t to, const std::vector<Action>& sent, const std::vector<Action>& received,
                     int step) {
    const std::string channel = cat("[match] from rank ", ranks_[from], " to rank ", ranks_[to], ": ");
    if (sent.size() != received.size()) {
      problems_.push_back(cat(channel, sent.size(), " sends and ", received.size(), " receives"));
      return;
    }
    for (size_t i = 0; i < sent.size(); ++i)
      if (sent[i].stage + step != received[i].stage || sent[i].microbatch != received[i].microbatch) {
        problems_.push_back(cat(channel, "number ", i, " is ", text(sent[i]), " here and ", text(received[i]), " there"));
        return;
      }
  }

  void check_ends() {
    WalkInput input{.pipeline = layout_.pipeline,
                    .microbatches = static_cast<int>(layout_.num_microbatches()),
                    .layers = after_ > Pass::kSchedule,
                    .transfers = after_ >= Pass::kTransferActivations,
                    .channel_depth = program_.channel_depth,
                    .ranks = ranks_};
    for (size_t at = 0; at < ranks_.size(); ++at) input.lists.push_back(&list(at));
    const std::vector<std::string> circle = find_deadlock(input);
    if (!circle.empty()) problems_.push_back(cat("[deadlock] ", join(circle, "\n    ")));
  }

  const Program& program_;
  const Layout& layout_;
  const Pass after_;
  const std::vector<int> ranks_;  // by coordinate on pp
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_pipelines(const Program& program, const Layout& layout, Pass after) {
  std::vector<std::string> problems;
  if (layout.pipeline.stages() == 1) return problems;
  for (const std::vector<int>& ranks : distinct_pipelines(program, layout))
    for (std::string& problem : PipelineCheck(program, layout, after, ranks).run()) problems.push_back(std::move(problem));
  return problems;
}

}  // namespace lockstep::program
