#include "lockstep/config/suggestion.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

constexpr size_t kMostValues = 2, kMostFields = 3, kMostTried = 24;

// "parallel.tp" -> "tp", and the model's with their section: "model.max_seq_len".
std::string short_name(const std::string& key) {
  return key == kRanks || key.starts_with("model.") ? key : key.substr(key.find('.') + 1);
}

std::string text_of_change(const Change& change) {
  return change.value ? cat(short_name(change.key), " ", *change.value) : cat("without ", short_name(change.key));
}

bool is_one_value(const Suggestion& suggestion) {
  return suggestion.text.empty() && suggestion.changes.size() == 1 && suggestion.changes[0].value;
}

// What may have to be changed with it, from nothing to both: the number of ranks, to that which the axes of the configuration
// make; the batch, to the nearest that these cut evenly.
std::vector<std::vector<Change>> what_follows(const Trial& trial) {
  const RunConfig& config = trial.loaded.config;
  const int64_t wanted = config.train.global_batch;
  const int ranks = ranks_wanted(config);
  std::vector<std::vector<Change>> sets = {{}};
  const auto add_batch = [&](std::vector<Change> set, int world_size) {
    const int64_t unit = batch_unit(config, world_size), batch = std::max(unit, wanted / unit * unit);
    if (batch == wanted) return;
    set.push_back({"train.global_batch", cat(batch)});
    sets.push_back(std::move(set));
  };
  add_batch({}, trial.world_size);
  if (ranks == trial.world_size) return sets;
  const Change world{kRanks, cat(ranks)};
  sets.push_back({world});
  add_batch({world}, ranks);
  return sets;
}

// How much a change helps: it leaves fewer problems, or lets the judging come further and meet others.
enum class Help { kNone, kFurther, kFewer };

class Judge {
 public:
  Judge(const std::vector<LayoutProblem>& problems, const Trial& trial, const Rules& rules)
      : problems_(problems), trial_(trial), rules_(rules) {}

  // The suggestion, with what must follow of it; nothing where that does not help enough.
  std::optional<Suggestion> made_to_hold(const LayoutProblem& problem, const Suggestion& suggestion, Help enough) {
    const std::optional<Trial> changed = with_changes(trial_, suggestion);
    if (!changed) return std::nullopt;
    for (const std::vector<Change>& further : what_follows(*changed)) {
      Suggestion whole = suggestion;
      if (!further.empty() && !whole.text.empty()) continue;  // its words would not say them
      const bool twice = std::any_of(further.begin(), further.end(), [&](const Change& change) {
        return std::any_of(whole.changes.begin(), whole.changes.end(), [&](const Change& own) { return own.key == change.key; });
      });
      if (twice) continue;
      whole.changes.insert(whole.changes.end(), further.begin(), further.end());
      const Help help = help_of(problem, whole);
      most_ = std::max(most_, help);
      if (help >= enough) return whole;
    }
    return std::nullopt;
  }

  bool asks_for_more_ranks(const Suggestion& suggestion) const {
    const std::optional<Trial> changed = with_changes(trial_, suggestion);
    return changed && changed->world_size > trial_.world_size;
  }

  Help take_most() { return std::exchange(most_, Help::kNone); }

 private:
  Help help_of(const LayoutProblem& problem, const Suggestion& suggestion) const {
    const std::optional<Trial> changed = with_changes(trial_, suggestion);
    if (!changed) return Help::kNone;
    try {
      const std::vector<LayoutProblem> left = rules_(*changed);
      if (left.empty()) return Help::kFewer;
      if (left.front().depth < problem.depth) return Help::kNone;
      const bool gone = std::none_of(left.begin(), left.end(), [&](const LayoutProblem& other) { return other.what == problem.what; });
      if (gone && left.size() < problems_.size()) return Help::kFewer;
      return left.front().depth > problem.depth ? Help::kFurther : Help::kNone;
    } catch (const Error&) {
      return Help::kNone;
    }
  }

  const std::vector<LayoutProblem>& problems_;
  const Trial& trial_;
  const Rules& rules_;
  Help most_ = Help::kNone;  // of all that was tried since take_most()
};

// At most kMostValues of a field and kMostFields fields; those that need nothing else before those that do.
std::vector<Suggestion> chosen(const LayoutProblem& problem, Judge& judge, Help enough) {
  std::vector<Suggestion> plain, longer;
  std::map<std::string, size_t> tried, kept;
  for (const Suggestion& suggestion : problem.ways) {
    const std::string field = suggestion.changes[0].key;
    if (++tried[field] > kMostTried || kept[field] == kMostValues) continue;
    if (std::any_of(plain.begin(), plain.end(), [&](const Suggestion& other) { return other.changes == suggestion.changes; })) continue;
    const std::optional<Suggestion> whole = judge.made_to_hold(problem, suggestion, enough);
    if (!whole) continue;
    const bool alone = whole->changes.size() == suggestion.changes.size();
    if (alone) ++kept[field];
    (alone ? plain : longer).push_back(*whole);
  }
  std::stable_partition(longer.begin(), longer.end(), [&](const Suggestion& one) { return !judge.asks_for_more_ranks(one); });
  for (Suggestion& suggestion : longer)
    if (const std::string& field = suggestion.changes[0].key; kept[field] == 0) ++kept[field], plain.push_back(std::move(suggestion));
  std::vector<std::string> fields;
  std::erase_if(plain, [&](const Suggestion& suggestion) {
    const std::string& field = suggestion.changes[0].key;
    if (std::find(fields.begin(), fields.end(), field) == fields.end()) fields.push_back(field);
    return fields.size() > kMostFields;
  });
  return plain;
}

