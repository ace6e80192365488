#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/text.h"
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
    if (after_ >= Pass::kTransferActivations) check_channels();
    if (problems_.empty()) check_ends();
    return std::move(problems_);
  }

 private:
  const std::vector<Action>& list(size_t at) const { return program_.list(ranks_[at]); }
  std::string text(const Action& action) const { return action_text(action, {}, layout_.num_layers()); }

  // What its two ranks send and receive, each in its order.
  struct ChannelUse {
    std::vector<const Action*> sent{}, received{};
  };

  // Those of activations, then those of their gradients.
  void check_channels() {
    std::map<std::tuple<bool, size_t, size_t>, ChannelUse> channels;  // back, from, to
    for (size_t at = 0; at < ranks_.size(); ++at)
      for (const Action& action : list(at)) {
        if (!is_transfer(action.kind)) continue;
        const auto [sends, forward, neighbour] = transfer_of(action);
        const auto peer = static_cast<size_t>(layout_.pipeline.rank_of(neighbour));
        ChannelUse& use = channels[{!forward, sends ? at : peer, sends ? peer : at}];
        (sends ? use.sent : use.received).push_back(&action);
      }
    for (const auto& [channel, use] : channels) check_channel(std::get<1>(channel), std::get<2>(channel), use);
  }

  void check_channel(size_t from, size_t to, const ChannelUse& use) {
    const std::string channel = cat("[match] from rank ", ranks_[from], " to rank ", ranks_[to], ": ");
    if (use.sent.size() != use.received.size())
      return problems_.push_back(cat(channel, use.sent.size(), " sends and ", use.received.size(), " receives"));
    for (size_t i = 0; i < use.sent.size(); ++i) {
      const Action &sent = *use.sent[i], &received = *use.received[i];
      if (transfer_of(sent).neighbour != received.stage || sent.microbatch != received.microbatch)
        return problems_.push_back(cat(channel, "number ", i, " is ", text(sent), " here and ", text(received), " there"));
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
