#include "lockstep/program/passes/post_validation.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {
namespace {

// What may be done with parameters that turn out to be wrong, and made undone by forgetting it.
bool may_be_repeated(ActionKind kind) {
  const bool activations = is_transfer(kind) && !words_of(kind).gradients;
  return activations || work_of(kind) == Work::kForward || kind == ActionKind::kTokens;
}

using Message = std::pair<int, int>;  // stage that receives it, microbatch

// What a rank sends among its first `count` actions.
std::set<Message> sent(const std::vector<Action>& actions, size_t count) {
  std::set<Message> messages;
  for (size_t i = 0; i < count; ++i)
    if (actions[i].kind == ActionKind::kSendForward) messages.emplace(actions[i].stage + 1, actions[i].microbatch);
  return messages;
}

// The first RECV_F among the first counts[list] actions of `rank` that is not sent as early; that count where there is none.
// The senders of ranks that run one list run one list too: both follow from the coordinate on pp and from who owns the
// optimizer of a group.
size_t first_not_sent(const Program& program, const Layout& layout, int rank, const std::vector<size_t>& counts) {
  const std::vector<Action>& actions = program.list(rank);
  const size_t count = counts[program.list_index(rank)];
  std::map<int, std::set<Message>> by_sender;
  for (size_t i = 0; i < count; ++i) {
    if (actions[i].kind != ActionKind::kRecvForward) continue;
    const int sender = layout.rank_at(rank, actions[i].stage - 1);
    const auto [messages, fresh] = by_sender.try_emplace(sender);
    if (fresh) messages->second = sent(program.list(sender), counts[program.list_index(sender)]);
    if (!messages->second.contains({actions[i].stage, actions[i].microbatch})) return i;
  }
  return count;
}

// By list, so many actions stand ahead of VALIDATE: as many as may, less where one of them needs what is sent later.
std::vector<size_t> positions(const Program& program, const Layout& layout) {
  std::vector<size_t> counts;
  for (const std::vector<Action>& actions : program.lists)
    counts.push_back(static_cast<size_t>(std::ranges::find_if_not(actions, may_be_repeated, &Action::kind) - actions.begin()));
  const std::vector<int> ranks = program.first_ranks();
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t list = 0; list < counts.size(); ++list) {
      const size_t count = first_not_sent(program, layout, ranks[list], counts);
      changed = changed || count != counts[list];
      counts[list] = count;
    }
  }
  return counts;
}

// The gradients of a tied unit are whole on this rank long before its last W: the other one need not wait for that.
void reduce_tied_early(const Layout& layout, int rank, std::vector<Action>& actions) {
  const auto tied = std::ranges::find_if(actions, sums_tied, &Action::kind);
  if (tied == actions.end() || std::ranges::any_of(actions, reduces, &Action::kind)) return;
  const Action action = *tied;
  actions.erase(tied);
  EffectTable effects(layout, {}, rank);
  const auto of_unit = [&](const Touch& touch) { return touch.what == Resource::kGradients && touch.index == action.unit; };
  const auto adds = [&](const Action& other) {
    return computes(other.kind) && std::ranges::any_of(effects.of(other).touches, of_unit);
  };
  const auto last = std::find_if(actions.rbegin(), actions.rend(), adds);
  actions.insert(last.base(), action);
}

}  // namespace

Program validate_in_next_step(Program program, const Layout& layout) {
  if (!layout.pipeline.post_validation) return program;
  const bool several = layout.mesh.degree(layout.tokens()) > 1;
  program = with_lists(std::move(program), [&](int rank, std::vector<Action> actions) {
    reduce_tied_early(layout, rank, actions);
    if (several) actions.insert(actions.begin(), {.kind = ActionKind::kTokens});
    return actions;
  });
  const std::vector<size_t> counts = positions(program, layout);
  for (size_t list = 0; list < counts.size(); ++list) {
    std::vector<Action>& actions = program.lists[list];
    actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(counts[list]), {.kind = ActionKind::kValidate});
  }
  return program;
}

int validate_position(const std::vector<Action>& actions) {
  const auto found = std::ranges::find(actions, ActionKind::kValidate, &Action::kind);
  return found == actions.end() ? -1 : static_cast<int>(found - actions.begin());
}

std::vector<Action> unreceived(const Program& program, const Layout& layout, int rank) {
  std::vector<Action> found;
  const std::vector<Action>& actions = program.list(rank);
  for (size_t i = static_cast<size_t>(validate_position(actions)); i < actions.size(); ++i) {
    if (actions[i].kind != ActionKind::kRecvForward) continue;
    const std::vector<Action>& sender = program.list(layout.rank_at(rank, actions[i].stage - 1));
    const std::set<Message> messages = sent(sender, static_cast<size_t>(validate_position(sender)));
    if (messages.contains({actions[i].stage, actions[i].microbatch})) found.push_back(actions[i]);
  }
  return found;
}

std::vector<std::string> check_validation(const Program& program, const Layout& layout) {
  std::vector<std::string> problems;
  std::vector<size_t> counts;  // by list
  const std::vector<int> ranks = program.first_ranks();
  const auto problem = [&](int rank, const std::string& what) { problems.push_back(cat("[validate] rank ", rank, ": ", what)); };
  const bool wanted = layout.pipeline.post_validation, tokens = wanted && layout.mesh.degree(layout.tokens()) > 1;
  for (const int rank : ranks) {
    const std::vector<Action>& actions = program.list(rank);
    for (const auto& [kind, expected] : {std::pair{ActionKind::kValidate, wanted ? 1 : 0}, {ActionKind::kTokens, tokens ? 1 : 0}})
      if (const auto count = std::ranges::count(actions, kind, &Action::kind); count != expected)
        problem(rank, cat(count, " ", action_name(kind), "; should be ", expected));
    counts.push_back(static_cast<size_t>(std::max(0, validate_position(actions))));
    for (size_t i = 0; i < counts.back(); ++i)
      if (!may_be_repeated(actions[i].kind))
        problem(rank, cat(action_text(actions[i], program.buckets, layout.num_layers()), " before VALIDATE"));
  }
  if (!problems.empty() || !wanted) return problems;
  for (const std::vector<int>& pipeline : distinct_pipelines(program, layout))
    for (const int rank : pipeline)
      if (const size_t at = first_not_sent(program, layout, rank, counts); at != counts[program.list_index(rank)])
        problem(rank, cat(action_text(program.list(rank)[at], program.buckets, layout.num_layers()),
                          " before VALIDATE, but sent after it"));
  return problems;
}

}  // namespace lockstep::program
