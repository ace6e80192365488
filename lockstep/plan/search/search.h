// Which layout of a model and batch is fastest on a cluster: all legal ones by closed forms (the first tier), the best of them simulated
// (the second), with what rejected the others.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {

// A point of the search; flat, no allocation.
struct Candidate {
  int tp = 1, pp = 1, cp = 1, ep = 1, etp = 1, dp = 1;  // dp: replicate x shard
  int virtual_stages = 1;
  int zero = 1;
  int micro_batch = 1;
  config::Recompute recompute = config::Recompute::kNone;
  config::ScheduleKind schedule = config::ScheduleKind::kOneFOneB;
  bool sequence_parallel = true;
  bool offload_optimizer = false;
  int dp_replicate = 1;  // with zero: groups of data ranks that each hold all shards (HSDP)
  int dp_shard() const { return zero > 0 ? dp / dp_replicate : 1; }
  bool operator==(const Candidate&) const = default;
};
std::string describe(const Candidate& candidate);  // "tp 8, pp 4 (interleaved, 2 virtual stages), dp 16, zero 1, micro-batch 1, recompute selective"
// "tp=8,pp=4": fields that are fixed; ConfigError LS1145 for others.
struct Fixed {
  std::map<std::string, std::string> values{};  // by field of Candidate
};
Fixed parse_fixed(std::string_view text);

// First tier: closed form.
struct QuickEstimate {
  double seconds = 0;
  double memory = 0;  // bytes of the worst stage, reserved
};

// kDomain: its ranks are not the devices. kOther: a further key of the configuration speaks against it.
enum class Reject { kHeads, kKeyHeads, kLayers, kExperts, kBatch, kSequence, kMemory, kDomain, kSlower, kOther };
std::string_view reject_text(Reject reason);

struct Found {
  Candidate candidate{};
  StepEstimate estimate{};
  QuickEstimate quick{};
  std::string why{};        // why it is where it is: "faster than the next by 4 %: tensor parallel waits 12 % less"
  config::RunConfig config{};
};
struct Sensitivity {
  std::string constant{};
  double minus = 0, plus = 0;  // change of the best step for -10 % and +10 %, as shares
  bool order_changes = false;  // another layout is best then
};
struct NearMiss {
  Candidate candidate{};
  Reject reason = Reject::kMemory;
  std::string text{};  // "needs 84.1 GB of 80.0"
};
struct SearchResult {
  std::vector<Found> best{};                  // fastest first
  std::vector<Found> pareto{};                // of time, memory and devices
  std::map<Reject, int64_t> rejected{};
  std::vector<NearMiss> misses{};
  std::vector<Sensitivity> sensitivity{};
  int64_t candidates = 0;                     // looked at
  double seconds = 0;                         // the search took
  double first_tier_rate = 0;                 // candidates a second
  EstimateOptions estimate{};                 // as the estimates were made
  double spare = 0;                           // of each device, that the layouts leave ...
  double asked_spare = 0;                     // ... and that was asked for: more than that where none leaves so much
};
// Share of a device's memory that a layout should leave: predictions of memory err by as much.
inline constexpr double kSpareMemory = 0.05;
struct SearchOptions {
  int keep = 5;
  int simulate = 64;   // candidates of the second tier at most: fewer where each takes long, so that a search stays below a second
  bool sensitivity = true;
  Fixed fixed{};
  double spare = kSpareMemory;  // of each device, that is left; 0 where layouts fit only without it
  EstimateOptions estimate{};   // without traffic and spans
};
// `config` says model, batch, sequence and precision; its parallel keys that are given stay fixed where `fixed` says so.
SearchResult search_layouts(const config::RunConfig& config, const arch::ModelConfig& model, const Cluster& cluster, const Stack& stack, const SearchOptions& options);
// Of one candidate, legal or not: what speaks against it beside the best.
std::string why_not(const config::RunConfig& config, const arch::ModelConfig& model, const Cluster& cluster, const Stack& stack, const Candidate& candidate, const SearchResult& result);
// The configuration with the candidate's keys.
config::RunConfig with_candidate(config::RunConfig config, const Candidate& candidate);
// moe.imbalance_limit with which a run of such a configuration needs what the estimates say: they have room for so many times the rows of balanced
// routing, where a run has room for the worst. Nothing where rows come from no other rank, where a key bounds them, or where the limit is illegal.
std::optional<double> rows_limit(const config::RunConfig& config, double imbalance);

}  // namespace lockstep::plan
