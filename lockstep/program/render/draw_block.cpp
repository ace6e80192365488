#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/program/ledger.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

constexpr int kColumns = 12;  // of a matrix as drawn
constexpr int kRows = 4;
constexpr int kLeft = 8;      // what a line of the drawing begins with

// "0" .. "9", "a" .. "z": the first of the ranks of the tp group, of an expert the etp group, that hold a piece.
char digit(int rank) { return "0123456789abcdefghijklmnopqrstuvwxyz"[rank % 36]; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (int64_t size : shape) sizes.push_back(cat(size));
  return cat("[", join(sizes, ", "), "]");
}

class BlockDrawing {
 public:
  BlockDrawing(const Layout& layout, int rank, int layer)
      : layout_(layout), rank_(rank), layer_(layer), block_(arch::layer_spec(layout.model, layer)), tp_(layout.mesh.degree(mesh::Axis::kTp)),
        sequence_(tp_ > 1 && layout.sequence_parallel) {
    // The rank's stage may have no such layer, but its place in tp, ep and etp is one of every stage.
    for (const arch::ParamSpec& spec : arch::param_table(layout.model, layout.tensor_shard(rank), {layer}))
      if (spec.layer == block_.index) specs_[spec.name.substr(block_.name.size() + 1)] = spec;
    description_ = arch::describe_layer(layout.model, block_, layout.cost_input(0));
  }

  std::string text() {
    const int64_t rows = layout_.micro_batch * layout_.tokens_here();
    const int here_rank = layout_.mesh.coordinates(rank_)[mesh::Axis::kTp];
    const mesh::Range here = sequence_ ? mesh::padded_range(rows, tp_, here_rank) : mesh::Range{0, rows};
    line(cat("x  rows ", here.begin, "..", here.end - 1, " of ", rows, ", all ", layout_.model.hidden, " columns"));
    for (const arch::Branch& branch : description_.branches) draw(branch);
    return std::move(text_);
  }

 private:
  void line(const std::string& text) { text_ += text + "\n"; }
  const arch::ParamSpec& spec(const std::string& name) const { return specs_.at(name); }

  // Norm, the branch, norm, the sum.
  void draw(const arch::Branch& branch) {
    const arch::BranchKind& kind = arch::branch_kind(branch.kind);
    line("|");
    if (branch.beside) line(cat("beside the branch above, reads ", branch.norm_before ? "the same x" : "what it reads"));
    if (branch.norm_before) norm(branch.norm());
    if (kind.drawing)
      draw_parts(branch, kind);
    else
      draw_linears(branch, kind);
    if (branch.norm_behind) norm(branch.post_norm());
    line(branch.beside ? "+  what the branch above gives, on the same rows" : "+  x of this half, on the same rows");
  }

  void draw_parts(const arch::Branch& branch, const arch::BranchKind& kind) {
    for (const arch::DrawnPart& part : kind.drawing(layout_.model, branch, specs_)) draw(part);
    between_tokens(branch);
  }

  // The first linears side by side, what is between, the second linear.
  void draw_linears(const arch::Branch& branch, const arch::BranchKind& kind) {
    const arch::BranchLinears linears = kind.linears(layout_.model);
    const std::string last = branch.part(linears.last.name);
    communication(branch.part(linears.first.name));
    std::vector<std::string> names;
    for (const auto& piece : linears.pieces) names.push_back(branch.part(piece.name) + ".weight");
    matrices(names);
    communication(branch.part("qk_norm"));
    between_tokens(branch);
    line(cat("| ", kind.between(layout_.model, branch, specs_)));
    matrices({last + ".weight"});
    communication(last);
  }

  void draw(const arch::DrawnPart& part) {
    using What = arch::DrawnPart::What;
    if (part.what == What::kMatrices) return matrices(part.names);
    for (const std::string& name : part.names) {
      if (part.what == What::kCalls)
        communication(name);
      else
        line("| " + name);
    }
  }

  void norm(const std::string& name) {
    line(cat(name, "  ", shape_text(spec(name + ".weight").shape), "  whole on every rank"));
  }

  // What a part communicates, forward to the right, backward to the left.
  void communication(std::string_view linear) {
    drawn_.emplace(linear);
    for (const arch::LayerCall& call : description_.calls) {
      if (call.part != linear) continue;
      const char* arrow = call.phase == CallPhase::kForward ? "|==> forward:  " : "<==| backward: ";
      line(cat(arrow, collective_name(call.collective), of_what(call), over_experts(call), ", ", call.at_run_time ? "about " : "",
               format_bytes(static_cast<double>(call.numel * call.element_size))));
    }
  }

  // What the branch communicates over cp, as far as it is not drawn with its parts.
  void between_tokens(const arch::Branch& branch) {
    for (const auto& [phase, arrow] : {std::pair{arch::Phase::kForward, "|==> forward:  "}, std::pair{arch::Phase::kBackward, "<==| backward: "}}) {
      std::vector<std::pair<PlannedCall, int>> found;  // and how often
      for (const PlannedCall& call : tensor_calls(layout_, layer_, phase)) {
        if (call.group.channel != Channel::kContext || !is_of(call.id, branch)) continue;
        const auto same = std::ranges::find_if(found, [&](const auto& other) { return other.first.id == call.id && other.first.numel == call.numel; });
        if (same == found.end())
          found.emplace_back(call, 1);
        else
          ++same->second;
      }
      int exchanges = 0;
      for (const auto& [call, count] : found) {
        const int exchange = call.collective == Collective::kAllToAll ? exchanges++ : 0;
        line(cat(arrow, count > 1 ? cat(count, " x ") : "", collective_name(call.collective), of_tokens(call, phase == arch::Phase::kForward, exchange),
                 " over ", group_name(layout_, call.group), ", ", format_bytes(static_cast<double>(call.bytes()))));
      }
    }
  }