// A line for each problem: place, equation, way out.
std::string table_of(const LoadedConfig& loaded, const std::vector<LayoutProblem>& problems) {
  std::vector<std::string> places;
  size_t place_width = 0, what_width = 0;
  for (const LayoutProblem& problem : problems) {
    const std::string given = given_at(loaded, problem.key);
    places.push_back(!given.empty() ? given : loaded.origin.contains(problem.key) ? problem.key + " (not set)" : problem.key);
    place_width = std::max(place_width, places.back().size());
    what_width = std::max(what_width, problem.what.size());
  }
  std::string text;
  for (size_t i = 0; i < problems.size(); ++i)
    text += cat("\n  ", pad_right(places[i], place_width), "  ", pad_right(problems[i].what, what_width), "  ", problems[i].way_out());
  return text;
}

}  // namespace

std::string given_at(const LoadedConfig& loaded, const std::string& key) {
  const auto origin = loaded.origin.find(key);
  return origin == loaded.origin.end() || origin->second.starts_with("default") ? "" : origin->second;
}

std::string text_of(const Suggestion& suggestion) {
  if (!suggestion.text.empty()) return suggestion.text;
  std::vector<std::string> parts;
  for (const Change& change : suggestion.changes) parts.push_back(text_of_change(change));
  return parts.size() == 1 ? parts[0] : cat(parts[0], " with ", join({parts.begin() + 1, parts.end()}, " and "));
}

std::string text_of(const std::vector<Suggestion>& suggestions) {
  std::vector<std::string> parts;
  bool said_use = false;
  for (size_t i = 0; i < suggestions.size(); ++i) {
    const Suggestion& now = suggestions[i];
    const bool again = i > 0 && is_one_value(now) && is_one_value(suggestions[i - 1]) &&
                       now.changes[0].key == suggestions[i - 1].changes[0].key;
    if (again) {
      parts.back() += cat(" or ", *now.changes[0].value);
      continue;
    }
    const bool use = now.text.empty() && now.changes[0].value.has_value();
    parts.push_back(cat(use && !said_use ? "use " : "", text_of(now)));
    said_use = use;
  }
  return join(parts, ", or ");
}

std::vector<Suggestion> values_of(const std::string& key, const std::vector<std::string>& values) {
  std::vector<Suggestion> suggestions;
  for (const std::string& value : values) suggestions.push_back({.changes = {{key, value}}});
  return suggestions;
}

Suggestion left_out(const std::string& key) { return {.changes = {{.key = key}}, .text = cat("leave ", short_name(key), " out")}; }

std::optional<Trial> with_changes(const Trial& trial, const Suggestion& suggestion) {
  Trial changed = trial;
  for (const Change& change : suggestion.changes) {
    if (change.key == kRanks) {
      changed.world_size = std::stoi(change.value.value());
      continue;
    }
    const Field* field = find_field(change.key);
    if (!field) return std::nullopt;
    if (change.value) {
      if (field->assign(changed.loaded.config, parse_value(*field, *change.value))) return std::nullopt;
      changed.loaded.origin[change.key] = "--" + change.key;
    } else {
      field->reset(changed.loaded.config);
      changed.loaded.origin[change.key] = "default";
    }
  }
  return changed;
}

std::string LayoutProblem::way_out() const {
  if (ways.empty() && elsewhere.empty()) return "no change of one field mends it";
  return cat(text_of(ways), ways.empty() || elsewhere.empty() ? "" : ", or ", elsewhere);
}

void refuse(const LoadedConfig& loaded, const std::string& code, const std::string& heading,
            const std::vector<LayoutProblem>& problems) {
  LOCKSTEP_CHECK(!problems.empty(), code, " without a problem");
  if (!heading.empty()) throw RefusedConfig({.code = code, .what = heading + table_of(loaded, problems)}, problems);
  const LayoutProblem& problem = problems.front();
  throw RefusedConfig(
      {.code = code, .what = problem.what, .where = given_at(loaded, problem.key), .way_out = problem.way_out()}, problems);
}

void keep_what_holds(std::vector<LayoutProblem>& problems, const Trial& trial, const Rules& rules) {
  const std::vector<LayoutProblem> all = problems;
  Judge judge(all, trial, rules);
  for (LayoutProblem& problem : problems) {
    std::vector<Suggestion> holds = chosen(problem, judge, Help::kFewer);
    if (holds.empty() && judge.take_most() == Help::kFurther) holds = chosen(problem, judge, Help::kFurther);
    judge.take_most();
    problem.ways = std::move(holds);
  }
}

}  // namespace lockstep::config
