#include "lockstep/train/verify_drift.h"

#include <ATen/ops/empty.h>

#include <span>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/train/verify_compare.h"

namespace lockstep::train {
namespace {

// -1 or 1 for each element.
at::Tensor signs(const std::string& name, uint64_t seed, const at::Tensor& like) {
  const at::Tensor uniform = at::empty({like.numel()}, at::kFloat);
  RandomStream(seed, name).uniform(0, std::span(uniform.data_ptr<float>(), static_cast<size_t>(uniform.numel())));
  return uniform.sub_(0.5).sign_().view(like.sizes()).to(like.device());
}

}  // namespace

engine::ExecutorOptions reordered(engine::ExecutorOptions options, const Tolerances& tolerances) {
  const auto move = [layout = options.layout, seed = options.seed, tolerance = tolerances.gradient, step = int64_t{0}](
                        const program::Action& action, engine::ParameterStore& store) mutable {
    if (!program::makes_norm(action.kind)) return;
    ++step;
    std::vector<at::Tensor> gradients;
    for (size_t row = 0; row < store.table().size(); ++row) gradients.push_back(store.grad(static_cast<int>(row)));
    const std::vector<double> scales = gradient_scales(gradients, layout);
    for (size_t row = 0; row < gradients.size(); ++row) {
      const at::Tensor up_or_down = signs(cat("reordered/step ", step, "/", store.table()[row].name), seed, gradients[row]);
      gradients[row].add_(up_or_down.mul_(gradients[row].ne(0)), tolerance * scales[row]);
    }
  };
  options.before_action = move;
  return options;
}

// Each update rounds at most 8 times in a row what it leaves (optim/adamw.cpp), on either side.
double drift_rounding(int64_t steps) { return static_cast<double>(steps) * 16 * 0x1p-24; }

void judge_drift(const Drift& drift, const std::vector<arch::StateSlot>& slots, int64_t steps, std::vector<std::string>& failures) {
  const auto judge = [&](const std::string& what, double layout, double reordered) {
    const double bound = reordered + drift_rounding(steps);
    if (layout <= bound) return;
    failures.push_back(cat("left alone for ", steps, " steps: ", what, " are ", layout,
                           " of their size away from the twin's, more than the ", bound, " of a reordered sum"));
  };
  judge("values", drift.layout.values, drift.reordered.values);
  for (size_t i = 0; i < slots.size(); ++i)
    judge(cat(slots[i].text, "s"), drift.layout.slots.at(i), drift.reordered.slots.at(i));
}

}  // namespace lockstep::train
