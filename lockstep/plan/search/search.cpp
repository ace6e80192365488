#include "lockstep/plan/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/search/reasons.h"
#include "lockstep/plan/search/second_tier.h"
#include "lockstep/plan/search/sensitivity.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

// Of walks, in microseconds (walk_work): of the best on all devices, and of all further points of the front.
constexpr double kWork = 150e3, kWorkOfFront = 75e3;
constexpr double kQuick = 1;  // and of a candidate's closed form, in a first tier for a further point of the front
// More walks of the best, as far as the first tier has not taken it: about 2 us for each candidate that it estimates.
constexpr double kSpare = 250e3, kOfEstimate = 2;
constexpr double kLessMemory = 0.5;  // of a device's: the front has a layout that leaves so much
constexpr size_t kFirstTier = 64;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// As good in time, memory and devices, and better in one.
bool beats(const Found& a, const Found& b) {
  const double memory_a = a.estimate.most_reserved(), memory_b = b.estimate.most_reserved();
  const int64_t ranks_a = ranks_of(a.candidate), ranks_b = ranks_of(b.candidate);
  const bool as_good = a.estimate.seconds <= b.estimate.seconds && memory_a <= memory_b && ranks_a <= ranks_b;
  return as_good && (a.estimate.seconds < b.estimate.seconds || memory_a < memory_b || ranks_a < ranks_b);
}

// Those that none of the others beats, once each.
std::vector<Found> front_of(const std::vector<Found>& all) {
  std::vector<Found> front;
  for (const Found& one : all) {
    const auto same = [&](const Found& other) { return other.candidate == one.candidate; };
    const auto better = [&](const Found& other) { return beats(other, one); };
    if (std::ranges::none_of(all, better) && std::ranges::none_of(front, same)) front.push_back(one);
  }
  std::ranges::stable_sort(front, {}, [](const Found& one) { return one.estimate.seconds; });
  return front;
}

class Search {
 public:
  Search(const Job& job, const SearchOptions& options)
      : job_(job), options_(options), space_(job.config, job.model, job.cluster, options.fixed), legality_(job.config, job.model) {
    result_.estimate = options.estimate;
    result_.spare = result_.asked_spare = options.spare;
  }

  SearchResult run() {
    const Clock::time_point begin = Clock::now();
    std::map<Reject, int64_t> illegal;
    const std::optional<Candidate> legal = any_legal(legality_, space_, job_.cluster.devices(), illegal);
    if (legal) {
      check_configuration(*legal);
      QuickTier tier(job_, options_.estimate, *legal);
      search(tier);
    } else {
      result_.rejected = std::move(illegal);
      for (const auto& [reason, count] : result_.rejected) result_.candidates += count;
    }
    result_.seconds = seconds_since(begin);
    return std::move(result_);
  }

 private:
  // What is wrong whatever the layout is refused as train refuses it: LS1101.
  void check_configuration(const Candidate& legal) const {
    program::make_layout(with_candidate(job_.config, legal), job_.model, static_cast<int>(ranks_of(legal)));
  }

  FirstTierOptions all_devices() const {
    const Cluster& cluster = job_.cluster;
    return {.devices = cluster.devices(), .memory = room(), .host = cluster.host_memory / cluster.devices_per_node, .keep = kFirstTier};
  }

  // Bytes of a device that layouts may take; 0: nobody says how many it has.
  double room() const { return (1 - options_.spare) * job_.cluster.device.memory; }

  void search(QuickTier& tier) {
    const Clock::time_point begin = Clock::now();
    const FirstTier first = first_tier(tier, space_, all_devices());
    result_.candidates = first.candidates;
    result_.first_tier_rate = static_cast<double>(first.candidates) / std::max(1e-9, seconds_since(begin));
    result_.rejected = first.rejected;
    SecondTier second(job_, tier, options_.estimate, room());
    const auto most = static_cast<size_t>(std::max(1, options_.simulate));
    std::vector<Found> found = second.simulate(first.best, {.least = 3, .most = most, .work = kWork + std::max(0.0, kSpare - kOfEstimate * static_cast<double>(first.estimated))});
    add_front(tier, found, kQuick * static_cast<double>(first.estimated));
    add_misses(tier, first, second, found);
    const size_t kept = std::min(found.size(), static_cast<size_t>(std::max(1, options_.keep)));
    for (const auto& [reason, count] : second.rejected()) result_.rejected[reason] += count;
    result_.rejected[Reject::kSlower] += static_cast<int64_t>(first.best.size()) - static_cast<int64_t>(kept) - count_of(second);
    found.resize(kept);
    result_.best = std::move(found);
    add_reasons(result_.best);
    if (options_.sensitivity) result_.sensitivity = sensitivities(job_, tier, result_.best);
  }

