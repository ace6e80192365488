#include "lockstep/program/render/draw_context.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_split.h"
#include "lockstep/program/render/draw_tokens.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

using config::ContextKind;
using config::ContextSplit;

std::string decimals(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// "0.0250", "37.5", "1250": three digits.
std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 0.1 ? "%.2e" : value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

struct Spread {
  double sum = 0, most = 0;
  int count = 0;
  void add(double value) { sum += value, most = std::max(most, value), ++count; }
  double mean() const { return sum / count; }
};

class ContextDrawing {
 public:
  ContextDrawing(const Layout& layout, const ContextQuestion& question)
      : layout_(layout), question_(question), ranks_(context_ranks(layout)), members_(std::ssize(ranks_) / inner()) {}

  // What there is to say of one kind of attention.
  std::string attention() const {
    std::string text;
    if (layout_.context == ContextKind::kAllToAll)
      text += heads();
    else if (layout_.context == ContextKind::kAllGather)
      text += gathered();
    else
      text += ends() > 0 ? ends_text() : steps() + "\n" + work(ContextSplit::kZigzag) + "\n" + work(ContextSplit::kContiguous) + "\n" + balances();
    if (!question_.sequences.empty()) text += "\n" + sequences();
    return text + "\n" + modes();
  }

  std::string holders() const {
    const auto places = tokens_of_ranks(layout_, layout_.context_split, question_.documents);
    const int64_t each = layout_.tokens_here();
    const bool filled = each * std::ssize(ranks_) > layout_.seq_len;
    std::vector<Row> rows = {{"rank", "tokens"}};
    if (filled) rows[0].emplace_back("behind the end");
    for (int i = 0; i < shown(); ++i) {
      const std::vector<int32_t>& here = places.at(static_cast<size_t>(i));
      rows.push_back({cat(ranks_[static_cast<size_t>(i)]), ranges_text(here)});
      if (filled) rows.back().push_back(cat(each - std::ssize(here)));
    }
    const char* whole = question_.documents.size() > 1 && layout_.whole_pieces() ? ", in pieces of the whole sequence, for state spaces" : "";
    std::string text = cat("who holds which tokens of a sequence of ", layout_.seq_len, ", ", each, " each: ", config::name_of(layout_.context_split), whole, "\n");
    if (question_.documents.size() > 1) text += cat("documents begin at ", join(starts(), ", "), "\n");
    text += "\n" + table(rows, 2, 1) + left_out(shown(), std::ssize(ranks_), "ranks of cp");
    const int64_t groups = layout_.mesh.world_size() / std::ssize(ranks_);
    return groups == 1 ? text : text + cat("and so on in each of ", groups, " groups of cp\n");
  }

  // Pieces of consecutive tokens, one behind the other.
  std::string state_spaces() const {
    const ContextBytes bytes = state_space_bytes(layout_);
    const int64_t pieces = layout_.context_split == ContextSplit::kZigzag ? 2 : 1;
    return cat("state spaces take ", pieces * std::ssize(ranks_), " pieces of ", layout_.tokens_here() / pieces,
               " tokens: every rank gets the last ", layout_.model.state_space.convolution - 1,
               " columns of each for its convolution, and the state behind each, of which it makes that before its own\n",
               "what a rank sends for it in a block for each of its tokens: ", decimal_bytes(bytes.forward), " forward, ", decimal_bytes(bytes.backward),
               " backward\n");
  }

 private:
  int inner() const { return layout_.context == ContextKind::k2d ? layout_.context_inner : 1; }
  int shown() const { return std::min(kDrawnRanks, static_cast<int>(ranks_.size())); }
  int shown_members() const { return static_cast<int>(std::min<int64_t>(kDrawnRanks, members_)); }
  std::string left_out(int drawn, int64_t all, const char* what) const {
    return drawn < all ? cat("the first ", drawn, " of ", all, " ", what, "\n") : "";
  }

  // "2"; of 2d "2, 3".
  std::string of_member(int member) const {
    const auto first = ranks_.begin() + member * inner();
    return rank_list({first, first + inner()});
  }
  std::string member_text(int member) const { return cat(inner() == 1 ? "rank " : "ranks ", of_member(member)); }

  std::vector<std::string> starts() const {
    std::vector<std::string> texts;
    for (const int32_t begin : question_.documents) {
      if (texts.size() == kDrawnRanks) {
        texts.push_back(cat("and ", question_.documents.size() - texts.size(), " more"));
        break;
      }
      texts.push_back(cat(begin));
    }
    return texts;
  }

  int64_t ends() const { return window_ends(layout_); }
  std::string ends_text() const {
    return cat("nothing goes round: a token sees ", layout_.model.sliding_window, " tokens, so the last ", ends(),
               " of each piece go to who has the next piece, and to no other\n");
  }

  // Numbers by member and step.
  std::string grid(const std::string& head, const std::vector<Row>& lines, bool with_sum) const {
    std::vector<Row> rows = {{head}};
    for (int step = 0; step < shown_members(); ++step) rows[0].push_back(cat("step ", step));
    if (with_sum) rows[0].emplace_back("all");
    rows.insert(rows.end(), lines.begin(), lines.end());
    return table(rows, 1, rows[0].size() - 1) + left_out(shown_members(), members_, inner() > 1 ? "groups and steps" : "ranks and steps");
  }

  std::string steps() const {
    std::vector<Row> lines;
    for (int member = 0; member < shown_members(); ++member) {
      lines.push_back({member_text(member)});
      for (int step = 0; step < shown_members(); ++step)
        lines.back().push_back(of_member(RingWork::holder(member, step, static_cast<int>(members_))));
    }
    return cat("whose keys and values each has at each step; behind it they go on to the next\n\n", grid("", lines, false));
  }

  std::string work(ContextSplit split) const {
    const RingWork work = ring_work(layout_, split, question_.documents);
    const double mean = static_cast<double>(work.all()) / static_cast<double>(members_ * members_);
    const auto share = [&](int64_t pairs, double of) { return decimals(static_cast<double>(pairs) / of, 2); };
    std::vector<Row> lines;
    for (int member = 0; member < shown_members(); ++member) {
      lines.push_back({member_text(member)});
      for (int step = 0; step < shown_members(); ++step)
        lines.back().push_back(share(work.pairs[static_cast<size_t>(member)][static_cast<size_t>(step)], mean));
      lines.back().push_back(share(work.of_member(member), mean * static_cast<double>(members_)));
    }
    lines.push_back({"slowest"});
    for (int step = 0; step < shown_members(); ++step) lines.back().push_back(share(work.slowest(step), mean));
    lines.back().push_back(decimals(work.imbalance(), 2));
    const char* used = split == layout_.context_split ? ", this layout's" : "";
    return cat("work of attention, 1.00 = equal parts: ", config::name_of(split), used, "\n\n", grid("", lines, true));
  }

  std::string heads() const {
    const int64_t heads = layout_.model.heads / layout_.mesh.degree(mesh::Axis::kTp);
    const auto ranks = static_cast<int64_t>(ranks_.size());
    const int64_t most = (heads + ranks - 1) / ranks;
    std::string text = cat("every rank has all tokens of at most ", most, most == 1 ? " head of " : " heads of ", heads);
    const double slowest = static_cast<double>(most * ranks) / static_cast<double>(heads);
    return cat(text, ": the slowest works ", decimals(slowest, 2), " of equal parts\n");
  }

  std::string gathered() const {
    std::vector<Row> rows = {{""}};
    for (int i = 0; i < shown(); ++i) rows[0].push_back(cat("rank ", ranks_[static_cast<size_t>(i)]));
    rows[0].emplace_back("slowest");
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      const auto places = tokens_of_ranks(layout_, split, question_.documents);
      const std::vector<int64_t> pairs = data::attention_pairs(layout_.seq_len, places, question_.documents, layout_.model.sliding_window);
      double sum = 0;
      for (const int64_t of_rank : pairs) sum += static_cast<double>(of_rank);
      const auto share = [&](int64_t of_rank) { return decimals(static_cast<double>(of_rank) * static_cast<double>(pairs.size()) / sum, 2); };
      rows.push_back({config::name_of(split)});
      for (int i = 0; i < shown(); ++i) rows.back().push_back(share(pairs[static_cast<size_t>(i)]));
      rows.back().push_back(share(*std::ranges::max_element(pairs)));
    }
    return cat("every rank has all keys and values; work of attention, 1.00 = equal parts\n\n", table(rows, 1, rows[0].size() - 1),
               left_out(shown(), std::ssize(ranks_), "ranks of cp"));
  }

  // Of sequences of a data file.
  std::string sequences() const {
    if (layout_.context == ContextKind::kAllToAll) return cat(question_.about_sequences, "\nwhatever the documents are, ranks work as their heads say\n");
    const bool steps = layout_.context != ContextKind::kAllGather;
    std::vector<Row> rows = {{"", "busiest rank", "worst"}};
    if (steps) rows[0].insert(rows[0].end(), {"slowest at every step", "worst"});
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
      Spread of_ranks, of_steps;
      for (const std::vector<int32_t>& documents : question_.sequences) {
        const RingWork work = ring_work(layout_, split, documents);
        of_ranks.add(work.busiest());
        of_steps.add(work.imbalance());
      }
      rows.push_back({config::name_of(split), decimals(of_ranks.mean(), 2), decimals(of_ranks.most, 2)});
      if (steps) rows.back().insert(rows.back().end(), {decimals(of_steps.mean(), 2), decimals(of_steps.most, 2)});
    }
    return cat(question_.about_sequences, "\nwork of ", question_.sequences.size(), " of them, 1.00 = equal parts: mean and worst sequence\n\n",
               table(rows, 1, rows[0].size() - 1));
  }

  std::string balances() const {
    const auto [forward, backward] = ring_balances(layout_);
    const bool told = question_.flops > 0 && question_.bandwidth > 0;
    std::vector<Row> rows = {{"", "bytes of a token", "FLOPs of a pair", "hidden from"}};
    if (told) rows[0].insert(rows[0].end(), {"here", "messages / products"});
    for (const auto& [name, balance] : {std::pair{"forward", forward}, std::pair{"backward", backward}}) {
      const double intensity = balance.intensity();
      rows.push_back({name, decimals(balance.bytes, 0), decimals(balance.flops, 0), cat(three_digits(intensity), " F / BW")});
      if (!told) continue;
      const double from = intensity * question_.flops / question_.bandwidth;
      rows.back().back() += cat(" = ", decimals(from, 0));
      rows.back().insert(rows.back().end(), {cat(layout_.tokens_here()), decimals(from / static_cast<double>(layout_.tokens_here()), 2)});
    }
    const std::string machine = told ? cat("F = ", number_text(question_.flops), " FLOP/s of a rank, BW = ", number_text(question_.bandwidth), " bytes/s of its link")
                                     : std::string("F: FLOP/s of a rank (--flops), BW: bytes/s of its link (--bandwidth)");
    const char* share = forward.share < 1 ? "half of the pairs of a step" : "all pairs of a step, as the slowest rank does";
    return cat("tokens of a sequence on a rank from which a step's messages stay behind its products\n", machine, "; work: ", share, "\n\n",
               table(rows, 1, rows[0].size() - 1));
  }

  std::string modes() const {
    const std::vector<ContextBytes> modes = context_bytes(layout_);
    std::vector<Row> rows = {{"mode", "forward", "backward", "in all", ""}};
    const auto all = [](const ContextBytes& mode) { return mode.all(); };
    const double least = all(*std::ranges::min_element(modes, {}, all));
    for (const ContextBytes& mode : modes) {
      const bool here = mode.kind == layout_.context && mode.inner == inner();
      const std::string remark = cat(here ? "this layout's" : "", here && mode.all() == least ? ", " : "", mode.all() == least ? "least" : "");
      rows.push_back({text_of(mode), decimal_bytes(mode.forward), decimal_bytes(mode.backward), decimal_bytes(mode.all()), remark});
    }
    return cat("what a rank sends in a block for each of its tokens\n\n", table(rows, 1, 3));
  }

  const Layout& layout_;
  const ContextQuestion& question_;
  const std::vector<int> ranks_;
  const int64_t members_;
};

}  // namespace

