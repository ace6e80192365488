#include "lockstep/config/suggestion.h"

#include <algorithm>
#include <map>

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

// The number of ranks that the axes of the configuration make, and the nearest batch that these cut evenly.
std::vector<std::vector<Change>> what_follows(const Trial& trial) {
  const int ranks = ranks_wanted(trial.loaded.config);
  const auto batch = [&](int world_size) {
    const RunConfig& config = trial.loaded.config;
    const int64_t unit = batch_unit(config, world_size), wanted = config.train.global_batch;
    return Change{"train.global_batch", cat(std::max(unit, wanted / unit * unit))};
  };
  const Change world{kRanks, cat(ranks)};
  return {{}, {batch(trial.world_size)}, {world}, {world, batch(ranks)}};
}

class Judge {
 public:
  Judge(const std::vector<LayoutProblem>& problems, const Trial& trial, const Rules& rules)
      : problems_(problems), trial_(trial), rules_(rules) {}

  // The suggestion, with what must follow of it; nothing where that does not help.
  std::optional<Suggestion> made_to_hold(const LayoutProblem& problem, const Suggestion& suggestion) const {
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
      if (helps(problem, whole)) return whole;
    }
    return std::nullopt;
  }

  bool asks_for_more_ranks(const Suggestion& suggestion) const {
    const std::optional<Trial> changed = with_changes(trial_, suggestion);
    return changed && changed->world_size > trial_.world_size;
  }

 private:
  bool helps(const LayoutProblem& problem, const Suggestion& suggestion) const {
    const std::optional<Trial> changed = with_changes(trial_, suggestion);
    if (!changed) return false;
    try {
      const std::vector<LayoutProblem> left = rules_(*changed);
      return left.size() < problems_.size() && std::none_of(left.begin(), left.end(), [&](const LayoutProblem& other) {
        return other.what == problem.what;
      });
    } catch (const Error&) {
      return false;
    }
  }

  const std::vector<LayoutProblem>& problems_;
  const Trial& trial_;
  const Rules& rules_;
};

// At most kMostValues of a field and kMostFields fields; those that need nothing else before those that do.
std::vector<Suggestion> chosen(const LayoutProblem& problem, const Judge& judge) {
  std::vector<Suggestion> plain, longer;
  std::map<std::string, size_t> tried, kept;
  for (const Suggestion& suggestion : problem.ways) {
    const std::string field = suggestion.changes[0].key;
    if (++tried[field] > kMostTried || kept[field] == kMostValues) continue;
    const std::optional<Suggestion> whole = judge.made_to_hold(problem, suggestion);
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

}  // namespace

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
    const size_t dot = change.key.find('.');
    const Field* field = find_field(change.key.substr(0, dot), change.key.substr(dot + 1));
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

void keep_what_holds(std::vector<LayoutProblem>& problems, const Trial& trial, const Rules& rules) {
  const std::vector<LayoutProblem> all = problems;
  const Judge judge(all, trial, rules);
  for (LayoutProblem& problem : problems) {
    if (problem.ways.empty()) continue;
    problem.ways = chosen(problem, judge);
    problem.way_out = problem.ways.empty() ? "no change of one field mends it" : text_of(problem.ways);
  }
}

}  // namespace lockstep::config
