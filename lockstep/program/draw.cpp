#include <algorithm>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/program/render.h"

namespace lockstep::program {
namespace {

bool on_network(ActionKind kind) {
  return kind == ActionKind::kReduceGrad || kind == ActionKind::kPush || kind == ActionKind::kLoss ||
         kind == ActionKind::kReducePartial || kind == ActionKind::kPull;
}

// Waits for everything that was communicated before it.
bool waits(ActionKind kind) {
  return kind == ActionKind::kLoss || kind == ActionKind::kReducePartial || kind == ActionKind::kNorm;
}

std::string short_label(int layer, int num_layers) {
  if (layer == 0) return "e";
  return layer == num_layers - 1 ? "h" : cat(layer - 1);
}

std::string cell_text(const Action& action, const std::vector<Bucket>& buckets, int num_layers) {
  if (action.layer >= 0) return cat(action_name(action.kind), short_label(action.layer, num_layers));
  if (action.bucket < 0) return std::string(action_name(action.kind));
  const char* letter = action.kind == ActionKind::kReduceGrad ? "R" : action.kind == ActionKind::kPush ? ">" : "<";
  const std::vector<int>& layers = buckets.at(static_cast<size_t>(action.bucket)).layers;
  const std::string first = short_label(layers.front(), num_layers);
  return layers.size() == 1 ? letter + first : cat(letter, first, "..", short_label(layers.back(), num_layers));
}

// A lane: slot -> text.
using Lane = std::map<int, std::string>;

struct RankLanes {
  Lane compute, network;
  size_t next = 0;       // action
  int compute_free = 0;  // first slot
  int network_free = 0;
};

class Drawing {
 public:
  Drawing(const Program& program, const Layout& layout)
      : program_(program),
        num_layers_(static_cast<int>(arch::layer_table(layout.model).size())),
        ranks_(program.ranks.size()) {
    while (advance()) communicate();
    if (!microbatch_starts_.contains(1)) microbatch_starts_.clear();
  }

  std::string text(size_t max_ranks) const {
    const size_t shown = std::min(max_ranks, ranks_.size());
    std::vector<size_t> widths;
    for (size_t r = 0; r < shown; ++r) {
      for (const Lane* lane : {&ranks_[r].compute, &ranks_[r].network}) {
        for (const auto& [slot, label] : *lane) {
          widths.resize(std::max(widths.size(), static_cast<size_t>(slot) + 1), 1);
          widths[static_cast<size_t>(slot)] = std::max(widths[static_cast<size_t>(slot)], label.size() + 1);
        }
      }
    }
    const size_t margin = cat("rank ", shown - 1, " compute  ").size();
    std::string result;
    if (!microbatch_starts_.empty()) {
      Lane starts;
      for (const auto& [microbatch, slot] : microbatch_starts_) starts[slot] = cat("m", microbatch);
      result += line(std::string(margin, ' '), starts, widths);
    }
    for (size_t r = 0; r < shown; ++r) {
      result += line(pad_right(cat("rank ", r, " compute"), margin), ranks_[r].compute, widths);
      if (ranks_.size() > 1)
        result += line(pad_right(cat("     ", std::string(cat(r).size(), ' '), " network"), margin), ranks_[r].network,
                       widths);
    }
    if (shown < ranks_.size()) result += cat("(", ranks_.size() - shown, " more ranks)\n");
    return result;
  }

 private:
  const std::vector<Action>& actions(size_t rank) const { return program_.ranks[rank]; }

  // Computes on every rank up to its next communication; false once all are at their end.
  bool advance() {
    bool more = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankLanes& lanes = ranks_[r];
      for (; lanes.next < actions(r).size() && !on_network(actions(r)[lanes.next].kind); ++lanes.next) {
        const Action& action = actions(r)[lanes.next];
        if (waits(action.kind)) lanes.compute_free = std::max(lanes.compute_free, lanes.network_free);
        if (r == 0 && action.kind == ActionKind::kForward && action.layer == 0) {
          microbatch_starts_[action.microbatch] = lanes.compute_free;
        }
        lanes.compute[lanes.compute_free++] = cell_text(action, program_.buckets, num_layers_);
      }
      more = more || lanes.next < actions(r).size();
    }
    return more;
  }

  // The next call of every rank: all of them come to the same one (the verifier's rule [deadlock]).
  void communicate() {
    int start = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < actions(r).size()) start = std::max({start, ranks_[r].compute_free, ranks_[r].network_free});
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankLanes& lanes = ranks_[r];
      if (lanes.next >= actions(r).size()) continue;
      const Action& action = actions(r)[lanes.next++];
      lanes.network[start] = cell_text(action, program_.buckets, num_layers_);
      lanes.network_free = start + 1;
      if (waits(action.kind)) lanes.compute_free = start + 1;
    }
  }

  static std::string line(std::string text, const Lane& lane, const std::vector<size_t>& widths) {
    for (size_t slot = 0; slot < widths.size(); ++slot) {
      const auto found = lane.find(static_cast<int>(slot));
      text += pad_right(found == lane.end() ? "" : found->second, widths[slot]);
    }
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }

  const Program& program_;
  const int num_layers_;
  std::vector<RankLanes> ranks_;
  std::map<int, int> microbatch_starts_;  // of rank 0; empty where there is one
};

}  // namespace

std::string draw_program(const Program& program, const Layout& layout, int max_ranks) {
  return Drawing(program, layout).text(static_cast<size_t>(max_ranks));
}

}  // namespace lockstep::program
