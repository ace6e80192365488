#include "lockstep/program/predict/moves.h"

#include <set>

#include "lockstep/base/text.h"
#include "lockstep/program/placement.h"

namespace lockstep::program {

std::string route_name(Route route) {
  switch (route) {
    case Route::kHostToDevice:
      return "host to device";
    case Route::kDeviceToHost:
      return "device to host";
    case Route::kDiskToHost:
      return "disk to host";
    case Route::kHostToDisk:
      return "host to disk";
  }
  return "";
}

namespace {

class Counting {
 public:
  Counting(const Layout& layout, const Program& program, int rank)
      : layout_(layout), program_(program), plan_(host_plan(layout, rank)) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) parts_[unit.layer] = unit.numel() / layout.shards();
    for (const arch::LayerSpec& spec : arch::layer_table(layout.model)) {
      if (!layout.holds(rank, spec.index) || layout.recompute_of(spec.index) != arch::Recompute::kFull) continue;
      inputs_[spec.index] = arch::layer_cost(layout.model, spec,
                                             {.batch = layout.micro_batch,
                                              .seq_len = layout.seq_len,
                                              .element_size = layout.element_size(),
                                              .threads = layout.threads,
                                              .tensor = layout.tensor_shard(rank),
                                              .recompute = arch::Recompute::kFull})
                                .kept;
    }
  }

  void count(const Action& action) {
    const bool fetch = action.kind == ActionKind::kFetch;
    if (action.kind == ActionKind::kShardGrad && layout_.offload.optimizer)
      for (const int unit : program_.buckets.at(static_cast<size_t>(action.bucket)).layers)
        add("gradients", Route::kDeviceToHost, 4 * parts_.at(unit));
    if (!fetch && action.kind != ActionKind::kEvict) return;
    switch (action.moved) {
      case Moved::kParameters:
        if (fetch)  // eviction drops: nothing changed
          add("parameters", layout_.offload.parameters && plan_.on_disk(action.unit) ? Route::kDiskToHost : Route::kHostToDevice,
              layout_.element_size() * parts_.at(action.unit));
        return;
      case Moved::kOptimizer:
        return add("optimizer state", fetch ? Route::kDiskToHost : Route::kHostToDisk,
                   (fetch ? layout_.optimizer->update_bytes() : offloaded_state_bytes(layout_)) * parts_.at(action.unit));
      case Moved::kActivation:
        return add("activations", fetch ? Route::kHostToDevice : Route::kDeviceToHost, inputs_.at(action.layer));
    }
  }

  Moves result() { return std::move(moves_); }

 private:
  void add(const char* what, Route route, int64_t bytes) {
    MoveTotals& totals = moves_[{what, route}];
    totals.count += 1;
    totals.bytes += bytes;
  }

  const Layout& layout_;
  const Program& program_;
  const HostPlan plan_;
  std::map<int, int64_t> parts_, inputs_;  // by layer: elements of its part, bytes of its input
  Moves moves_;
};

}  // namespace

Moves predict_moves(const Layout& layout, const Program& program, int rank) {
  Counting counting(layout, program, rank);
  for (const Action& action : program.list(rank)) counting.count(action);
  return counting.result();
}

}  // namespace lockstep::program
