// Who holds which tokens, how many pairs of a query and a key that gives each rank, and what each mode sends.
#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_split.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/render/draw_context.h"

namespace lockstep::program {
namespace {

using config::ContextKind;

int cp_of(const Layout& layout) { return layout.mesh.degree(mesh::Axis::kCp); }

// What a query sees: [first, last).
struct Seen {
  int64_t first = 0, last = 0;
};

// The queries come in ascending order.
class Sight {
 public:
  Sight(const std::vector<int32_t>& documents, int64_t window) : documents_(documents), window_(window) {}
  Seen of(int64_t query) {
    while (next_ < documents_.size() && documents_[next_] <= query) begin_ = documents_[next_++];
    return {window_ > 0 ? std::max(begin_, query - window_ + 1) : begin_, query + 1};
  }

 private:
  const std::vector<int32_t>& documents_;
  const int64_t window_;
  size_t next_ = 0;
  int64_t begin_ = 0;
};

int64_t pairs_between(const std::vector<int32_t>& queries, const std::vector<int32_t>& keys, Sight sight) {
  int64_t pairs = 0;
  size_t first = 0, last = 0;  // they move forwards with the queries
  for (const int32_t query : queries) {
    const Seen seen = sight.of(query);
    while (first < keys.size() && keys[first] < seen.first) ++first;
    while (last < keys.size() && keys[last] < seen.last) ++last;
    pairs += static_cast<int64_t>(last - std::min(first, last));
  }
  return pairs;
}

// Of the same attention; what is beside it communicates over cp too.
Layout first_attention(const Layout& layout) {
  const std::vector<int> layers = attention_layers(layout.model);
  return layers.empty() ? layout : of_layer(layout, layers.front());
}

Layout with_mode(const Layout& all, ContextKind kind, int inner) {
  Layout layout = first_attention(all);
  layout.context = kind;
  layout.context_inner = inner;
  return layout;
}

int64_t heads_here(const Layout& layout) { return layout.model.heads / layout.mesh.degree(mesh::Axis::kTp); }

std::vector<PlannedCall> context_calls(const Layout& layout, arch::Phase phase) {
  std::vector<PlannedCall> calls = tensor_calls(layout, 1, phase);
  std::erase_if(calls, [](const PlannedCall& call) { return call.group.channel != Channel::kContext; });
  return calls;
}

double bytes_of_a_token(const Layout& layout, arch::Phase phase) {
  int64_t bytes = 0;
  for (const PlannedCall& call : context_calls(layout, phase)) {
    const CallOfRank of_rank = call_of_rank(layout, 0, call);
    bytes += predicted_bytes(of_rank.call, of_rank.group_rank);
  }
  return static_cast<double>(bytes) / static_cast<double>(layout.micro_batch * layout.tokens_here());
}

// Bytes of the messages of one step for each token that comes: one of each id that shifts.
double shifted(const Layout& layout, arch::Phase phase, int64_t tokens) {
  int64_t bytes = 0;
  std::vector<CallId> seen;
  for (const PlannedCall& call : context_calls(layout, phase)) {
    if (call.collective != Collective::kShift || std::ranges::find(seen, call.id) != seen.end()) continue;
    seen.push_back(call.id);
    bytes += call.bytes();
  }
  return static_cast<double>(bytes) / static_cast<double>(layout.micro_batch * tokens);
}

int ring_inner(const Layout& layout) { return layout.context == ContextKind::k2d ? layout.context_inner : 1; }

}  // namespace

std::vector<int> attention_layers(const arch::ModelConfig& model) {
  std::vector<int> layers;
  std::set<int64_t> windows;
  for (int layer = 1; layer <= static_cast<int>(model.layers); ++layer) {
    const auto attends = [](const arch::Branch& branch) { return branch.kind.ends_with("attention"); };
    if (!std::ranges::any_of(arch::block_branches(model, layer), attends)) continue;
    if (windows.insert(arch::window_of_layer(model, layer)).second) layers.push_back(layer);
  }
  return layers;
}

Layout of_layer(const Layout& all, int layer) {
  Layout layout = all;
  arch::ModelConfig& model = layout.model;
  const arch::BlockSpec branches = arch::block_branches(model, layer);
  const auto mixes = [](const arch::Branch& branch) { return branch.kind == arch::kStateSpace || branch.kind.ends_with("attention"); };
  const auto mixer = std::ranges::find_if(branches, mixes);
  LOCKSTEP_CHECK(mixer != branches.end(), "layer ", layer, " mixes no tokens");
  arch::Branch alone = *mixer;
  if (alone.kind != arch::kStateSpace) alone.kind = "attention";  // latent attention stands for it
  alone.beside = false;
  model.sliding_window = arch::window_of_layer(model, layer);
  model.blocks = {{alone}};
  model.experts = {};
  return layout;
}

std::vector<int> context_ranks(const Layout& layout) { return layout.mesh.group(0, mesh::Axis::kCp); }

std::vector<std::vector<int32_t>> tokens_of_ranks(const Layout& layout, config::ContextSplit split, const std::vector<int32_t>& documents) {
  auto places = data::split_tokens(layout.seq_len, {.ranks = cp_of(layout), .split = split, .whole_pieces = layout.whole_pieces()}, documents);
  for (std::vector<int32_t>& of_rank : places)
    std::erase_if(of_rank, [&](int32_t place) { return place >= layout.seq_len; });
  return places;
}

int64_t RingWork::of_member(int member) const {
  const std::vector<int64_t>& steps = pairs.at(static_cast<size_t>(member));
  return std::accumulate(steps.begin(), steps.end(), int64_t{0});
}

int64_t RingWork::all() const {
  int64_t sum = 0;
  for (int member = 0; member < members(); ++member) sum += of_member(member);
  return sum;
}

int64_t RingWork::slowest(int step) const {
  int64_t most = 0;
  for (const std::vector<int64_t>& steps : pairs) most = std::max(most, steps.at(static_cast<size_t>(step)));
  return most;
}

double RingWork::busiest() const {
  int64_t most = 0;
  for (int member = 0; member < members(); ++member) most = std::max(most, of_member(member));
  return static_cast<double>(most) * members() / static_cast<double>(all());
}

double RingWork::imbalance() const {
  int64_t sum = 0;
  for (int step = 0; step < members(); ++step) sum += slowest(step);
  return static_cast<double>(sum) * members() / static_cast<double>(all());
}

RingWork ring_work(const Layout& layout, config::ContextSplit split, const std::vector<int32_t>& documents) {
  const std::vector<std::vector<int32_t>> of_ranks = tokens_of_ranks(layout, split, documents);
  const auto inner = static_cast<size_t>(ring_inner(layout));
  LOCKSTEP_CHECK_EQ(of_ranks.size() % inner, 0U, of_ranks.size(), " ranks in groups of ", inner);
  std::vector<std::vector<int32_t>> tokens(of_ranks.size() / inner);
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::vector<int32_t>& member = tokens[rank / inner];
    const auto middle = member.insert(member.end(), of_ranks[rank].begin(), of_ranks[rank].end());
    std::inplace_merge(member.begin(), middle, member.end());
  }
  const int members = static_cast<int>(tokens.size());
  const int64_t window = first_attention(layout).model.sliding_window;
  RingWork work{.pairs = std::vector(tokens.size(), std::vector<int64_t>(tokens.size()))};
  for (int member = 0; member < members; ++member)
    for (int step = 0; step < members; ++step)
      work.pairs[static_cast<size_t>(member)][static_cast<size_t>(step)] =
          pairs_between(tokens[static_cast<size_t>(member)], tokens[static_cast<size_t>(RingWork::holder(member, step, members))],
                        Sight(documents, window));
  return work;
}

