// What somebody who decides reads first, in a sentence or two on each question: which layout, does it fit, how long, what limits it, what are
// the others, what may be wrong. The page and the terminal say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/plan_html.h"

namespace lockstep::plan {

struct Finding {
  std::string_view about{};  // "memory"
  std::string text{};
  bool warns = false;
};

// As lines of a terminal: "memory     It fits: ..."; those that warn begin with "! ".
std::string findings_text(const PlanPage& page);

// Of a layout that is estimated; what-ifs that were not asked for say nothing.
std::vector<Finding> findings(const PlanPage& page);

}  // namespace lockstep::plan
