#include "lockstep/program/render/draw_tokens.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

using arch::CallGroup;

int first_expert_block(const Layout& layout) {
  int layer = 1;
  while (layer <= layout.model.layers && !layout.is_expert_block(layer)) ++layer;
  return layer;
}

// Those of the layer's calls that carry rows to experts or back.
TokenHop hop_of(const Layout& layout, const arch::LayerCall& call) {
  const bool by_node = call.over != CallGroup::kExperts, across = call.over == CallGroup::kExpertNodes;
  const mesh::View view = !by_node ? layout.expert_ranks() : across ? layout.expert_nodes() : layout.expert_node();
  const GroupRef group = group_over(layout, view, Channel::kExperts);
  TokenHop hop{.part = call.part, .collective = call.collective, .over = group_name(layout, group)};
  hop.back = call.part.find(".combine") != std::string::npos;
  hop.decided_by_tokens = call.at_run_time;
  hop.members = group_size(layout, group);
  hop.stride = across ? layout.node_ranks : 1;
  const int64_t elements = layout.model.hidden * hop.members;
  LOCKSTEP_CHECK(call.numel % elements == 0, call.part, ": ", call.numel, " elements in parts of ", elements);
  hop.rows = call.numel / elements;
  return hop;
}

bool carries_rows(const arch::LayerCall& call) {
  if (call.over == CallGroup::kTensor || call.phase != CallPhase::kForward) return false;
  return call.part.find(".dispatch") != std::string::npos || call.part.find(".combine") != std::string::npos;
}

// "experts.combine.node" as the drawing of a block names it.
std::string word_of(const TokenHop& hop) {
  const bool inside = hop.part.ends_with(".node");
  return cat(hop.back ? "combine" : "dispatch", inside ? ", inside a node" : "");
}

class TokenDrawing {
 public:
  TokenDrawing(const Layout& layout, const TokenRoutes& routes)
      : layout_(layout), routes_(routes), shown_(std::min(kDrawnRanks, static_cast<int>(routes.ranks.size()))) {}

  std::string text() {
    cells("", [&](int member) { return cat("rank ", routes_.ranks[static_cast<size_t>(member)]); });
    same("own rows", routes_.own);
    leave();
    for (const TokenHop& hop : routes_.hops)
      if (!hop.back) draw(hop);
    experts();
    bool summed = true;  // where the experts are
    for (const TokenHop& hop : routes_.hops) {
      if (!hop.back) continue;
      if (!summed) same("summed", hop.of_a_rank());
      draw(hop);
      summed = by_rows();
    }
    if (by_rows() && layout_.etp > 1) same("summed over etp", before_copies());
    same(by_rows() ? "weighted sums, own rows" : "own rows, summed", routes_.own);
    return "rows of one microbatch from rank to rank and back, forward, if every expert gets as many\n\n" + grid() + "\n" + remarks();
  }

 private:
  bool by_rows() const { return layout_.dispatcher == config::Dispatcher::kAllToAll; }
  int64_t before_copies() const { return routes_.slots > 0 ? routes_.slots * layout_.model.experts.count : routes_.assignments; }

  void cells(const std::string& label, const std::function<std::string(int)>& text) {
    Row row = {label};
    for (int member = 0; member < shown_; ++member) row.push_back(text(member));
    rows_.push_back(std::move(row));
  }
  void same(const std::string& label, int64_t number) {
    cells(label, [&](int) { return cat(number); });
  }
  void arrows() {
    cells("", [](int) { return "|"; });
  }

  // What each rank makes of its rows before they leave.
  void leave() {
    same(cat("assignments to experts", routes_.slots > 0 ? ", at most" : ""), routes_.assignments);
    if (routes_.slots > 0) same(cat("slots, ", routes_.slots, " for each expert"), before_copies());
    if (by_rows() && layout_.etp > 1) same(cat("one for each of etp ", layout_.etp), routes_.at_experts);
  }

  void draw(const TokenHop& hop) {
    arrows();
    rows_.push_back({cat("|==> ", collective_name(hop.collective), " (", word_of(hop), ") over ", hop.over)});
    for (int to = 0; to < shown_; ++to)
      cells(cat("  to rank ", routes_.ranks[static_cast<size_t>(to)]),
            [&](int from) { return hop.reaches(from, to) ? cat(hop.sent(from, to)) : std::string("."); });
    if (shown_ < std::ssize(routes_.ranks)) cells("  to the others", [&](int from) { return cat(hop.of_a_rank() - to_shown(hop, from)); });
    arrows();
    same(hop.back ? "come back" : "come", hop.of_a_rank());
  }

