#include "lockstep/program/render/render.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::program {
namespace {

bool is_pass(const Action& action) {
  return (action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward) && action.layer >= 0 && action.part < 0;
}

// Action i and the neighbours that do the same to the next layers of the same microbatch; returns the end of the run.
size_t end_of_run(const std::vector<Action>& actions, size_t i) {
  size_t end = i + 1;
  if (!is_pass(actions[i])) return end;
  const int direction = actions[i].kind == ActionKind::kForward ? 1 : -1;
  while (end < actions.size() && actions[end].kind == actions[i].kind && actions[end].part < 0 &&
         actions[end].microbatch == actions[i].microbatch && actions[end].layer == actions[end - 1].layer + direction) {
    ++end;
  }
  return end;
}

// The pairs "B of a layer, then what is done with the bucket that is this layer" from action i on, layer after layer;
// returns the end of the run, i where there is none.
size_t end_of_pairs(const std::vector<Action>& actions, size_t i, const std::vector<Bucket>& buckets) {
  size_t end = i;
  while (end + 1 < actions.size() && actions[end].kind == ActionKind::kBackward && actions[end].part < 0 && actions[end + 1].bucket >= 0 &&
         buckets[static_cast<size_t>(actions[end + 1].bucket)].units == std::vector<int>{actions[end].layer} &&
         (end == i || actions[end].layer == actions[end - 2].layer - 1)) {
    end += 2;
  }
  return end > i + 2 ? end : i;
}

// PULL after PULL.
size_t end_of_pulls(const std::vector<Action>& actions, size_t i) {
  size_t end = i;
  while (end < actions.size() && of_bucket(actions[end].kind) && !reduces(actions[end].kind)) ++end;
  return end;
}

// Backward or not, and the microbatch, of what may be done in turns (divide_layers); nothing for what else stands in a list.
std::optional<std::pair<bool, int>> stream_of(const Action& action) {
  const Work work = work_of(action.kind);
  if (work == Work::kWeight || (work == Work::kNone && !exchanges(action.kind) && !words_of(action.kind).sends)) return std::nullopt;
  const bool backward = work == Work::kNone ? words_of(action.kind).gradients : work != Work::kForward;
  return std::pair(backward, action.microbatch);
}

bool begins_turns(const std::vector<Action>& actions, size_t i) {
  if (actions[i].part == 0) return true;
  const size_t end = end_of_run(actions, i);
  return is_pass(actions[i]) && end < actions.size() && actions[end].part == 0 && stream_of(actions[end]) == stream_of(actions[i]);
}

// Two microbatches in turns from action i on.
struct Turns {
  size_t end = 0;
  std::vector<std::string> passes{};   // "F embed..b3 m1", of each
  std::vector<const Action*> sends{};  // of what they hand on
};
Turns turns_from(const std::vector<Action>& actions, size_t i, int num_layers) {
  struct Stream {
    std::pair<bool, int> of{};
    const Action *first = nullptr, *last = nullptr;
  };
  std::vector<Stream> streams;
  Turns turns{.end = i};
  for (; turns.end < actions.size(); ++turns.end) {
    const Action& action = actions[turns.end];
    const auto of = stream_of(action);
    if (!of) break;
    auto known = std::ranges::find(streams, *of, &Stream::of);
    if (known == streams.end() && streams.size() == 2) break;
    if (known == streams.end()) known = streams.insert(known, Stream{.of = *of, .first = &action});
    if (words_of(action.kind).sends)
      turns.sends.push_back(&action);
    else
      known->last = &action;
  }
  for (const Stream& stream : streams)
    turns.passes.push_back(cat(action_name(stream.first->kind), " ", label_range(stream.first->layer, stream.last->layer, num_layers), " m",
                               stream.first->microbatch));
  return turns;
}

// One entry of the compact form: its text without the microbatch, and the microbatch (-1 = none).
struct Entry {
  std::string text;
  int microbatch = -1;
};

std::vector<Entry> runs_of_layers(const std::vector<Action>& actions, const std::vector<Bucket>& buckets,
                                  int num_layers) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < actions.size();) {
    const Action& first = actions[i];
    if (begins_turns(actions, i)) {
      const Turns turns = turns_from(actions, i, num_layers);
      entries.push_back({join(turns.passes, " in turns with "), -1});
      for (const Action* send : turns.sends) entries.push_back({action_text(*send, buckets, num_layers), -1});
      i = turns.end;
      continue;
    }
    size_t end = end_of_run(actions, i);
    if (const size_t pairs = end_of_pairs(actions, i, buckets); pairs > i) {
      end = pairs;
      entries.push_back({cat("(B, ", action_name(actions[i + 1].kind), ") of each of ",
                             label_range(first.layer, actions[end - 2].layer, num_layers)),
                         first.microbatch});
    } else if (const size_t pulls = end_of_pulls(actions, i); pulls > i + 1) {
      end = pulls;
      entries.push_back({cat("PULL of buckets ", first.bucket, "..", actions[end - 1].bucket), -1});
    } else if (is_pass(first)) {
      entries.push_back(
          {cat(action_name(first.kind), " ", label_range(first.layer, actions[end - 1].layer, num_layers)),
           first.microbatch});
    } else {
      entries.push_back({action_text(first, buckets, num_layers), -1});
    }
    i = end;
  }
  return entries;
}

