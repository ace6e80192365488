#include "lockstep/program/render/render.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>

#include "lockstep/base/text.h"

namespace lockstep::program {
namespace {

class Folding {
 public:
  Folding(const std::vector<Action>& actions, const std::vector<Bucket>& buckets, int num_layers)
      : actions_(actions), buckets_(buckets), num_layers_(num_layers) {}

  std::vector<std::string> texts() {
    size_t i = 0;
    while (i < actions_.size()) {
      const Repeat repeat = microbatches(i);
      if (repeat.times > 1) {
        relative_to_ = actions_[i].microbatch;
        texts_.push_back(cat("m = ", relative_to_, "..", relative_to_ + static_cast<int>(repeat.times) - 1, " (",
                             join(rounds(i, i + repeat.length), ", "), ")"));
        relative_to_ = -1;
        i += repeat.times * repeat.length;
        continue;
      }
      size_t end = i + 1;  // up to the next action that begins such a repetition
      while (end < actions_.size() && microbatches(end).times == 1) ++end;
      for (std::string& text : rounds(i, end)) texts_.push_back(std::move(text));
      i = end;
    }
    return std::move(texts_);
  }

 private:
  struct Repeat {
    size_t length = 1, times = 1;
  };

  std::span<const Action> part(size_t from, size_t length) const { return std::span(actions_).subspan(from, length); }

  static bool is_first_forward(const Action& action) {
    return action.kind == ActionKind::kForward && action.layer == 0;
  }

  // Action b is action a in a later microbatch.
  static bool next_microbatch(const Action& a, const Action& b) {
    Action moved = a;
    if (moved.microbatch >= 0) moved.microbatch += 1;
    return moved == b;
  }

  // From the first forward of a microbatch to that of the next.
  Repeat microbatches(size_t i) const {
    if (!is_first_forward(actions_[i])) return {};
    Repeat repeat;
    while (i + repeat.length < actions_.size() && !is_first_forward(actions_[i + repeat.length])) ++repeat.length;
    const auto same = [&](size_t from) {
      return from + repeat.length <= actions_.size() &&
             std::ranges::equal(part(from - repeat.length, repeat.length), part(from, repeat.length), next_microbatch);
    };
    while (same(i + repeat.times * repeat.length)) ++repeat.times;
    return repeat;
  }

  // The layer an action is about, if it is about one.
  std::optional<int> place(const Action& action) const {
    if (action.unit >= 0) return action.unit;
    if (action.layer >= 0) return action.layer;
    if (action.bucket < 0) return std::nullopt;
    const std::vector<int>& layers = buckets_.at(static_cast<size_t>(action.bucket)).units;
    return layers.size() == 1 ? std::optional(layers[0]) : std::nullopt;
  }

  // Action b does to the layer `step` further what a does.
  bool next_layer(const Action& a, const Action& b, int step) const {
    const std::optional<int> from = place(a), to = place(b);
    return a.kind == b.kind && a.moved == b.moved && a.part == b.part && a.microbatch == b.microbatch && from && to && *to == *from + step;
  }

  // Rounds of `length` actions from i on, before `end`.
  size_t count_rounds(size_t i, size_t end, size_t length, int step) const {
    const auto next = [&](const Action& a, const Action& b) { return next_layer(a, b, step); };
    size_t count = 1;
    for (size_t at = i + length; at + length <= end; at += length) {
      if (!std::ranges::equal(part(at - length, length), part(at, length), next)) break;
      ++count;
    }
    return count;
  }

  std::vector<std::string> rounds(size_t i, size_t end) const {
    constexpr size_t kLongest = 10, kFewest = 3;
    std::vector<std::string> texts;
    while (i < end) {
      Repeat best;
      for (size_t length = 1; length <= kLongest && i + length <= end; ++length) {
        if (length > 1 && !computes(actions_[i].kind) && !words_of(actions_[i].kind).opens_round) break;  // reads better
        const size_t count = std::max(count_rounds(i, end, length, 1), count_rounds(i, end, length, -1));
        if (count >= kFewest && count * length > best.times * best.length) best = {.length = length, .times = count};
      }
      const size_t last = i + (best.times - 1) * best.length;
      texts.push_back(round_text(i, last, best.length));
      i = last + best.length;
    }
    return texts;
  }

  // The rounds that begin at `first` and at `last`, and those between them.
  std::string round_text(size_t first, size_t last, size_t length) const {
    const int microbatch = actions_[first].microbatch;
    const auto of_it = [&](const Action& action) { return action.microbatch == microbatch; };
    const bool same = std::ranges::all_of(part(first, length), of_it);
    if (first == last) return text(actions_[first]) + microbatch_text(microbatch);
    if (length == 1)
      return cat(text(actions_[first]), "..", layer_label(*place(actions_[last]), num_layers_),
                 microbatch_text(microbatch));
    const auto one = [&](size_t from) {
      std::vector<std::string> parts;
      for (const Action& action : part(from, length))
        parts.push_back(text(action) + (same ? "" : microbatch_text(action.microbatch)));
      return cat("(", join(parts, ", "), ")");
    };
    return cat(one(first), " .. ", one(last), same ? microbatch_text(microbatch) : "");
  }

  std::string text(Action action) const {
    action.microbatch = -1;
    return action_text(action, buckets_, num_layers_);
  }

  std::string microbatch_text(int microbatch) const {
    if (microbatch < 0) return "";
    if (relative_to_ < 0) return cat(" m", microbatch);
    if (microbatch == relative_to_) return "";
    return cat(" m", microbatch > relative_to_ ? "+" : "-", std::abs(microbatch - relative_to_));
  }

  const std::vector<Action>& actions_;
  const std::vector<Bucket>& buckets_;
  const int num_layers_;
  int relative_to_ = -1;  // the first microbatch of the repetition at hand
  std::vector<std::string> texts_;
};

}  // namespace

std::vector<std::string> folded_texts(const std::vector<Action>& actions, const std::vector<Bucket>& buckets,
                                      int num_layers) {
  return Folding(actions, buckets, num_layers).texts();
}

}  // namespace lockstep::program
