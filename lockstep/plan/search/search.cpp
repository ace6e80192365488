#include "lockstep/plan/search/search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/search/compare.h"
#include "lockstep/plan/search/quick_estimate.h"
#include "lockstep/plan/search/time_source.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::Recompute;
using config::ScheduleKind;
using Clock = std::chrono::steady_clock;

constexpr double kSecondsOfWalks = 1.5;  // the second tier takes no more, once some are found
constexpr size_t kMostMisses = 5;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Ranked {
  Candidate candidate{};
  QuickEstimate quick{};
};

// All legal layouts on as many of the cluster's devices, by the first tier.
class FirstTier {
 public:
  FirstTier(const Job& job, const SearchOptions& options, int devices)
      : job_(job), options_(options), devices_(devices), legality_(job.config, job.model) {}

  std::vector<Ranked> run(SearchResult& result) {
    const Clock::time_point begin = Clock::now();
    for (const int tp : values("tp", divisors(devices_))) degrees(tp, result);
    std::ranges::sort(ranked_, {}, [](const Ranked& one) { return one.quick.seconds; });
    std::ranges::sort(misses_, {}, [](const Ranked& one) { return one.quick.memory; });
    for (size_t i = 0; i < std::min(kMostMisses, misses_.size()); ++i)
      result.misses.push_back({.candidate = misses_[i].candidate,
                               .reason = Reject::kMemory,
                               .text = cat("needs ", format_bytes(misses_[i].quick.memory), " of ", format_bytes(job_.cluster.device.memory))});
    const double seconds = seconds_since(begin);
    result.first_tier_rate = seconds > 0 ? static_cast<double>(result.candidates) / seconds : 0;
    return std::move(ranked_);
  }

 private:
  // Those that are not fixed.
  std::vector<int> values(const char* name, std::vector<int> all) const {
    const std::optional<int> fixed = fixed_whole(options_.fixed, name);
    return fixed ? std::vector{*fixed} : std::move(all);
  }

  void reject(SearchResult& result, Reject reason) const {
    ++result.candidates;
    ++result.rejected[reason];
  }

  void degrees(int tp, SearchResult& result) {
    if (devices_ % tp != 0) return reject(result, Reject::kDomain);
    if (const auto reason = legality_.tensor(tp)) return reject(result, *reason);
    for (const int cp : values("cp", divisors(devices_ / tp))) {
      if (devices_ / tp % cp != 0) continue;
      if (const auto reason = legality_.sequence(tp, cp)) {
        reject(result, *reason);
        continue;
      }
      for (const int pp : values("pp", divisors(devices_ / tp / cp))) {
        if (devices_ / tp / cp % pp != 0) continue;
        Candidate candidate{.tp = tp, .pp = pp, .cp = cp, .dp = devices_ / tp / cp / pp};
        candidate.sequence_parallel = fixed_switch(options_.fixed, "sequence_parallel").value_or(true);
        if (const auto dp = fixed_whole(options_.fixed, "dp"); dp && *dp != candidate.dp) continue;
        schedules(candidate, result);
      }
    }
  }

  void schedules(Candidate candidate, SearchResult& result) {
    std::vector<ScheduleKind> kinds = {ScheduleKind::kOneFOneB};
    if (candidate.pp > 1) kinds = {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZbH1};
    if (const auto fixed = fixed_schedule(options_.fixed)) kinds = {*fixed};
    for (const ScheduleKind kind : kinds) {
      candidate.schedule = kind;
      std::vector<int> stages = {1};
      if (kind == ScheduleKind::kInterleaved) {
        stages = divisors(job_.model.layers);
        std::erase_if(stages, [&](int v) { return v < 2 || v * candidate.pp > job_.model.layers; });
      }
      for (const int v : values("virtual_stages", stages)) {
        candidate.virtual_stages = v;
        if (const auto reason = legality_.stages(candidate.pp, kind, v))
          reject(result, *reason);
        else
          experts(candidate, result);
      }
    }
  }