  // The id of a call that is not drawn yet.
  bool is_of(const CallId& id, const arch::Branch& branch) const {
    return std::ranges::any_of(description_.calls, [&](const arch::LayerCall& call) {
      return call.part.starts_with(branch.part("")) && !drawn_.contains(call.part) &&
             id == call_of_layer(Purpose::kLayer, block_).of_part(call.part).with(call.phase);
    });
  }

  // `exchange`: which all_to_all of a pass it is.
  std::string of_tokens(const PlannedCall& call, bool forward, int exchange) const {
    if (call.collective == Collective::kAllToAll) return cat(forward ? " of " : " of d ", forward == (exchange == 0) ? "q, k, v" : "output");
    const bool latents = layout_.model.has_latent() && layout_.context == config::ContextKind::kRing;
    return cat(call.id.phase == CallPhase::kBackward ? " of d " : " of ", latents ? "latents" : "k, v");
  }

  // All else goes over tp.
  std::string over_experts(const arch::LayerCall& call) const {
    if (call.over != arch::CallGroup::kExperts) return "";
    return cat(" over ", group_name(layout_, group_over(layout_, layout_.expert_ranks(), Channel::kExperts)));
  }

  static std::string of_what(const arch::LayerCall& call) {
    const std::string part = call.part.substr(call.part.rfind('.') + 1);
    if (part == "node") {  // "experts.dispatch.node"
      const bool dispatch = call.part.find(".dispatch.") != std::string::npos;
      return cat(dispatch ? " (dispatch" : " (combine", ", inside a node)", call.phase == CallPhase::kForward ? "" : dispatch ? " of dy" : " of dx");
    }
    if (part == "dispatch" || part == "combine" || part == "rows")  // backward the gradients go the same way
      return cat(" (", part, ")", call.phase == CallPhase::kForward ? "" : part == "dispatch" ? " of dy" : " of dx");
    if (part == "counts" || part == "scores" || part == "tokens" || part == "weights") return cat(" of ", part);
    if (part == "columns" || part == "states") return cat(call.phase == CallPhase::kForward ? " of " : " of d ", part, " over cp");  // of pieces
    if (part == "norm" || part == "qk_norm") return call.phase == CallPhase::kForward ? " of squares of rows" : " of sums over rows";
    if (call.phase == CallPhase::kForward) return "";
    if (call.phase == CallPhase::kGather) return " of x, for the weight gradient";
    return call.collective == Collective::kAllGather ? " of dy" : " of dx";
  }

  void matrices(const std::vector<std::string>& names) {
    std::vector<std::string> lines(kRows + 1, "|" + std::string(kLeft - 1, ' '));
    for (const std::string& name : names) {
      const arch::ParamSpec& weight = spec(name);
      const std::string short_name = name.substr(name.find('.') + 1, name.rfind('.') - name.find('.') - 1);
      const std::string copies = weight.copies > 1 ? cat(" each on ", weight.copies, " ranks") : "";
      std::vector<std::string> column = {cat(short_name, " ", shape_text(weight.shape), copies)};
      for (int row = 0; row < kRows; ++row) column.push_back(drawn_row(weight, row));
      size_t width = 0;
      for (const std::string& text : column) width = std::max(width, text.size());
      for (size_t i = 0; i < column.size(); ++i) lines[i] += pad_right(column[i], width + 3);
    }
    for (const std::string& text : lines) line(text.substr(0, text.find_last_not_of(' ') + 1));
  }

  // A row of the matrix as drawn: per cell the rank that holds it.
  std::string drawn_row(const arch::ParamSpec& weight, int row) const {
    const bool by_columns = weight.cut == arch::TensorCut::kColumns;
    const int parts = weight.cut == arch::TensorCut::kNone ? 1 : (weight.expert >= 0 ? layout_.etp : tp_) / weight.copies;
    std::string cells;
    for (int column = 0; column < kColumns; ++column) {
      const int part = by_columns ? column * parts / kColumns : row * parts / kRows;
      cells += digit(part * weight.copies);
    }
    return cells;
  }

  const Layout& layout_;
  const int rank_;
  const int layer_;
  const arch::LayerSpec block_;
  const int tp_;
  const bool sequence_;
  arch::ParameterPieces specs_;  // of block 0
  arch::LayerDescription description_;
  std::set<std::string, std::less<>> drawn_{};  // parts whose calls are
  std::string text_;
};

}  // namespace

std::string draw_block(const Layout& layout, int rank) {
  std::string text;
  for (const int layer : blocks_shown(layout.model))
    text += cat(layer == 1 ? "" : cat("\nblock ", layer - 1, ", ", block_word(layout.model, layer), "\n\n"), BlockDrawing(layout, rank, layer).text());
  return text;
}

}  // namespace lockstep::program
