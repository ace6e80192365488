// All that `lockstep plan` says, as one JSON object.
#pragma once

#include <string>

#include "apps/lockstep/plan_report.h"
#include "lockstep/base/json.h"

namespace lockstep::apps {

// Seconds, bytes, FLOP/s; shares of 1. Layouts as the keys of the configuration have them.
OrderedJson plan_json(const PlanQuestion& question, const PlanAnswer& answer);

}  // namespace lockstep::apps