  void experts(Candidate candidate, SearchResult& result) {
    const bool has = job_.model.has_experts();
    const int ranks = static_cast<int>(ranks_of_stage(candidate));
    for (const int ep : values("ep", has ? divisors(std::gcd(int64_t{ranks}, job_.model.experts.count)) : std::vector{1}))
      for (const int etp : values("etp", has ? std::vector{1} : std::vector{1})) {
        candidate.ep = ep, candidate.etp = etp;
        if (const auto reason = has ? legality_.experts(candidate) : std::nullopt)
          reject(result, *reason);
        else
          batches(candidate, result);
      }
  }

  void batches(Candidate candidate, SearchResult& result) {
    const int64_t batch = job_.config.train.global_batch;
    if (batch % candidate.dp != 0) return reject(result, Reject::kBatch);
    constexpr int kMostAtOnce = 16;
    std::vector<int> sizes = divisors(batch / candidate.dp);
    std::erase_if(sizes, [](int size) { return size > kMostAtOnce; });
    for (const int size : values("micro_batch", sizes)) {
      candidate.micro_batch = size;
      for (const int zero : values("zero", candidate.dp > 1 ? std::vector{0, 1, 2, 3} : std::vector{0}))
        for (const Recompute again : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          if (const auto fixed = fixed_recompute(options_.fixed); fixed && *fixed != again) continue;
          candidate.zero = zero, candidate.recompute = again;
          candidate.offload_optimizer = fixed_switch(options_.fixed, "offload_optimizer").value_or(false);
          judge(candidate, result);
        }
    }
  }

  void judge(const Candidate& candidate, SearchResult& result) {
    if (const auto reason = legality_.of(candidate)) return reject(result, *reason);
    ++result.candidates;
    if (!tier_) tier_.emplace(job_, options_.estimate, candidate);
    const QuickEstimate quick = tier_->estimate(candidate);
    if (quick.memory <= job_.cluster.device.memory) return ranked_.push_back({candidate, quick});
    ++result.rejected[Reject::kMemory];
    misses_.push_back({candidate, quick});
    if (misses_.size() < 4096) return;
    std::ranges::nth_element(misses_, misses_.begin() + kMostMisses, {}, [](const Ranked& one) { return one.quick.memory; });
    misses_.resize(kMostMisses);
  }

  const Job& job_;
  const SearchOptions& options_;
  const int devices_;
  const Legality legality_;
  std::optional<QuickTier> tier_{};
  std::vector<Ranked> ranked_{}, misses_{};
};

// Walks the step of those that the first tier has in front.
std::vector<Found> second_tier(const Job& job, const SearchOptions& options, int devices, const std::vector<Ranked>& ranked, SearchResult& result) {
  const Clock::time_point begin = Clock::now();
  std::vector<Found> found;
  int walked = 0;
  for (const Ranked& one : ranked) {
    if (walked == options.simulate || (std::cmp_greater_equal(found.size(), options.keep) && seconds_since(begin) > kSecondsOfWalks)) break;
    Found next{.candidate = one.candidate, .quick = one.quick, .config = with_candidate(job.config, one.candidate)};
    if (!program::layout_problems(next.config, job.model, devices).empty()) {
      ++result.rejected[Reject::kOther];
      continue;
    }
    ++walked;
    const program::Layout layout = program::make_layout(next.config, job.model, devices);
    EstimateOptions quick = options.estimate;
    quick.traffic = quick.spans = false;
    next.estimate = job.times.step(layout, job.cluster, job.stack, quick);
    if (next.estimate.fits)
      found.push_back(std::move(next));
    else
      ++result.rejected[Reject::kMemory];
  }
  std::ranges::sort(found, {}, [](const Found& one) { return one.estimate.seconds; });
  return found;
}

double peak(const Found& one) { return one.estimate.stages[static_cast<size_t>(one.estimate.worst_stage)].reserved; }

