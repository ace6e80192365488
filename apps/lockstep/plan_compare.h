// The same job on several clusters, each with the layout that is best there: which one to buy.
#pragma once

#include <string>
#include <vector>

#include "apps/lockstep/plan_report.h"

namespace lockstep::apps {

struct OnCluster {
  std::string text{};  // as --cluster says it
  PlanQuestion question{};
  PlanAnswer answer{};
};

// A row for each cluster: layout, step, tokens, money where prices are known, and how busy the NICs and the links between leaves are; what
// sets each apart from the first; which is fastest and which cheapest. Begins a line with "does not fit: " where nothing fits on one.
std::string compare_page(const std::vector<OnCluster>& clusters);

}  // namespace lockstep::apps
