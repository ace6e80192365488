// The gradients of a step, from the layers' sums over this rank's microbatches to whole ones: REDUCE_GRAD, SHARD_GRAD,
// REDUCE_SHARD, PUSH, REDUCE_PARTIAL, and their norm.
#pragma once

#include <cmath>
#include <map>
#include <vector>

#include "lockstep/engine/finite_watch.h"
#include "lockstep/engine/handlers.h"
#include "lockstep/engine/step_state.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

class GradientReducer {
 public:
  // `buckets` outlive this.
  GradientReducer(const StepView& step, const std::vector<program::Bucket>& buckets);

  void add_handlers(Handlers& handlers);
  // Forgets the step before.
  void start_step();
  // Memory for transient gradients of units that an action adds to, zeros where there was none.
  void open(const program::Effects& effects);
  // L2 norm of the summed gradients of the whole model, every parameter counted once. The same on all ranks. Waits for the
  // device; `sum`: of the squares over the ranks, null where one has them all; `blocking` as comm::CallOptions has it.
  struct Norm {
    double here = 0;
    at::Tensor square{};  // over the ranks; undefined where there is one
    Started joined{};     // waits for it
    double value() const { return square.defined() ? std::sqrt(square.item<double>()) : here; }  // once it was joined
  };
  Norm start_norm(const program::PlannedCall* sum, bool blocking);

  // Whose gradient was not finite before it was reduced.
  FiniteWatch& watch() { return watch_; }
  // Looks at what is left after the step, whole gradients or this rank's part of them, and waits for the outcome.
  void check_finite();
  // The host has waited for all that the device had to do.
  void device_waited_for() { arriving_ = false; }
  // Drops what a step that is broken off has left, once its reductions are joined.
  void abandon();

 private:
  Started reduce(const program::Action& action);
  void shard(const program::Action& action);
  Started reduce_shard(const program::Action& action);
  Started reduce_tied(const program::Action& action);
  void reduce_partial(const program::Action& action);
  void start_shard_sums(const program::Action& action);
  // The calls of an action on a bucket, one for each of its units.
  void start_by_unit(const program::Action& action, const std::function<comm::Work(size_t unit, const program::PlannedCall& call)>& start);

  int shards(size_t unit) const { return step_.store.layout().units.at(unit).shards; }
  std::vector<at::Tensor> gradients_of_norm() const;
  void check_finite(const std::vector<size_t>& units);
  void keep(size_t unit);
  void wait_for_host_sums();
  std::vector<size_t> units(int bucket) const;
  comm::Work reduce_unit(size_t unit, const program::PlannedCall& call);
  void finish_wire(size_t unit);
  void wait(int bucket);
  std::vector<at::Tensor> partial_gradients(bool shared_heads) const;
  void sum_together(std::vector<at::Tensor>& gradients, const program::PlannedCall& call);

  const StepView step_;
  const std::vector<program::Bucket>& buckets_;
  std::map<int, std::vector<comm::Work>> in_flight_;  // by bucket
  struct OnWire {
    at::Tensor rounded;   // goes out: kept until the sum is made
    at::Tensor received;  // parts of all ranks, to be summed
  };
  std::map<size_t, OnWire> wire_;                     // by unit, in bf16
  std::vector<bool> kept_;                            // by unit: something of this step was added to what is kept
  bool arriving_ = false;                             // sums of this step are on their way from the device to the host
  std::vector<program::Action> later_;                // REDUCE_SHARD of sums that have not arrived
  FiniteWatch watch_;
  std::vector<FiniteWatch::Gradients> whole_;         // by unit: views, made once
};

}  // namespace lockstep::engine
