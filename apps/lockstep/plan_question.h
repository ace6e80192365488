// What `lockstep plan` is asked: the command line read, judged and put together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/config/load.h"
#include "lockstep/plan/search/search.h"
#include "lockstep/plan/this_machine.h"

namespace lockstep::apps {

struct PlanQuestion {
  config::LoadedConfig loaded{};       // with what was assumed
  std::vector<std::string> assumed{};  // what nobody set and a plan needs, a line each
  arch::ModelConfig model{};
  std::optional<program::Layout> layout{};  // that the configuration says; without one it is searched for
  plan::Cluster cluster{};             // as much of it as is asked about, with what is slow
  int devices = 1;                     // that the plan uses
  plan::Stack stack{};
  std::optional<plan::HostShare> host{};  // of CPU ranks of one host
  std::optional<plan::Calibration> calibration{};  // where the constants were fitted to a run
  plan::EstimateOptions options{};
  plan::SearchOptions search{};
  std::vector<std::string> why_not{};  // as written
  double tokens = 0;                   // --tokens
};

// ConfigError LS1150 names two options that contradict each other and what to leave out.
void check_plan_flags(const CommandLine& command_line);

// With `cluster` as --cluster says it. ConfigError LS1004 without a configuration, LS1151 (--slow), LS1155 (-n beside the cluster), LS1156 (FP8
// or experts that are not there), those of machine_asked (plan_sources.h), parse_fixed and layout_of.
PlanQuestion plan_question(const CommandLine& command_line, const std::string& cluster);

// Of `cluster` so many devices, whole nodes of it or a part of one. One node or one rack that words or a preset say, and no file, is taken as
// the kind of which there are as many as that needs. LS1155 where that cannot be.
plan::Cluster part_of(const plan::Cluster& cluster, int devices);

// "node=3:0.8" or "nic=3:0.5" put into the cluster. LS1151.
void add_slow(plan::Cluster& cluster, const std::string& text);

// Keys of the configuration that say a layout, and which of them were set.
const std::vector<const char*>& layout_keys();
bool is_given(const config::LoadedConfig& loaded, const std::string& key);

}  // namespace lockstep::apps