  static int64_t count_of(const SecondTier& second) {
    int64_t all = 0;
    for (const auto& [reason, count] : second.rejected()) all += count;
    return all;
  }

  // The same search on fewer devices, and for half of the memory, each of so much work; the first of them whatever it takes.
  void add_front(QuickTier& tier, const std::vector<Found>& found, double search_work) {
    std::vector<Found> all = found;
    double work = kWorkOfFront;
    for (const FirstTierOptions& options : further_points()) {
      if (search_work > work && work < kWorkOfFront) break;
      work -= search_work;
      const std::vector<Ranked> ranked = first_tier(tier, space_, options).best;
      if (ranked.empty()) continue;
      const double more = walk_work(job_.model, ranked[0].candidate, legality_.microbatches(ranked[0].candidate));
      if (more > work && work < kWorkOfFront) break;
      work -= more;
      SecondTier second(job_, tier, options_.estimate, options.memory);
      for (Found& one : second.simulate(ranked, {.least = 1, .most = 1})) all.push_back(std::move(one));
    }
    result_.pareto = front_of(all);
    for (Found& one : result_.pareto) one.why = front_reason(one);
  }

  std::vector<FirstTierOptions> further_points() const {
    std::vector<FirstTierOptions> points;
    const Cluster& cluster = job_.cluster;
    const auto add_part = [&](int part) {
      if (cluster.devices() % part != 0 || (cluster.nodes > 1 && cluster.nodes % part != 0)) return;
      points.push_back(all_devices());
      points.back().devices /= part;
    };
    add_part(2);
    if (cluster.device.memory > 0) {
      points.push_back(all_devices());
      points.back().memory = std::min(room(), kLessMemory * cluster.device.memory);
    }
    add_part(4);
    for (FirstTierOptions& point : points) point.keep = kOfBlock;
    return points;
  }

  std::string front_reason(const Found& one) const {
    const int64_t ranks = ranks_of(one.candidate);
    return cat(format_duration(one.estimate.seconds), " a step with ", format_bytes(one.estimate.most_reserved()), " on each of ", ranks, ranks == 1 ? " device" : " devices");
  }

  void add_misses(QuickTier& tier, const FirstTier& first, const SecondTier& second, const std::vector<Found>& found) {
    result_.misses = second.misses();
    for (const Ranked& miss : first.misses) {
      const int stage = tier.memory(miss.candidate).rank;
      std::string text = memory_text(miss.quick.memory, room(), job_.cluster, stage);
      if (!found.empty()) {
        const double share = miss.quick.seconds / found[0].estimate.seconds - 1;
        text += cat("; a step would take ", format_duration(miss.quick.seconds), ", ", share_text(std::abs(share)), share < 0 ? " less" : " more", " than the best");
      }
      result_.misses.push_back({.candidate = miss.candidate, .reason = Reject::kMemory, .text = std::move(text)});
    }
  }

  const Job job_;
  const SearchOptions& options_;
  const CandidateSpace space_;
  const Legality legality_;
  SearchResult result_;
};

}  // namespace

std::string_view reject_text(Reject reason) {
  switch (reason) {
    case Reject::kHeads:
      return "heads are not cut in equal parts by tp";
    case Reject::kKeyHeads:
      return "key and value heads, or groups, are neither cut nor shared evenly by tp";
    case Reject::kLayers:
      return "the layers do not fill the stages, or the schedule has other stages";
    case Reject::kExperts:
      return "experts, or their widths, are not cut in equal parts by ep and etp";
    case Reject::kBatch:
      return "the batch is not cut in equal microbatches over dp and pp";
    case Reject::kSequence:
      return "sequences are not cut in equal parts by cp";
    case Reject::kMemory:
      return "the memory of a device, or of a host, is too small";
    case Reject::kDomain:
      return "tp x cp x pp x dp is not the number of devices";
    case Reject::kSlower:
      return "slower";
    case Reject::kOther:
      return "another key of the configuration speaks against it";
  }
  return "";
}

SearchResult search_layouts(const Job& job, const SearchOptions& options) {
  SearchResult result = Search(job, options).run();
  if (!result.best.empty() || options.spare == 0 || job.cluster.device.memory <= 0) return result;
  SearchOptions full = options;
  full.spare = 0;
  SearchResult all = Search(job, full).run();
  if (all.best.empty()) return result;
  all.seconds += result.seconds;
  all.asked_spare = options.spare;
  return all;
}

}  // namespace lockstep::plan