int64_t window_ends(const Layout& layout) {
  if (layout.context != ContextKind::kRing && layout.context != ContextKind::k2d) return 0;
  const int64_t inner = layout.context == ContextKind::k2d ? layout.context_inner : 1;
  return layout.context_shard().window_ends(static_cast<int>(layout.mesh.degree(mesh::Axis::kCp) / inner), static_cast<int>(inner) * layout.tokens_here(),
                                            layout.model.sliding_window);
}

std::string draw_context(const Layout& layout, const ContextQuestion& question) {
  if (layout.mesh.degree(mesh::Axis::kCp) == 1) return "every rank holds whole sequences: parallel.cp = 1\n";
  const ContextDrawing all(layout, question);
  std::string text = all.holders();
  const std::vector<int> layers = attention_layers(layout.model);
  for (const int layer : layers) {
    const Layout alone = of_layer(layout, layer);
    const int64_t window = alone.model.sliding_window;
    if (layers.size() > 1) text += cat("\nattention ", window > 0 ? cat("within ", window, " tokens") : std::string("to all tokens before"), ", as in block ", layer - 1, "\n");
    text += "\n" + ContextDrawing(alone, question).attention();
  }
  return layout.model.has_state_space() ? text + "\n" + all.state_spaces() : text;
}

}  // namespace lockstep::program
