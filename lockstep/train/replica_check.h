// Replicas that have drifted apart end the run before anything of them is saved.
#pragma once

#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/engine/replicas.h"
#include "lockstep/train/step_policy.h"

namespace lockstep::train {

using ReplicaError = ErrorOf<ExitCode::kMismatch>;

// Collective over the world, with nothing pending; a world of one has nothing to compare. `with_disk` as in
// engine::replica_differences. ReplicaError LS5002 on every rank, in the same words, naming tensors and ranks
// (engine::replica_differences), and what of the position differs.
void check_replicas(engine::Executor& executor, engine::Groups& groups, const RunPosition& at, bool with_disk);

class ReplicaPolicy : public StepPolicy {
 public:
  // `every`: 0 = only before a checkpoint. `on_disk`: some of the state is; it is read for this only where it is saved anyway.
  ReplicaPolicy(int64_t every, bool on_disk, std::function<void(const RunPosition&, bool with_disk)> check)
      : every_(every), on_disk_(on_disk), check_(std::move(check)) {}

  bool due(int64_t step) const override { return every_ > 0 && step % every_ == 0; }
  void settled(const RunPosition& at) override {
    if (due(at.step)) compare(at, false);
  }
  // Nothing is saved that has not been compared.
  void before_save(const RunPosition& at) { compare(at, true); }

 private:
  void compare(const RunPosition& at, bool saves);

  int64_t every_;
  bool on_disk_;
  std::function<void(const RunPosition&, bool with_disk)> check_;
  int64_t compared_at_ = -1;
};

}  // namespace lockstep::train