std::string text_of(const ContextBytes& bytes) {
  const std::string name = config::name_of(bytes.kind);
  return bytes.kind == ContextKind::k2d ? cat(name, ", inner ", bytes.inner) : name;
}

std::vector<ContextBytes> context_bytes(const Layout& layout) {
  const int cp = cp_of(layout);
  const int64_t heads = heads_here(layout);
  if (attention_layers(layout.model).empty()) return {};
  std::vector<ContextBytes> modes = {{ContextKind::kRing}, {ContextKind::kAllGather}};
  if (cp <= heads) modes.push_back({ContextKind::kAllToAll});
  for (int inner = 2; inner < cp && inner <= heads; ++inner)
    if (cp % inner == 0) modes.push_back({ContextKind::k2d, inner});
  for (ContextBytes& mode : modes) {
    const Layout like_this = with_mode(layout, mode.kind, mode.inner);
    mode.forward = bytes_of_a_token(like_this, arch::Phase::kForward);
    mode.backward = bytes_of_a_token(like_this, arch::Phase::kBackward);
  }
  return modes;
}

ContextBytes state_space_bytes(const Layout& layout) {
  int layer = 1;
  const auto scans = [](const arch::Branch& branch) { return branch.kind == arch::kStateSpace; };
  while (!std::ranges::any_of(arch::block_branches(layout.model, layer), scans)) ++layer;
  const Layout alone = of_layer(layout, layer);
  return {.forward = bytes_of_a_token(alone, arch::Phase::kForward), .backward = bytes_of_a_token(alone, arch::Phase::kBackward)};
}

RingBalances ring_balances(const Layout& layout) {
  const int inner = ring_inner(layout);
  const arch::ModelConfig& model = layout.model;
  const auto keys = static_cast<double>(model.head_size), values = static_cast<double>(model.has_latent() ? model.latent.value : model.head_size);
  const auto heads = static_cast<double>((heads_here(layout) + inner - 1) / inner);
  const int64_t tokens = inner * layout.tokens_here();
  const double share = layout.context_split == config::ContextSplit::kZigzag ? 0.5 : 1;
  // Forward q k and p v; backward q k once more, dq and dk of the width of keys, dp and dv of that of values.
  const Layout dense = with_mode(layout, layout.context, layout.context_inner);
  return {.forward = {.bytes = shifted(dense, arch::Phase::kForward, tokens), .flops = 2 * heads * (keys + values), .share = share, .tokens_of_inner = inner},
          .backward = {.bytes = shifted(dense, arch::Phase::kBackward, tokens), .flops = 2 * heads * (3 * keys + 2 * values), .share = share, .tokens_of_inner = inner}};
}

}  // namespace lockstep::program
