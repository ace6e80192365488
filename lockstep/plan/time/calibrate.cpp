#include "lockstep/plan/time/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/time/small_solve.h"

namespace lockstep::plan {
namespace {

constexpr double kHuber = 0.15;         // of a logarithm: beyond about 15 % an observation pulls no harder
constexpr double kStep = 1e-4;          // of a logarithm, for derivatives
constexpr double kMost = 23;            // of a logarithm's change: a factor of 1e10
constexpr int kIterations = 100;
constexpr double kSmall = 1e-10;        // share of the cost by which the last step must have mended it

// What is fitted to: weights add up to 1.
struct Problem {
  Machine start;
  std::vector<const MachineConstant*> constants;
  std::vector<double> measured, weights;
  const MachineModel& model;
  std::vector<size_t> like{};  // of each constant: which one its change is like; itself: none
  double unit = 0;             // of the cost: of one observation that is off by the noise

  Machine machine(const std::vector<double>& changes) const {
    Machine machine = start;
    for (size_t i = 0; i < constants.size(); ++i) constants[i]->set(machine, bounded(*constants[i], constants[i]->get(machine) * std::exp(changes[i])));
    return machine;
  }
  static double bounded(const MachineConstant& constant, double value) { return constant.most > 0 ? std::min(constant.most, value) : value; }
  // In which a derivative is taken: away from the bound.
  double step(size_t j) const { return constants[j]->most > 0 ? -kStep : kStep; }
  std::vector<double> said(const std::vector<double>& changes) const {
    std::vector<double> seconds = model(machine(changes));
    LOCKSTEP_CHECK_EQ(seconds.size(), measured.size());
    return seconds;
  }
  // Logarithms of said over measured; 0 where the observation does not take part.
  std::vector<double> residuals(const std::vector<double>& changes) const {
    std::vector<double> result = said(changes);
    for (size_t i = 0; i < result.size(); ++i) result[i] = weights[i] > 0 && result[i] > 0 ? std::log(result[i] / measured[i]) : 0;
    return result;
  }
  double cost(const std::vector<double>& residuals, const std::vector<double>& changes) const {
    double sum = 0;
    for (size_t i = 0; i < residuals.size(); ++i) {
      const double size = std::abs(residuals[i]);
      sum += weights[i] * (size <= kHuber ? size * size : kHuber * (2 * size - kHuber));
    }
    for (size_t j = 0; j < changes.size(); ++j) sum += pull(j) * std::pow(beyond(changes, j), 2);
    return sum;
  }
  double pull(size_t j) const { return unit / std::pow(constants[j]->spread, 2); }
  double beyond(const std::vector<double>& changes, size_t j) const { return changes[j] - (like[j] == j ? 0 : changes[like[j]]); }
  // Of the logarithm, before anything is observed.
  double variance(size_t j) const { return std::pow(constants[j]->spread, 2) + (like[j] == j ? 0 : std::pow(constants[like[j]]->spread, 2)); }
};

// Rows: derivatives of each residual.
std::vector<std::vector<double>> jacobian(const Problem& problem, const std::vector<double>& changes, const std::vector<double>& residuals) {
  std::vector<std::vector<double>> rows(residuals.size(), std::vector<double>(changes.size()));
  for (size_t j = 0; j < changes.size(); ++j) {
    std::vector<double> moved = changes;
    moved[j] += problem.step(j);
    const std::vector<double> there = problem.residuals(moved);
    for (size_t i = 0; i < residuals.size(); ++i) rows[i][j] = (there[i] - residuals[i]) / problem.step(j);
  }
  return rows;
}

struct Normal {
  Matrix matrix;
  std::vector<double> right;
};

Normal normal_equations(const Problem& problem, const std::vector<double>& changes, const std::vector<double>& residuals) {
  const size_t n = changes.size();
  const auto rows = jacobian(problem, changes, residuals);
  Normal normal{Matrix(n, std::vector<double>(n)), std::vector<double>(n)};
  for (size_t i = 0; i < residuals.size(); ++i) {
    const double size = std::abs(residuals[i]), weight = problem.weights[i] * (size <= kHuber ? 1 : kHuber / size);
    for (size_t j = 0; j < n; ++j) {
      normal.right[j] -= weight * rows[i][j] * residuals[i];
      for (size_t k = 0; k < n; ++k) normal.matrix[j][k] += weight * rows[i][j] * rows[i][k];
    }
  }
  for (size_t j = 0; j < n; ++j) {
    const double pull = problem.pull(j), beyond = problem.beyond(changes, j);
    const size_t like = problem.like[j];
    normal.matrix[j][j] += pull;
    normal.right[j] -= pull * beyond;
    if (like == j) continue;
    normal.matrix[like][like] += pull;
    normal.matrix[j][like] -= pull;
    normal.matrix[like][j] -= pull;
    normal.right[like] += pull * beyond;
  }
  return normal;
}

std::vector<double> fit(const Problem& problem) {
  std::vector<double> changes(problem.constants.size());
  std::vector<double> residuals = problem.residuals(changes);
  double cost = problem.cost(residuals, changes), damping = 1e-3;
  for (int i = 0; i < kIterations && damping < 1e12;) {
    const Normal normal = normal_equations(problem, changes, residuals);
    bool better = false;
    while (!better && damping < 1e12 && i++ < kIterations) {
      Matrix damped = normal.matrix;
      for (size_t j = 0; j < damped.size(); ++j) damped[j][j] *= 1 + damping;
      const std::vector<double> step = solve(damped, normal.right);
      std::vector<double> tried = changes;
      for (size_t j = 0; j < tried.size(); ++j) tried[j] = std::clamp(tried[j] + std::clamp(step[j], -2.0, 2.0), -kMost, kMost);
      const std::vector<double> there = problem.residuals(tried);
      const double now = problem.cost(there, tried);
      better = now < cost;
      damping = better ? std::max(damping / 5, 1e-12) : damping * 4;
      if (!better) continue;
      const bool done = cost - now < kSmall * cost;
      changes = tried;
      residuals = there;
      cost = now;
      if (done) return changes;
    }
  }
  return changes;
}

// Standard errors of the logarithms, as the residuals scatter, but by the noise at least.
std::vector<double> errors(const Problem& problem, const std::vector<double>& changes, double noise) {
  constexpr double kLearned = 0.25;  // of the variance before: with more of it left, hardly anything was learned
  const std::vector<double> residuals = problem.residuals(changes);
  const Normal normal = normal_equations(problem, changes, residuals);
  double scatter = 0;
  for (size_t i = 0; i < residuals.size(); ++i) scatter += problem.weights[i] * std::min(residuals[i] * residuals[i], kHuber * std::abs(residuals[i]));
  const Matrix inverse = inverted(normal.matrix);
  std::vector<double> result;
  for (size_t j = 0; j < changes.size(); ++j) {
    const double variance = inverse[j][j] * problem.unit;
    const bool learned = variance < kLearned * problem.variance(j);
    result.push_back(learned ? std::sqrt(variance * std::max(1.0, scatter / (noise * noise))) : std::numeric_limits<double>::infinity());
  }
  return result;
}

// Observations of unequal weights count as 1 / (sum of squares) equal ones.
double unit_of(const std::vector<double>& weights, double noise) {
  double squares = 0;
  for (const double weight : weights) squares += weight * weight;
  return noise * noise * squares;
}

std::vector<size_t> likes(const std::vector<const MachineConstant*>& constants) {
  std::vector<size_t> like;
  for (size_t j = 0; j < constants.size(); ++j) {
    const auto found = std::ranges::find(constants, constants[j]->like, &MachineConstant::name);
    like.push_back(found == constants.end() ? j : static_cast<size_t>(found - constants.begin()));
  }
  return like;
}

std::vector<const MachineConstant*> chosen(const Machine& start, const std::vector<std::string>& names) {
  std::vector<const MachineConstant*> result;
  size_t known = 0;
  for (const MachineConstant& constant : machine_constants()) {
    if (!names.empty() && std::ranges::find(names, constant.name) == names.end()) continue;
    ++known;
    if (constant.get(start) > 0) result.push_back(&constant);
  }
  LOCKSTEP_CHECK(names.empty() || known == names.size(), "a name among ", join(names, ", "), " is no constant of a machine");
  return result;
}

template <auto kField>
MachineConstant of_stack(const char* name, double spread, const char* like = "", double most = 0) {
  return {name, [](const Machine& machine) { return machine.stack.*kField; }, [](Machine& machine, double value) { machine.stack.*kField = value; },
          true, spread, like, most};
}

// In a mesh of devices the link to one keeps its share.
void set_link(Machine& machine, double value) {
  DeviceKind& device = machine.cluster.device;
  device.link_to_one *= device.link > 0 ? value / device.link : 1;
  device.link = value;
}

std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// By what, seconds of a step.
std::vector<FittedGroup> groups_of(const std::vector<Observation>& observed, const std::vector<double>& said, const std::vector<double>& shares) {
  std::map<std::string, FittedGroup> found;
  for (size_t i = 0; i < observed.size(); ++i) {
    if (!(shares[i] > 0)) continue;
    FittedGroup& group = found[observed[i].what];
    group.what = observed[i].what;
    group.measured += observed[i].times * observed[i].seconds;
    group.said += observed[i].times * said[i];
  }
  std::vector<FittedGroup> groups;
  for (auto& [what, group] : found) groups.push_back(std::move(group));
  std::ranges::stable_sort(groups, std::greater<>{}, &FittedGroup::measured);
  return groups;
}

// The value up to which half of the weight lies.
double weighted_median(std::vector<std::pair<double, double>> values) {
  std::ranges::sort(values);
  double sum = 0;
  for (const auto& [value, weight] : values)
    if ((sum += weight) >= 0.5) return value;
  return values.empty() ? 0 : values.back().first;
}

void tell(Calibration& calibration, const std::vector<Observation>& observed, const std::vector<double>& said, const std::vector<double>& shares) {
  calibration.groups = groups_of(observed, said, shares);
  double measured = 0, all = 0;
  std::vector<std::pair<double, double>> off;
  for (size_t i = 0; i < observed.size(); ++i) {
    if (!(shares[i] > 0)) continue;
    ++calibration.observations;
    measured += observed[i].times * observed[i].seconds;
    all += observed[i].times * said[i];
    off.emplace_back(std::abs(said[i] / observed[i].seconds - 1), shares[i]);
  }
  calibration.median_error = weighted_median(std::move(off));
  calibration.total_error = all / measured - 1;
}

}  // namespace

const std::vector<MachineConstant>& machine_constants() {
  static const std::vector<MachineConstant> constants = {
      of_stack<&Stack::product_cap>("product_cap", 2),
      of_stack<&Stack::product_depth>("product_depth", 0.7),
      of_stack<&Stack::attention_forward>("attention_forward", 0.7, "product_cap"),
      of_stack<&Stack::attention_backward>("attention_backward", 0.7, "product_cap"),
      of_stack<&Stack::memory_share>("memory_share", 2),
      of_stack<&Stack::pointwise_factor>("pointwise_factor", 1),
      of_stack<&Stack::launch>("launch", 2),
      of_stack<&Stack::tensor_exposed>("tensor_exposed", 0.7, "", 1),
      of_stack<&Stack::context_exposed>("context_exposed", 0.7, "", 1),
      of_stack<&Stack::expert_exposed>("expert_exposed", 0.7, "", 1),
      {"link", [](const Machine& machine) { return machine.cluster.device.link; }, set_link, false, 2, "", 0},
      {"link_latency", [](const Machine& machine) { return machine.cluster.device.link_latency; },
       [](Machine& machine, double value) { machine.cluster.device.link_latency = value; }, false, 3, "", 0},
  };
  return constants;
}

Calibration calibrate(const Machine& start, const std::vector<Observation>& observed, const MachineModel& model, const CalibrateOptions& options) {
  Problem problem{.start = start, .constants = chosen(start, options.constants), .measured = {}, .weights = {}, .model = model};
  problem.like = likes(problem.constants);
  const std::vector<double> first = model(start);
  LOCKSTEP_CHECK_EQ(first.size(), observed.size());
  std::vector<double> shares;  // of the step
  double all = 0, roots = 0;
  for (size_t i = 0; i < observed.size(); ++i) {
    problem.measured.push_back(observed[i].seconds);
    const bool used = observed[i].seconds > 0 && observed[i].times > 0 && first[i] > 0 && std::isfinite(first[i]);
    shares.push_back(used ? observed[i].seconds * observed[i].times : 0);
    all += shares.back();
  }
  if (!(all > 0))
    throw ConfigError({.code = "LS1152",
                       .what = "nothing that was measured says anything of the machine's constants",
                       .way_out = "a run with [trace] steps = \"10-12\" leaves times of its actions in RUN/trace"});
  // What takes more of the step weighs more, but constants that matter to what is short (launches, latencies) are to be found, too.
  for (double& share : shares) {
    share /= all;
    problem.weights.push_back(std::sqrt(share));
    roots += problem.weights.back();
  }
  for (double& weight : problem.weights) weight /= roots;
  problem.unit = unit_of(problem.weights, options.noise);
  const std::vector<double> changes = fit(problem);
  Calibration calibration{.machine = problem.machine(changes)};
  tell(calibration, observed, model(calibration.machine), shares);
  const std::vector<double> error = errors(problem, changes, options.noise);
  for (size_t j = 0; j < changes.size(); ++j) {
    const MachineConstant& constant = *problem.constants[j];
    calibration.constants.push_back({constant.name, constant.get(start), constant.get(calibration.machine), error[j]});
    const bool changed = std::abs(changes[j]) > 1e-6;
    if (changed && constant.of_stack) calibration.machine.stack.origins[constant.name] = options.origin;
    if (changed && !constant.of_stack) calibration.machine.cluster.device.origin = options.origin;
  }
  return calibration;
}

std::string calibration_text(const Calibration& calibration) {
  std::string text = "constant            before       after        standard error\n";
  for (const FittedConstant& constant : calibration.constants)
    text += cat(pad_right(constant.name, 18), "  ", pad_right(three_digits(constant.before), 11), "  ", pad_right(three_digits(constant.after), 11), "  ",
                std::isfinite(constant.error) ? cat(three_digits(100 * constant.error), " %") : "not told apart from others", "\n");
  text += "\nwhat                            measured ms  said ms      off\n";
  for (const FittedGroup& group : calibration.groups)
    text += cat(pad_right(group.what, 30), "  ", pad_right(three_digits(1e3 * group.measured), 11), "  ", pad_right(three_digits(1e3 * group.said),
                                                                                                                    11), "  ",
                three_digits(100 * (group.said / group.measured - 1)), " %\n");
  return cat(text, "\n", calibration.observations, " observations; half of the time is said to within ",
             three_digits(100 * calibration.median_error), " %, all of it to ",
             three_digits(100 * calibration.total_error), " %\n");
}

}  // namespace lockstep::plan
