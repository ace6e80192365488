#include "lockstep/data/pre_tokenizer.h"

#include <map>

#include "lockstep/base/text.h"

namespace lockstep::data {

PreTokenizer::PreTokenizer(const Component& component) {
  add(component);
  if (steps_.empty() || !steps_.back().byte_level) component.unsupported("does not end with ByteLevel");
}

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer made;
  made.steps_.push_back({.pattern = Regex(kGpt2Pattern), .byte_level = true});
  return made;
}

void PreTokenizer::add(const Component& component) {
  const std::string type = component.type();
  // ByteLevel turns bytes into other code points: a step after it would see those.
  if (!steps_.empty() && steps_.back().byte_level) component.unsupported(cat("is a ", type, " after ByteLevel"));
  if (type == "ByteLevel") {
    steps_.push_back(byte_level_step(component));
  } else if (type == "Split") {
    steps_.push_back(split_step(component));
  } else if (type == "Sequence") {
    component.allow_only({"type", "pretokenizers"});
    const Json& list = component.at("pretokenizers");
    if (!list.is_array()) component.malformed("member \"pretokenizers\" is not a list");
    for (size_t i = 0; i < list.size(); ++i)
      add(Component(list[i], cat(component.path(), ".pretokenizers[", i, "]"), component.file()));
  } else {
    component.unsupported(cat("has type ", type));
  }
}

PreTokenizer::Step PreTokenizer::byte_level_step(const Component& component) {
  component.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  Step step{.add_prefix_space = component.flag("add_prefix_space", true), .byte_level = true};
  if (component.flag("use_regex", true)) step.pattern.emplace(kGpt2Pattern);
  return step;
}

PreTokenizer::Step PreTokenizer::split_step(const Component& component) {
  static const std::map<std::string, Behavior> kBehaviors = {{"Removed", Behavior::kRemoved},
                                                             {"Isolated", Behavior::kIsolated},
                                                             {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                             {"MergedWithNext", Behavior::kMergedWithNext},
                                                             {"Contiguous", Behavior::kContiguous}};
  component.allow_only({"type", "pattern", "behavior", "invert"});
  const auto behavior = kBehaviors.find(component.text("behavior"));
  if (behavior == kBehaviors.end()) component.unsupported(cat("has behavior ", component.text("behavior")));
  Step step{.behavior = behavior->second, .invert = component.flag("invert", false)};
  const Component pattern = component.child("pattern");
  pattern.allow_only({"Regex", "String"});
  if (pattern.has("Regex")) {
    step.pattern.emplace(pattern.text("Regex"));
  } else {
    step.pattern.emplace(pattern.text("String"), Regex::Kind::kLiteral);
  }
  return step;
}

void PreTokenizer::run(size_t index, std::string_view text, const Sink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) return sink(text);
  const Step& step = steps_[index];
  const bool last = index + 1 == steps_.size();
  const Sink inner = last ? Sink() : [&](std::string_view piece) { run(index + 1, piece, sink); };
  const Sink& next = last ? sink : inner;
  if (step.add_prefix_space && text.front() != ' ') return cut(step, cat(" ", text), next);
  cut(step, text, next);
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