  int64_t to_shown(const TokenHop& hop, int from) const {
    int64_t rows = 0;
    for (int to = 0; to < shown_; ++to) rows += hop.sent(from, to);
    return rows;
  }

  void experts() {
    if (!by_rows()) same("assignments to experts here", routes_.at_experts);
    cells("experts", [&](int member) {
      const mesh::Range experts = experts_of(layout_, routes_, member);
      return experts.size() == 1 ? cat(experts.begin) : cat(experts.begin, "..", experts.end - 1);
    });
    if (layout_.etp > 1) cells("part of each", [&](int member) { return cat(member % layout_.etp, " of ", layout_.etp); });
    cells(routes_.slots > 0 ? "slots of each" : "rows of each", [&](int) { return mean(routes_.at_experts, routes_.experts_of_rank); });
    const auto back = std::ranges::find_if(routes_.hops, [](const TokenHop& hop) { return hop.back; });
    if (!by_rows()) same("weighted sums", back->of_a_rank());
  }

  static std::string mean(int64_t rows, int64_t experts) {
    if (rows % experts == 0) return cat(rows / experts);
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", static_cast<double>(rows) / static_cast<double>(experts));
    return text;
  }

  // Labels to the left, numbers to the right; a line of one entry goes over all columns.
  std::string grid() const {
    size_t label = 0, number = 0;
    for (const Row& row : rows_) {
      if (row.size() > 1) label = std::max(label, row[0].size());
      for (size_t i = 1; i < row.size(); ++i) number = std::max(number, row[i].size());
    }
    std::string text;
    for (const Row& row : rows_) {
      std::string line = row.size() > 1 ? pad_right(row[0], label) : row[0];
      for (size_t i = 1; i < row.size(); ++i) line += "  " + pad_left(row[i], number);
      text += line + "\n";
    }
    return text;
  }

  std::string remarks() const {
    std::string text;
    const auto all = static_cast<int>(routes_.ranks.size());
    if (shown_ < all) text += cat("the first ", shown_, " of ", all, " ranks that share the experts; each of the others sends as many\n");
    const bool decided = std::ranges::any_of(routes_.hops, [](const TokenHop& hop) { return hop.decided_by_tokens; });
    text += decided ? "a prediction, in equal parts, rounded up: in a step the tokens decide how many rows travel\n"
                    : "whatever the tokens choose, as many rows travel in every step\n";
    return text + "backward the gradients of outputs go as dispatch, those of inputs as combine\n";
  }

  const Layout& layout_;
  const TokenRoutes& routes_;
  const int shown_;
  std::vector<Row> rows_;
};

}  // namespace

TokenRoutes token_routes(const Layout& layout, int rank) {
  const int layer = first_expert_block(layout);
  if (!layout.model.has_experts() || layout.ep * layout.etp == 1 || layer > layout.model.layers) return {};
  const arch::CostInput input = layout.cost_input(rank);
  const arch::ExpertRows rows(layout.model, input);
  TokenRoutes routes{.ranks = group_ranks(layout, rank, group_over(layout, layout.expert_ranks(), Channel::kExperts)),
                     .own = rows.own,
                     .assignments = rows.slots > 0 ? rows.sent : rows.balanced / layout.etp,
                     .slots = rows.slots,
                     .at_experts = rows.balanced,
                     .experts_of_rank = layout.model.experts.count / layout.ep};
  const arch::LayerDescription description = arch::describe_layer(layout.model, arch::layer_spec(layout.model, layer), input);
  for (const arch::Step& step : description.steps) {
    if (step.what != arch::Step::What::kStart || !step.phases.has(arch::Phase::kForward)) continue;
    const arch::LayerCall& call = description.calls[static_cast<size_t>(step.index)];
    if (carries_rows(call)) routes.hops.push_back(hop_of(layout, call));
  }
  return routes;
}

mesh::Range experts_of(const Layout& layout, const TokenRoutes& routes, int member) {
  const int64_t part = member / layout.etp;
  return {part * routes.experts_of_rank, (part + 1) * routes.experts_of_rank};
}

std::string draw_tokens(const Layout& layout, int rank) {
  const TokenRoutes routes = token_routes(layout, rank);
  return routes.ranks.empty() ? "" : TokenDrawing(layout, routes).text();
}

}  // namespace lockstep::program
