// What the first tier knows of single layers: seconds, bytes and parameters of the embedding, of a block of each pattern and of the head, as
// program prediction and lockstep/plan/time have them. Made once for all candidates that cut a layer alike.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/plan/search/lookup.h"
#include "lockstep/plan/search/time_source.h"

namespace lockstep::plan {

// A place is what layers are alike in: 0 the embedding, then the patterns of blocks (arch::first_blocks), last the head.
class Places {
 public:
  explicit Places(const arch::ModelConfig& model);
  int count() const { return static_cast<int>(first_.size()); }
  int head() const { return count() - 1; }
  int of(int layer) const { return of_layer_[static_cast<size_t>(layer)]; }
  int layers() const { return static_cast<int>(of_layer_.size()); }
  int layer(int place) const { return first_[static_cast<size_t>(place)]; }   // the first of them
  int times(int place) const { return times_[static_cast<size_t>(place)]; }  // layers of the model

 private:
  std::vector<int> of_layer_, first_, times_;
};

// Of one microbatch on one rank, with what the host adds to kernels.
struct LayerTimes {
  double forward = 0, input = 0, weight = 0, recompute = 0;
  double all() const { return forward + input + weight + recompute; }
};

// arch::LayerCost under one recompute choice.
struct LayerBytes {
  double kept = 0, restored = 0, held = 0, output = 0;
  double forward = 0, recompute = 0, backward = 0, input = 0, weight = 0;  // workspaces
};

// Of one parameter group of a layer, whole on this rank of tp (or ep and etp).
struct UnitSize {
  double elements = 0;      // 0: the layer has none
  double element_size = 0;  // bytes of the compute copy
  double wire_size = 0;     // bytes of a gradient on the wire
  double updated = 0;       // bytes of an element that an update reads and writes (arch::update_bytes)
  // Key and value heads that several ranks of tp hold: their gradients are summed in a copy at the end (REDUCE_PARTIAL).
  double shared_begin = 0, shared = 0;
};
using UnitSizes = std::array<UnitSize, arch::kParameterGroups.size()>;
// Elements with what fills them up to `shards` equal parts (arch::flat_layout).
inline double padded_elements(double elements, double shards) {
  const double unit = 16 * shards, parts = elements / unit;
  const auto whole = static_cast<double>(static_cast<int64_t>(parts));
  return unit * (whole < parts ? whole + 1 : whole);
}

inline constexpr size_t kRecomputeChoices = 3;

struct LayerSet {
  std::vector<std::array<LayerTimes, kRecomputeChoices>> times{};  // by place, by choice
  bool timed = false;
  std::vector<double> least{};    // by place: seconds of an action at least, where the host is slower; B: twice that
  std::vector<double> certain{};  // by place, without recomputation: seconds that are the same however experts lie
  std::vector<std::array<LayerBytes, kRecomputeChoices>> bytes{};  // empty: not asked for yet
  std::vector<double> flops{};  // forward and backward, by place: what program::balanced_stages balances
  int profile = -1;             // sets of one profile have the same shares of FLOPs, and so the same stages; -1: not asked for yet
  double sequence_bytes = 0;    // token ids, targets and places of one microbatch
};

class LayerPieces {
 public:
  // `legal`: any candidate that the job can run. All that is referred to outlives this object.
  LayerPieces(const Job& job, const EstimateOptions& options, const Candidate& legal);

  const Places& places() const { return places_; }
  // With seconds.
  LayerSet& timed(const Candidate& candidate);
  // With bytes, and the profile.
  LayerSet& with_bytes(const Candidate& candidate);
  const std::vector<double>& profile(int index) const { return profiles_[static_cast<size_t>(index)]; }
  // The stack is another one: nothing is timed.
  void forget_times();
  // By place.
  const std::vector<UnitSizes>& units(const Candidate& candidate);

  // The candidate's layout but for its pipeline; until the next call.
  const program::Layout& layout(const Candidate& candidate);

 private:
  LayerSet& set_of(const Candidate& candidate);
  Candidate of_layers(const Candidate& candidate) const;
  void add_times(const Candidate& candidate, LayerSet& set);
  void add_bytes(const Candidate& candidate, LayerSet& set);
  void bound_rows(program::Layout& layout) const;
  std::vector<UnitSizes> units_of(const Candidate& candidate);

  const Job job_;
  const EstimateOptions options_;
  const Places places_;
  program::Layout layout_;
  Lookup<LayerSet> sets_;
  Lookup<std::vector<UnitSizes>> units_;
  std::vector<std::vector<double>> profiles_;  // FLOPs by place over those of the first block
};

}  // namespace lockstep::plan
