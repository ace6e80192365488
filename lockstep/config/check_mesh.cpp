#include <algorithm>

#include "lockstep/base/checked.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

std::string context_factor(const ParallelSection& parallel) { return parallel.cp == 1 ? "" : cat("cp(", parallel.cp, ") x "); }

// What one axis would have to be for the others to stay as they are.
std::vector<Suggestion> degrees_that_fit(const RunConfig& config, int64_t dp, int world_size) {
  const ParallelSection& parallel = config.parallel;
  const int64_t tp = parallel.tp, pp = parallel.pp, cp = parallel.cp, copy = ranks_of_copy(parallel);
  const bool free_dp = parallel.dp == 0 && (parallel.dp_replicate == 0 || parallel.dp_shard == 0);
  std::vector<Suggestion> fits;
  if (world_size % copy == 0) fits = values_of("parallel.dp", {cat(world_size / copy)});
  const auto add = [&](const char* key, int64_t degree, int64_t others) {
    if (degree == 1 || world_size % others != 0) return;
    const int64_t whole = world_size / others;
    fits = fits + (free_dp ? divisors_near(key, whole, degree) : values_of(key, {cat(whole)}));
  };
  const int64_t fixed = free_dp ? 1 : dp;
  const auto others = [&](int64_t a, int64_t b) { return saturating_mul(saturating_mul(a, b), fixed); };
  add("parallel.tp", tp, others(pp, cp));
  add("parallel.cp", cp, others(tp, pp));
  add("parallel.pp", pp, others(tp, cp));
  return fits;
}

// Each axis by itself as small as it must be: what is left of the ranks that were started, else of all that may be.
std::vector<Suggestion> smaller_axes(const RunConfig& config, int world_size) {
  const ParallelSection& now = config.parallel;
  struct AxisKey {
    const char* key;
    int64_t degree;
  };
  std::vector<AxisKey> axes = {{"parallel.tp", now.tp}, {"parallel.cp", now.cp}, {"parallel.pp", now.pp}};
  if (now.dp > 0) {
    axes.push_back({"parallel.dp", now.dp});
  } else if (now.dp_replicate > 0 && now.dp_shard > 0) {
    axes.push_back({"parallel.dp_replicate", now.dp_replicate});
    axes.push_back({"parallel.dp_shard", now.dp_shard});
  }
  std::vector<Suggestion> ways;
  for (const AxisKey& axis : axes) {
    int64_t others = 1;
    for (const AxisKey& other : axes)
      if (&other != &axis) others = saturating_mul(others, other.degree);
    if (axis.degree == 1 || others > kMostRanks) continue;
    if (world_size >= others && world_size % others == 0) ways = ways + values_of(axis.key, {cat(world_size / others)});
    ways = ways + powers_below(axis.key, kMostRanks / others);
  }
  return ways;
}

// Where too many were started: all whole copies of the model that may be, or as many ranks as the axes ask for.
std::vector<Suggestion> fewer_ranks(const RunConfig& config, int world_size) {
  if (world_size <= kMostRanks) return {};
  const int64_t of_copy = ranks_of_copy(config.parallel);
  std::vector<std::string> counts;
  if (of_copy <= kMostRanks) counts.push_back(cat(kMostRanks / of_copy * of_copy));
  if (ranks_wanted(config) <= kMostRanks) counts.push_back(cat(ranks_wanted(config)));
  return values_of(kRanks, counts);
}

}  // namespace

std::vector<Suggestion> operator+(std::vector<Suggestion> some, const std::vector<Suggestion>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

std::vector<Suggestion> divisors_near(const std::string& key, int64_t number, int64_t wanted) {
  constexpr int64_t kMostTried = int64_t{1} << 20;
  std::vector<int64_t> below, above;
  const auto add = [&](int64_t divisor) { (divisor <= wanted ? below : above).push_back(divisor); };
  for (int64_t i = 1; i <= number / i && i <= kMostTried; ++i) {
    if (number % i != 0) continue;
    add(i);
    if (number / i != i) add(number / i);
  }
  std::sort(below.rbegin(), below.rend());
  std::sort(above.begin(), above.end());
  std::vector<std::string> near;
  for (size_t i = 0; i < std::max(below.size(), above.size()); ++i) {
    if (i < below.size()) near.push_back(cat(below[i]));
    if (i < above.size()) near.push_back(cat(above[i]));
  }
  return values_of(key, near);
}

std::vector<Suggestion> multiples_near(const std::string& key, int64_t unit, int64_t wanted) {
  const int64_t below = wanted / unit * unit;
  return values_of(key, below == 0 ? std::vector{cat(unit)} : std::vector{cat(below), cat(saturating_add(below, unit))});
}

std::vector<Suggestion> powers_below(const std::string& key, int64_t most, int64_t unit) {
  std::vector<std::string> values;
  for (int64_t value = unit; value > 0 && value <= most; value = saturating_mul(value, 2)) {
    values.insert(values.begin(), cat(value));
    if (value == kBeyond64Bits) break;
  }
  return values_of(key, values);
}

bool too_many_ranks(const RunConfig& config, int world_size, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const bool two = parallel.dp == 0 && parallel.dp_replicate > 0 && parallel.dp_shard > 0;
  const int64_t ranks = saturating_mul(data_parallel_size(config, world_size), ranks_of_copy(parallel));
  const std::string data = two ? cat("dp_replicate(", parallel.dp_replicate, ") x dp_shard(", parallel.dp_shard, ")")
                               : cat("dp(", data_parallel_size(config, world_size), ")");
  const bool axes = ranks > kMostRanks;
  expect(!axes, two ? "parallel.dp_shard" : parallel.dp > 0 ? "parallel.dp" : "parallel.tp",
         cat("[mesh] tp(", parallel.tp, ") x ", context_factor(parallel), "pp(", parallel.pp, ") x ", data, " = ", size_text(ranks), " ranks, more than ", kMostRanks),
         smaller_axes(config, world_size) + fewer_ranks(config, world_size));
  expect(axes || world_size <= kMostRanks, "parallel.dp", cat(world_size, " ranks were started, more than ", kMostRanks),
         fewer_ranks(config, world_size));
  return axes || world_size > kMostRanks;
}

void mesh_problems(const RunConfig& config, int world_size, const Expect& expect) {
  const int64_t dp = data_parallel_size(config, world_size), tp = config.parallel.tp, pp = config.parallel.pp;
  const int64_t ranks = saturating_mul(dp, ranks_of_copy(config.parallel));
  const std::string product =
      cat(tp == 1 ? "" : cat("tp(", tp, ") x "), context_factor(config.parallel), pp == 1 ? "" : cat("pp(", pp, ") x "), "dp(", dp, ")");
  const bool of_context = tp == 1 && config.parallel.cp > 1;
  const char* key = config.parallel.dp > 0 ? "parallel.dp" : pp > 1 ? "parallel.pp" : of_context ? "parallel.cp" : "parallel.tp";
  expect(ranks == world_size, key,
         cat("[mesh] ", product, " = ", ranks, ", but ", world_size, world_size == 1 ? " rank was" : " ranks were",
             " started"),
         degrees_that_fit(config, dp, world_size) + values_of(kRanks, {cat(ranks)}));
}

}  // namespace lockstep::config
