#include "lockstep/plan/spans.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"

namespace lockstep::plan {

namespace {

double missing(double part, double whole) { return whole > 0 ? 1 - part / whole : 0; }

}  // namespace

double Utilisation::mean_busy() const {
  return busy.empty() ? 0 : std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
}
double Utilisation::bubble() const { return missing(mean_busy(), longest_window); }
double Utilisation::idle(int rank) const { return missing(busy.at(static_cast<size_t>(rank)), pipeline_seconds); }
double Utilisation::idle() const { return missing(mean_busy(), pipeline_seconds); }

Utilisation utilisation(const program::Program& program, const Spans& spans) {
  Utilisation result;
  for (size_t rank = 0; rank < spans.size(); ++rank) {
    double& busy = result.busy.emplace_back(0);
    double first = -1, last = 0;
    for (size_t i = 0; i < spans[rank].size(); ++i) {
      const Span& span = spans[rank][i];
      result.step_seconds = std::max(result.step_seconds, span.end);
      if (!program::computes(program.list(static_cast<int>(rank))[i].kind)) continue;
      busy += span.seconds();
      if (first < 0) first = span.start;
      last = std::max(last, span.end);
    }
    result.pipeline_seconds = std::max(result.pipeline_seconds, last);
    result.longest_window = std::max(result.longest_window, last - std::max(first, 0.0));
  }
  return result;
}

double median(std::vector<double> values) {
  LOCKSTEP_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace lockstep::plan