// The entries [begin, end) of one microbatch.
size_t end_of_microbatch(const std::vector<Entry>& entries, size_t begin) {
  size_t end = begin;
  while (end < entries.size() && entries[end].microbatch == entries[begin].microbatch) ++end;
  return end;
}

// Microbatches that do the same as one: "m0..m6 (F embed..head, B head..embed)".
std::vector<std::string> compact_texts(const std::vector<Entry>& entries) {
  std::vector<std::string> texts;
  const auto same = [&](size_t a, size_t b, size_t count) {
    return std::ranges::equal(std::span(entries).subspan(a, count), std::span(entries).subspan(b, count), {}, &Entry::text, &Entry::text);
  };
  for (size_t i = 0; i < entries.size();) {
    const size_t count = entries[i].microbatch < 0 ? 1 : end_of_microbatch(entries, i) - i;
    size_t end = i + count;
    while (entries[i].microbatch >= 0 && end < entries.size() && entries[end].microbatch >= 0 &&
           end_of_microbatch(entries, end) - end == count && same(i, end, count)) {
      end += count;
    }
    if (end == i + count) {
      for (size_t k = i; k < end; ++k)
        texts.push_back(entries[k].text + (entries[k].microbatch < 0 ? "" : cat(" m", entries[k].microbatch)));
    } else {
      std::vector<std::string> parts;
      for (size_t k = i; k < i + count; ++k) parts.push_back(entries[k].text);
      texts.push_back(
          cat("m", entries[i].microbatch, "..m", entries[end - 1].microbatch, " (", join(parts, ", "), ")"));
    }
    i = end;
  }
  return texts;
}

// Pieces that fit a line: what is longer is cut behind its commas.
std::vector<std::string> fitting(const std::vector<std::string>& texts, size_t width) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string rest = i + 1 < texts.size() ? texts[i] + " |" : texts[i];
    while (width > 0 && rest.size() > width) {
      const size_t comma = rest.rfind(", ", width - 1);
      if (comma == std::string::npos) break;
      pieces.push_back(rest.substr(0, comma + 1));
      rest = rest.substr(comma + 2);
    }
    pieces.push_back(std::move(rest));
  }
  return pieces;
}

std::string wrapped(const std::vector<std::string>& texts, const ProgramTextOptions& options) {
  const auto indent = static_cast<size_t>(options.indent), width = static_cast<size_t>(options.width);
  const std::string new_line = "\n" + std::string(indent, ' ');
  std::string result;
  size_t column = indent;
  for (const std::string& piece : fitting(texts, width > indent ? width - indent : 0)) {
    if (!result.empty() && width > 0 && column + 1 + piece.size() > width) {
      result += new_line;
      column = indent;
    } else if (!result.empty()) {
      result += " ";
      ++column;
    }
    result += piece;
    column += piece.size();
  }
  return result;
}

}  // namespace

std::string program_text(const Program& program, const Layout& layout, int rank, const ProgramTextOptions& options) {
  const int num_layers = layout.num_layers();
  const std::vector<Action>& actions = program.list(rank);
  if (options.compact && std::ranges::any_of(actions, [](const Action& action) { return words_of(action.kind).comes_and_goes; }))
    return wrapped(folded_texts(actions, program.buckets, num_layers), options);
  if (options.compact) return wrapped(compact_texts(runs_of_layers(actions, program.buckets, num_layers)), options);
  std::vector<std::string> texts;
  for (const Action& action : actions) texts.push_back(action_text(action, program.buckets, num_layers));
  return wrapped(texts, options);
}

}  // namespace lockstep::program
