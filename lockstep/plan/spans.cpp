#include "lockstep/plan/spans.h"

#include <algorithm>
#include <numeric>

#include "lockstep/program/passes.h"

namespace lockstep::plan {

double Utilisation::bubble(int rank) const {
  return pipeline_seconds > 0 ? 1 - busy.at(static_cast<size_t>(rank)) / pipeline_seconds : 0;
}

double Utilisation::bubble() const {
  if (busy.empty() || pipeline_seconds <= 0) return 0;
  const double mean = std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  return 1 - mean / pipeline_seconds;
}

Utilisation utilisation(const program::Program& program, const Spans& spans) {
  Utilisation result;
  for (size_t rank = 0; rank < spans.size(); ++rank) {
    double& busy = result.busy.emplace_back(0);
    for (size_t i = 0; i < spans[rank].size(); ++i) {
      const Span& span = spans[rank][i];
      result.step_seconds = std::max(result.step_seconds, span.end);
      if (!program::computes(program.ranks[rank][i].kind)) continue;
      busy += span.seconds();
      result.pipeline_seconds = std::max(result.pipeline_seconds, span.end);
    }
  }
  return result;
}

}  // namespace lockstep::plan
