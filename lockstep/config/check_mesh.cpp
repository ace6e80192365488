#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::config {
namespace {

// "dp=3, tp=6 or pp=3".
std::string alternatives(const std::vector<std::string>& fits) {
  if (fits.size() == 1) return fits[0];
  return cat(join({fits.begin(), fits.end() - 1}, ", "), " or ", fits.back());
}

// What one axis would have to be for the others to stay as they are.
std::vector<std::string> degrees_that_fit(const RunConfig& config, int dp, int world_size) {
  const ParallelSection& parallel = config.parallel;
  const int64_t tp = parallel.tp, pp = parallel.pp;
  const bool free_dp = parallel.dp == 0 && (parallel.dp_replicate == 0 || parallel.dp_shard == 0);
  std::vector<std::string> fits;
  if (world_size % (tp * pp) == 0) fits.push_back(cat("dp=", world_size / (tp * pp)));
  const auto add = [&](const char* axis, int64_t degree, int64_t others, int64_t most, int64_t divides) {
    if (degree == 1 || world_size % others != 0) return;
    const int64_t whole = world_size / others;
    if (free_dp)
      fits.push_back(cat(axis, "=", divisors_near(whole, degree)));
    else if (whole <= most && divides % whole == 0)
      fits.push_back(cat(axis, "=", whole));
  };
  const int fixed = free_dp ? 1 : dp;
  add("tp", tp, pp * fixed, world_size, config.model.heads.value_or(0));
  add("pp", pp, tp * fixed, config.model.layers.value_or(world_size) + 2, 0);
  return fits;
}

}  // namespace

std::string divisors_near(int64_t number, int64_t wanted) {
  int64_t below = std::min(wanted, number);
  while (number % below != 0) --below;
  int64_t above = std::min(wanted, number);
  while (number % above != 0) ++above;
  return below == above ? cat(below) : cat(below, " or ", above);
}

std::string multiples_near(int64_t unit, int64_t wanted) {
  const int64_t below = wanted / unit * unit;
  return below == 0 ? cat(unit) : cat(below, " or ", below + unit);
}

void mesh_problems(const RunConfig& config, int world_size, const Expect& expect) {
  const int dp = data_parallel_size(config, world_size), tp = config.parallel.tp, pp = config.parallel.pp;
  const int64_t ranks = int64_t{dp} * tp * pp;
  const std::string product =
      cat(tp == 1 ? "" : cat("tp(", tp, ") x "), pp == 1 ? "" : cat("pp(", pp, ") x "), "dp(", dp, ")");
  const std::vector<std::string> fits = degrees_that_fit(config, dp, world_size);
  expect(ranks == world_size, config.parallel.dp > 0 ? "parallel.dp" : pp == 1 ? "parallel.tp" : "parallel.pp",
         cat("[mesh] ", product, " = ", ranks, ", but ", world_size, world_size == 1 ? " rank was" : " ranks were",
             " started"),
         fits.empty() ? cat("use -n ", ranks) : cat(alternatives(fits), " would fit, or -n ", ranks));
}

}  // namespace lockstep::config
