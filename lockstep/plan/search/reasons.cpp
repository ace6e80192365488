#include "lockstep/plan/search/reasons.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::plan {
namespace {

struct TermWords {
  double Breakdown::* seconds = nullptr;
  const char* words = "";
};
constexpr std::array<TermWords, 12> kTerms = {{{&Breakdown::products, "matrix products"},
                                               {&Breakdown::attention, "attention"},
                                               {&Breakdown::pointwise, "pointwise work"},
                                               {&Breakdown::recompute, "recomputation"},
                                               {&Breakdown::optimizer, "optimizer"},
                                               {&Breakdown::host, "host and launches"},
                                               {&Breakdown::tensor, "tensor parallel waits"},
                                               {&Breakdown::context, "context parallel waits"},
                                               {&Breakdown::experts, "exchange with experts"},
                                               {&Breakdown::pipeline, "pipeline sends"},
                                               {&Breakdown::data, "waits for gradients and parameters"},
                                               {&Breakdown::bubble, "bubble"}}};
constexpr size_t kMostTerms = 3;
constexpr double kWorthSaying = 0.15;  // of the largest difference

struct Difference {
  double seconds = 0;
  const char* words = "";
};

std::string terms_text(const std::vector<Difference>& differences, const char* word) {
  std::vector<std::string> parts;
  for (const Difference& one : differences) parts.push_back(cat(one.words, " ", format_duration(std::abs(one.seconds)), " ", word));
  return join(parts, ", ");
}

}  // namespace

std::string difference_text(const StepEstimate& a, const StepEstimate& b) {
  std::vector<Difference> all;
  for (const TermWords& term : kTerms) all.push_back({a.breakdown.*term.seconds - b.breakdown.*term.seconds, term.words});
  const auto size = [](const Difference& one) { return -std::abs(one.seconds); };
  std::ranges::stable_sort(all, {}, size);
  const double least = std::max(kWorthSaying * std::abs(all[0].seconds), kSameStep * std::max(a.seconds, b.seconds));
  std::erase_if(all, [&](const Difference& one) { return std::abs(one.seconds) < least; });
  if (all.size() > kMostTerms) all.resize(kMostTerms);
  std::vector<Difference> less, more;
  for (const Difference& one : all) (one.seconds < 0 ? less : more).push_back(one);
  const std::string fewer = terms_text(less, "less"), further = terms_text(more, "more");
  if (fewer.empty() || further.empty()) return fewer + further;
  return a.seconds <= b.seconds ? cat(fewer, "; ", further) : cat(further, "; ", fewer);
}

std::string share_text(double share) {
  const double tenths = std::round(1000 * share) / 10;
  return cat(number_text(tenths), " %");
}

void add_reasons(std::vector<Found>& best) {
  const auto because = [](const StepEstimate& a, const StepEstimate& b) {
    const std::string text = difference_text(a, b);
    return text.empty() ? "" : ": " + text;
  };
  for (size_t i = 0; i < best.size(); ++i) {
    Found& found = best[i];
    if (best.size() == 1) {
      found.why = "no other that was simulated fits";
      continue;
    }
    const Found& other = i == 0 ? best[1] : best[0];
    const double share = found.estimate.seconds / other.estimate.seconds - 1;
    if (std::abs(share) < kSameStep)
      found.why = cat("as fast as the ", i == 0 ? "next" : "best", because(found.estimate, other.estimate));
    else
      found.why = cat(share < 0 ? "faster" : "slower", " than the ", i == 0 ? "next" : "best", " by ", share_text(std::abs(share)), because(found.estimate, other.estimate));
  }
}

std::string memory_text(double needed, double room, const Cluster& cluster, int stage) {
  const double memory = cluster.device.memory;
  if (needed > memory) return cat("needs ", format_bytes(needed), " of ", format_bytes(memory), " on stage ", stage);
  return cat("needs ", format_bytes(needed), " on stage ", stage, " and leaves less than ", format_bytes(memory - room), " of ", format_bytes(memory));
}

std::string shortage_text(const StageEstimate& worst, double room, const Cluster& cluster) {
  if (room > 0 && worst.reserved > room) return memory_text(worst.reserved, room, cluster, worst.stage);
  return cat("what is offloaded needs more than the ", format_bytes(cluster.host_memory), " of a node's host");
}

std::string parts_text(const StageEstimate& stage) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, double bytes) {
    if (bytes > 0) parts.push_back(cat(name, " ", format_bytes(bytes)));
  };
  add("parameters", stage.parameters);
  add("gradients", stage.gradients);
  add("optimizer", stage.optimizer);
  add("activations", stage.activations);
  add("buffers", stage.buffers);
  add("reserved beside these", std::max(0.0, stage.reserved - stage.peak));
  return join(parts, ", ");
}

}  // namespace lockstep::plan
