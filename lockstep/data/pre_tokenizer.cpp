#include "lockstep/data/pre_tokenizer.h"

#include <map>

#include "lockstep/base/text.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

std::string replaced(std::string_view text, char from, std::string_view to) {
  std::string out;
  for (const char c : text) {
    if (c == from) {
      out += to;
    } else {
      out += c;
    }
  }
  return out;
}

// Made once: a table of 256 strings is too much to build for each piece.
const ByteAlphabet& alphabet() {
  static const ByteAlphabet made;
  return made;
}

}  // namespace

PreTokenizer::PreTokenizer(const Component& component) {
  add(component);
}

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer made;
  made.steps_.push_back({.pattern = Regex(kGpt2Pattern), .byte_level = true});
  made.byte_level_ = true;
  return made;
}

void PreTokenizer::add(const Component& component) {
  const std::string type = component.type();
  // ByteLevel turns bytes into other code points: a step behind it sees those.
  if (byte_level_ && (type == "ByteLevel" || type == "Metaspace"))
    component.unsupported(cat("is a ", type, " after ByteLevel"));
  if (type == "ByteLevel") {
    steps_.push_back(byte_level_step(component));
    byte_level_ = true;
  } else if (type == "Split") {
    steps_.push_back(split_step(component));
  } else if (type == "Digits") {
    steps_.push_back(digits_step(component));
  } else if (type == "Metaspace") {
    steps_.push_back(metaspace_step(component));
  } else if (type == "Sequence") {
    component.allow_only({"type", "pretokenizers"});
    for (const Component& part : component.list("pretokenizers")) add(part);
  } else {
    component.unsupported(cat("has type ", type));
  }
}

PreTokenizer::Step PreTokenizer::byte_level_step(const Component& component) {
  component.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  component.flag("trim_offsets", true);  // of offsets, which are not kept here
  Step step{.prefix = component.flag("add_prefix_space", true) ? Prefix::kUnlessThere : Prefix::kNone,
            .byte_level = true};
  if (component.flag("use_regex", true)) step.pattern.emplace(kGpt2Pattern);
  return step;
}

PreTokenizer::Behavior PreTokenizer::behavior_of(const Component& component) {
  static const std::map<std::string, Behavior> kBehaviors = {{"Removed", Behavior::kRemoved},
                                                             {"Isolated", Behavior::kIsolated},
                                                             {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                             {"MergedWithNext", Behavior::kMergedWithNext},
                                                             {"Contiguous", Behavior::kContiguous}};
  const auto behavior = kBehaviors.find(component.text("behavior"));
  if (behavior == kBehaviors.end()) component.unsupported(cat("has behavior ", component.text("behavior")));
  return behavior->second;
}

PreTokenizer::Step PreTokenizer::split_step(const Component& component) {
  component.allow_only({"type", "pattern", "behavior", "invert"});
  return {.pattern = component.pattern("pattern"),
          .behavior = behavior_of(component),
          .invert = component.flag("invert", false)};
}

PreTokenizer::Step PreTokenizer::digits_step(const Component& component) {
  component.allow_only({"type", "individual_digits"});
  return {.pattern = Regex(R"(\p{N})"),
          .behavior = component.flag("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous};
}

PreTokenizer::Step PreTokenizer::metaspace_step(const Component& component) {
  // Older files have add_prefix_space in place of prepend_scheme, and a copy of the replacement in str_rep.
  component.allow_only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  static const std::map<std::string, Prefix> kSchemes = {
      {"always", Prefix::kUnlessThere}, {"first", Prefix::kAtStart}, {"never", Prefix::kNone}};
  const bool old_prefix = component.flag("add_prefix_space", true);
  const std::string scheme = component.has("prepend_scheme") ? component.text("prepend_scheme")
                                                             : (old_prefix ? "always" : "never");
  const auto prefix = kSchemes.find(scheme);
  if (prefix == kSchemes.end()) component.unsupported(cat("has prepend_scheme ", scheme));
  if (!old_prefix && scheme != "never") component.malformed("has prepend_scheme and no add_prefix_space");
  Step step{.behavior = Behavior::kMergedWithNext, .prefix = prefix->second, .space = component.letter("replacement")};
  if (component.flag("split", true)) step.pattern.emplace(step.space, Regex::Kind::kLiteral);
  return step;
}

void PreTokenizer::split(std::string_view text, const Sink& sink, bool at_start) const {
  const bool written_in_alphabet = byte_level_ && !steps_.back().byte_level;
  if (!written_in_alphabet) return run(0, text, at_start, sink);
  run(0, text, at_start, [&](std::string_view piece) { sink(alphabet().to_bytes(piece).value()); });
}

void PreTokenizer::run(size_t index, std::string_view text, bool at_start, const Sink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) return sink(text);
  const Step& step = steps_[index];
  std::string changed;
  if (step.space != " " && text.find(' ') != std::string_view::npos) text = changed = replaced(text, ' ', step.space);
  const bool wants_prefix = step.prefix == Prefix::kUnlessThere || (step.prefix == Prefix::kAtStart && at_start);
  if (wants_prefix && !text.starts_with(step.space)) text = changed = cat(step.space, text);
  if (index + 1 == steps_.size()) return cut(step, text, sink);
  cut(step, text, [&](std::string_view piece) {
    const bool first = at_start && piece.data() == text.data();
    if (!step.byte_level) return run(index + 1, piece, first, sink);
    run(index + 1, alphabet().to_symbols(piece), first, sink);
  });
}

// Walks over matches and the gaps between them. A part waits in `pending` while a later one may still join it.
void PreTokenizer::cut(const Step& step, std::string_view text, const Sink& sink) {
  if (!step.pattern) return sink(text);
  struct Part {
    size_t begin = 0, end = 0;
    bool match = false;
  } pending;
  const auto flush = [&] {
    if (pending.end > pending.begin) sink(text.substr(pending.begin, pending.end - pending.begin));
  };
  const auto joins = [&](const Part& part) {
    switch (step.behavior) {
      case Behavior::kContiguous:
        return part.match == pending.match;
      case Behavior::kMergedWithPrevious:
        return part.match && !pending.match;
      case Behavior::kMergedWithNext:
        return !part.match && pending.match;
      default:
        return false;
    }
  };
  const auto take = [&](size_t begin, size_t end, bool match) {
    const Part part{.begin = begin, .end = end, .match = match != step.invert};
    if (pending.end > pending.begin && joins(part)) {
      pending.end = end;
      pending.match = part.match;
      return;
    }
    flush();
    pending = part;
    if (step.behavior == Behavior::kRemoved && part.match) pending.end = pending.begin;
  };
  Regex::Scan scan(*step.pattern, text);
  size_t at = 0;
  for (Match match; scan.next(match); at = match.end) {
    if (match.begin > at) take(at, match.begin, false);
    take(match.begin, match.end, true);
  }
  if (at < text.size()) take(at, text.size(), false);
  flush();
}

}  // namespace lockstep::data
