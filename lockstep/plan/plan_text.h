// The planner's answers as text for a terminal: does it fit, how long is a step, what limits it, which layout is better and why. The same
// in numbers is the verb's JSON, the same as a page plan --html.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/plan/plan_html.h"
#include "lockstep/plan/time/goodput.h"

namespace lockstep::plan {

// One term of a step's time: its name in JSON, its words, and what makes it less.
struct Term {
  enum class Kind { kCompute, kWaits, kRest };  // computes; waits for communication; bubble and host
  std::string_view name{};
  std::string_view label{};
  Kind kind = Kind::kCompute;
  double Breakdown::*seconds = nullptr;
  std::string_view way_out{};  // empty: it is the work itself
};
// In the order of Breakdown; they add up to the step.
const std::vector<Term>& terms();

// What a stage's memory consists of, by name.
const std::vector<std::pair<std::string_view, double StageEstimate::*>>& memory_parts();

// A table of what the stages need: the first, the one of those between that needs most, the last; all of them with `all`. The line below it
// begins with "fits: " or "does not fit: ".
std::string fit_text(const StepEstimate& estimate, const Cluster& cluster, bool all = false);

// "$5.12", "$1.40M".
std::string money_text(double money);
std::string count_text(int64_t count);  // "88,860"
// "72.7 %", "4.0 %": always one digit behind the point; "< 0.1 %" of what is more than nothing.
std::string tenths_text(double share);
// "+9.2 %", "-6.0 %"; "0.0 %" without a sign.
std::string change_text(double share);
// Of times that are told beside one of `scale`: in its unit, with the digits that it has as a number of four: "14.04 s", "0.142 s" beside 3.594 s.
std::string seconds_text(double seconds, double scale);
inline std::string seconds_text(double seconds) { return seconds_text(seconds, seconds); }
// "3.322 s to 3.866 s".
std::string band_text(const StepEstimate& estimate);

// Seconds and band, tokens per second, MFU by both conventions; where the cluster has a price money; where `run` has tokens how long they take.
// `run.devices` is set.
std::string step_text(const StepEstimate& estimate, const Cluster& cluster, const MoneyOptions& run);

// A bar for each term that takes time, and a sentence on the largest that is not the work itself.
std::string limits_text(const StepEstimate& estimate);

// Several steps side by side, a row for each term in which they differ, with the change from the first.
std::string compare_text(const std::vector<std::pair<std::string, const StepEstimate*>>& steps);

// Links and axes as tables, and what they say in sentences (cluster/links_text.h).
std::string traffic_text(const StepEstimate& estimate, const Cluster& cluster);

// What-ifs as a table: seconds, the change, its cause.
std::string what_ifs_text(const std::vector<WhatIf>& what_ifs, const StepEstimate& now);

int devices_of(const Candidate& candidate);

// A row for each layout, columns that are 1 in all of them left out; with `why` the reasons below.
std::string layouts_text(const std::vector<Found>& layouts, const Cluster& cluster, bool why);
// "No layout was found that leaves 5.0 % of a device's memory." of a search whose layouts leave less than was asked for; else empty.
std::string no_spare_text(const SearchResult& result);
// How many were looked at, what rejected the others, the nearest misses.
std::string rejected_text(const SearchResult& result);
// Constants by what 10 % of them change.
std::string sensitivity_text(const SearchResult& result);

}  // namespace lockstep::plan