// Of those found, which none beats in time and memory at once.
void add_front(const std::vector<Found>& found, std::vector<Found>& front) {
  double least = INFINITY;
  for (const Found& one : found) {
    if (peak(one) >= least) continue;
    least = peak(one);
    front.push_back(one);
  }
}

std::vector<Sensitivity> sensitivities(const Job& job, const SearchOptions& options, int devices, const std::vector<Found>& best) {
  constexpr size_t kCompared = 2;
  std::vector<Sensitivity> all;
  std::vector<program::Layout> layouts;
  for (size_t i = 0; i < std::min(kCompared, best.size()); ++i) layouts.push_back(program::make_layout(best[i].config, job.model, devices));
  EstimateOptions quick = options.estimate;
  quick.traffic = quick.spans = false;
  for (const auto& [name, field] : job.times.constants) {
    Sensitivity one{.constant = name};
    for (const double by : {0.9, 1.1}) {
      Stack changed = job.stack;
      changed.*field *= by;
      std::vector<double> seconds;
      for (const program::Layout& layout : layouts) seconds.push_back(job.times.step(layout, job.cluster, changed, quick).seconds);
      (by < 1 ? one.minus : one.plus) = seconds[0] / best[0].estimate.seconds - 1;
      one.order_changes = one.order_changes || (seconds.size() > 1 && seconds[1] < seconds[0]);
    }
    if (std::abs(one.minus) > 1e-4 || std::abs(one.plus) > 1e-4) all.push_back(one);
  }
  std::ranges::sort(all, std::ranges::greater(), [](const Sensitivity& one) { return std::max(std::abs(one.minus), std::abs(one.plus)); });
  return all;
}

Cluster part_of(Cluster cluster, int devices) {
  cluster.nodes = std::max(1, devices / cluster.devices_per_node);
  return cluster;
}

}  // namespace

std::string_view reject_text(Reject reason) {
  constexpr std::array<std::string_view, 10> kTexts = {"tp does not divide the heads",
                                                       "tp and the key/value heads do not divide one another",
                                                       "stages do not divide the layers",
                                                       "ep and etp do not divide the experts or their ranks",
                                                       "the batch is not divided by its replicas and micro-batches",
                                                       "tp and cp do not divide the sequence",
                                                       "does not fit the memory",
                                                       "its ranks are not the devices",
                                                       "slower",
                                                       "another key of the configuration speaks against it"};
  return kTexts[static_cast<size_t>(reason)];
}

SearchResult search_layouts(const Job& job, const SearchOptions& options) {
  const Clock::time_point begin = Clock::now();
  SearchResult result;
  const int devices = job.cluster.devices();
  std::vector<Found> found = second_tier(job, options, devices, FirstTier(job, options, devices).run(result), result);
  add_front(found, result.pareto);
  if (std::cmp_greater(found.size(), options.keep)) found.resize(static_cast<size_t>(options.keep));
  for (size_t i = 1; i < found.size(); ++i) found[i].why = difference_text(found[0].estimate, found[i].estimate);
  if (found.size() > 1) found[0].why = cat("the next is ", difference_text(found[0].estimate, found[1].estimate));
  result.best = std::move(found);
  if (result.best.empty()) {
    result.seconds = seconds_since(begin);
    return result;
  }
  if (options.sensitivity) {
    result.sensitivity = sensitivities(job, options, devices, result.best);
    for (const int part : {2, 4}) {  // fewer devices
      if (job.cluster.nodes % part != 0 || job.cluster.slow != Slowness()) continue;
      const Cluster fewer = part_of(job.cluster, devices / part);
      const Job smaller{job.config, job.model, fewer, job.stack, job.times};
      SearchOptions few = options;
      few.simulate = 4, few.keep = 1;
      SearchResult ignored;
      const std::vector<Found> of_part = second_tier(smaller, few, fewer.devices(), FirstTier(smaller, few, fewer.devices()).run(ignored), ignored);
      if (!of_part.empty()) result.pareto.push_back(of_part.front());
    }
  }
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace lockstep::plan
