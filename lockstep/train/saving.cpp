#include "lockstep/train/saving.h"

#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::train {

void Saving::begin(std::optional<int64_t> saved) {
  saved_at_ = saved;
  timer_ = {.seconds = options_.every.seconds, .start = options_.now()};
}

bool Saving::due(int64_t step) const {
  const int64_t every = options_.every.steps.value_or(0);
  return every > 0 && step % every == 0 && step != options_.total;
}

void Saving::settled(const RunPosition& at) {
  report(options_.poll());
  if (due(at.step)) save(at);
}

void Saving::save(const RunPosition& at) {
  if (saved_at_ == at.step) return;
  report(options_.write());
  timer_.start = options_.now();
  saved_at_ = at.step;
}

void Saving::report(const std::optional<checkpoint::SaveResult>& saved) {
  if (!saved) return;
  output_.note(cat("checkpoint ", saved->path.string(), "  ", format_bytes(static_cast<double>(saved->bytes)), " in ",
                   format_duration(saved->seconds)));
  output_.event("checkpoint", saved->step, {{"path", saved->path.string()}, {"seconds", saved->seconds}});
  if (!saved->warning.empty() && !std::exchange(warned_of_latest_, true)) output_.warn(saved->warning);
}

}  // namespace lockstep::train
