// Ways out of a refusal as data, beside the words for them: what to set, so that it can be tried before it is offered.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/config/load.h"

namespace lockstep::config {

// A field as an override would say it; without a value it is left out. The key "-n" stands for the number of ranks.
struct Change {
  std::string key;
  std::optional<std::string> value{};
  bool operator==(const Change&) const = default;
};
inline constexpr const char* kRanks = "-n";

// Changes to be made together. `text` says them; where it is empty they are said by name and value: "tp 4 with -n 4".
struct Suggestion {
  std::vector<Change> changes;
  std::string text{};
};
std::string text_of(const Suggestion& suggestion);
// "use tp 2 or 4, or -n 3, or leave it out".
std::string text_of(const std::vector<Suggestion>& suggestions);

// One field, one suggestion for each value.
std::vector<Suggestion> values_of(const std::string& key, const std::vector<std::string>& values);
Suggestion left_out(const std::string& key);

// Where the value of the field was given; empty where it is the default.
std::string given_at(const LoadedConfig& loaded, const std::string& key);

// A configuration and the number of ranks it is meant for.
struct Trial {
  LoadedConfig loaded;
  int world_size = 1;
};
// The changes made; nothing where a field does not take its value.
std::optional<Trial> with_changes(const Trial& trial, const Suggestion& suggestion);

// What does not hold in a model, in a layout or between the two.
struct LayoutProblem {
  std::string key;                 // the field to look at first
  std::string what;                // the equation with its values
  std::vector<Suggestion> ways{};  // changes of the configuration that mend it, in the order of preference
  std::string elsewhere{};         // what mends it beside them: another file, a name that only the user knows. Nobody tries it
  int depth = 0;                   // how far the judging had come: a problem hides those of a greater depth
  // Both in words: "use pp 2, or write a grid with a row for every rank"; or that no change mends it.
  std::string way_out() const;
};

// What is refused of a configuration, with the problems as data.
class RefusedConfig : public ConfigError {
 public:
  RefusedConfig(Message message, std::vector<LayoutProblem> problems)
      : ConfigError(std::move(message)), problems_(std::move(problems)) {}
  const std::vector<LayoutProblem>& problems() const { return problems_; }

 private:
  std::vector<LayoutProblem> problems_;
};

// RefusedConfig with `code`. Below a heading the problems stand in a table, a line each with the place the value came from;
// without one there is a single problem that says all.
[[noreturn]] void refuse(const LoadedConfig& loaded, const std::string& code, const std::string& heading,
                         const std::vector<LayoutProblem>& problems);

// What does not hold in a configuration, all of one depth; an Error where it cannot be judged.
using Rules = std::function<std::vector<LayoutProblem>(const Trial&)>;
// Leaves of the ways out of each problem those that hold: with one of them made, fewer problems are left. Where none does,
// those that let the judging come further. What follows of a change is changed with it where it must be: the number of ranks,
// the batch. At most two values of a field, three fields.
void keep_what_holds(std::vector<LayoutProblem>& problems, const Trial& trial, const Rules& rules);

}  // namespace lockstep::config
