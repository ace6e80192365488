#include <algorithm>
#include <array>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/render/render.h"

namespace lockstep::program {
namespace {

std::string short_label(int layer, int num_layers) {
  if (num_layers > 0 && layer >= 3 * num_layers) return short_label(layer - 3 * num_layers, num_layers) + "f";  // what it uses in fp32
  if (num_layers > 0 && layer >= 2 * num_layers) return short_label(layer - 2 * num_layers, num_layers) + "x";  // the layer's experts
  if (num_layers > 0 && layer >= num_layers) return short_label(layer - num_layers, num_layers) + "r";  // its rows
  if (layer == 0) return "e";
  return layer == num_layers - 1 ? "h" : cat(layer - 1);
}

// What stands in front of the layer.
std::string letter(const Action& action) {
  const KindWords& words = words_of(action.kind);
  const bool whole = action.layer < 0 && action.unit < 0 && action.bucket < 0;  // not of one layer
  if (whole || words.letter.empty()) return std::string(words.name);
  const char* what = action.moved == Moved::kOptimizer ? "s" : action.moved == Moved::kActivation ? "x" : "";
  return std::string(words.letter) + what;
}

std::string cell_text(const Action& action, const std::vector<Bucket>& buckets, int num_layers) {
  const std::string text = letter(action);
  if (action.layer >= 0) return text + short_label(action.layer, num_layers) + part_letter(action);
  if (action.unit >= 0) return text + short_label(action.unit, num_layers);
  if (action.bucket < 0) return text;
  const std::vector<int>& layers = buckets.at(static_cast<size_t>(action.bucket)).units;
  const std::string first = short_label(layers.front(), num_layers);
  return layers.size() == 1 ? text + first : cat(text, first, "..", short_label(layers.back(), num_layers));
}

// A lane: slot -> text.
using Slots = std::map<int, std::string>;

constexpr std::array<std::string_view, 3> kLanes = {"compute", "network", "copies"};
enum LaneIndex : size_t { kCompute, kNetwork, kCopies };

struct RankLanes {
  std::array<Slots, kLanes.size()> cells{};
  std::array<int, kLanes.size()> free{};  // first slot
  size_t next = 0;                        // action
  Pending<int> pending{};                 // the slot behind what was started and not yet joined
};

class Drawing {
 public:
  Drawing(const Program& program, const Layout& layout)
      : program_(program),
        num_layers_(layout.num_layers()),
        effects_(layout, program.buckets, 0),
        ranks_(program.list_of.size()) {
    while (advance()) communicate();
    if (!microbatch_starts_.contains(1)) microbatch_starts_.clear();
  }

  std::string text(size_t max_ranks) const {
    const size_t shown = std::min(max_ranks, ranks_.size());
    std::vector<size_t> widths;
    for (size_t r = 0; r < shown; ++r) {
      for (const Slots& lane : ranks_[r].cells) {
        for (const auto& [slot, label] : lane) {
          widths.resize(std::max(widths.size(), static_cast<size_t>(slot) + 1), 1);
          widths[static_cast<size_t>(slot)] = std::max(widths[static_cast<size_t>(slot)], label.size() + 1);
        }
      }
    }
    const size_t margin = cat("rank ", shown - 1, " compute  ").size();
    std::string result;
    if (!microbatch_starts_.empty()) {
      Slots starts;
      for (const auto& [microbatch, slot] : microbatch_starts_) starts[slot] = cat("m", microbatch);
      result += line(std::string(margin, ' '), starts, widths);
    }
    for (size_t r = 0; r < shown; ++r) {
      std::string name = cat("rank ", r);
      for (size_t lane = 0; lane < kLanes.size(); ++lane) {
        const Slots& cells = ranks_[r].cells[lane];
        if ((lane == kNetwork && ranks_.size() == 1) || (lane == kCopies && cells.empty())) continue;
        result += line(pad_right(cat(name, " ", kLanes[lane]), margin), cells, widths);
        name.assign(name.size(), ' ');
      }
    }
    if (shown < ranks_.size()) result += cat("(", ranks_.size() - shown, " more ranks)\n");
    return result;
  }

 private:
  const std::vector<Action>& actions(size_t rank) const { return program_.list(static_cast<int>(rank)); }

  // Computes on every rank up to its next communication; false once all are at their end.
  bool advance() {
    bool more = false;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankLanes& lanes = ranks_[r];
      for (; lanes.next < actions(r).size(); ++lanes.next) {
        const Action& action = actions(r)[lanes.next];
        const Effects& effects = effects_.of(action);
        if (effects.lane == Lane::kNetwork && effects.collective) break;
        if (effects.lane == Lane::kCopies) {
          const int slot = std::max({lanes.free[kCompute], lanes.free[kCopies], ready(lanes, action)});
          put(lanes, kCopies, slot, action);
          lanes.pending.start(effects, action, slot + 1);
          continue;
        }
        const int slot = std::max(lanes.free[kCompute], ready(lanes, action));
        lanes.pending.join(effects, action);
        if (r == 0 && action.kind == ActionKind::kForward && action.layer == 0) microbatch_starts_[action.microbatch] = slot;
        put(lanes, kCompute, slot, action);
      }
      more = more || lanes.next < actions(r).size();
    }
    return more;
  }

  void put(RankLanes& lanes, LaneIndex lane, int slot, const Action& action) const {
    lanes.cells[lane][slot] = cell_text(action, program_.buckets, num_layers_);
    lanes.free[lane] = slot + 1;
  }

  // The first slot in which all is there that the action uses.
  int ready(RankLanes& lanes, const Action& action) {
    int slot = 0;
    for (const int started : lanes.pending.of(effects_.of(action), action)) slot = std::max(slot, started);
    return slot;
  }

  // The next call of every rank: all of them come to the same one (the verifier's rule [deadlock]).
  void communicate() {
    int start = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankLanes& lanes = ranks_[r];
      if (lanes.next >= actions(r).size()) continue;
      start = std::max({start, lanes.free[kCompute], lanes.free[kNetwork], ready(lanes, actions(r)[lanes.next])});
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      RankLanes& lanes = ranks_[r];
      if (lanes.next >= actions(r).size()) continue;
      const Action& action = actions(r)[lanes.next++];
      put(lanes, kNetwork, start, action);
      const Effects& effects = effects_.of(action);
      if (effects.join == Join::kAtTouch) {
        lanes.pending.start(effects, action, start + 1);
      } else {
        lanes.pending.join(effects, action);
        lanes.free[kCompute] = start + 1;
      }
    }
  }

  static std::string line(std::string text, const Slots& lane, const std::vector<size_t>& widths) {
    for (size_t slot = 0; slot < widths.size(); ++slot) {
      const auto found = lane.find(static_cast<int>(slot));
      text += pad_right(found == lane.end() ? "" : found->second, widths[slot]);
    }
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }

  const Program& program_;
  const int num_layers_;
  EffectTable effects_;
  std::vector<RankLanes> ranks_;
  std::map<int, int> microbatch_starts_;  // of rank 0; empty where there is one
};

}  // namespace

std::string draw_program(const Program& program, const Layout& layout, int max_ranks) {
  return Drawing(program, layout).text(static_cast<size_t>(max_ranks));
}

}  // namespace lockstep::program
