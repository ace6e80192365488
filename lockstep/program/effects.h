// What an action touches, where it runs and when it is joined: the one text that knows it of each action kind. What the engine
// and the simulator wait for, the lanes of the drawing, the life times of the memory prediction and the verifier's rules about
// what is alive follow from it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "lockstep/program/placement.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

// What lives on a rank from one action to another.
enum class Resource : uint8_t {
  kInput,       // of a layer, for a microbatch: the output of the layer below
  kOutputGrad,  // the gradient of a layer's output, for a microbatch
  kSaved,       // what F of a layer keeps for its backward, for a microbatch
  kForwardParts,   // of a divided layer's F, for a microbatch: what a part leaves to the next one
  kBackwardParts,  // the same of its B or I
  kSent,        // what is on its way to a neighbour of the pipeline, by the stage here, for a microbatch
  kParameters,  // the compute copy of a unit: whole, or this rank's shard of it
  kGradients,   // of a unit, summed over what has run so far
  kStates,      // optimizer state of a unit
  kLosses,      // loss sum and valid tokens of the step
  kTokens,      // valid tokens alone, known ahead of the losses
  kNorm,        // of the gradients of the step
  kDirections,  // of a unit: of matrices that are updated whole, on their way to be orthogonalised and back
};
bool by_microbatch(Resource resource);

enum class Access : uint8_t {
  kRead,
  kAdd,      // to a sum that later adds may join
  kCreate,
  kUpdate,   // in place: gathered, reduced, moved, stepped
  kConsume,  // read for the last time
  kDrop,
};

inline constexpr int kEvery = -1;  // index of a Touch: all there are

// What a resource lacks to be whole, summed and on the device: a set; 0 = nothing.
using State = uint32_t;
inline constexpr State kShardOnly = 1 << 0;      // parameters: of the unit only this rank's shard, or that (or its copy) alone up to date
inline constexpr State kAway = 1 << 1;           // parameters, states, saved: on the host or on disk; directions: nowhere
inline constexpr State kCopied = 1 << 2;         // saved: back on the device, and until its next use on the host too
inline constexpr State kIncomplete = 1 << 3;     // saved: RECOMPUTE makes the rest; directions: not orthogonalised; losses: this rank's alone
inline constexpr State kForWeights = 1 << 4;     // saved: what W needs
inline constexpr State kOpen = 1 << 5;           // transient gradients: the whole unit is there, this rank's sum lacks its share
inline constexpr State kPartOfTokens = 1 << 6;   // gradients: part of a sum over other tokens; with several shards over those alone
inline constexpr State kPartOfCopies = 1 << 7;   // with shards: over the ranks that hold the same one
inline constexpr State kPartOfTp = 1 << 8;       // some of the unit's parameters are (arch::ParamSpec::partial)
inline constexpr State kPartOfStages = 1 << 9;   // another stage uses the parameters too
inline constexpr State kForExperts = 1 << 10;    // parts: rows that have not left for the experts
inline constexpr State kAtExperts = 1 << 11;     // parts: rows that the experts have not worked on
inline constexpr State kFromExperts = 1 << 12;   // parts: results that are not back
// Sums of a gradient are made in this order.
inline constexpr State kSums[] = {kPartOfTokens, kOpen, kPartOfCopies, kPartOfStages, kPartOfTp};

struct Touch {
  Resource what = Resource::kInput;
  Access how = Access::kRead;
  int index = kEvery;  // layer, unit (arch::ParamSpec::unit) or stage; 0 where there is one. The microbatch is the action's.
  State from{};        // what it lacked before the action, and
  State to{};          // lacks behind it in place of that; where kEvery is read, what each may lack
  bool operator==(const Touch&) const = default;
};

// Where an action runs. Those of a lane run one after the other, each channel and each group of ranks being a lane.
enum class Lane : uint8_t { kCompute, kNetwork, kChannel, kCopies };

enum class Join : uint8_t {
  kAtOnce,    // the rank goes on when it is done
  kAtTouch,   // it starts where it stands; the next action that touches what it touches waits for it
};

struct Effects {
  std::vector<Touch> touches{};
  Lane lane = Lane::kCompute;
  Join join = Join::kAtOnce;
  bool collective = false;  // all ranks of its group come to it
  bool host_reads = false;  // the rank stands until what the action reads is there, also where it is joined later
  void touch(Resource what, Access how, int index, State from = 0, State to = 0) { touches.push_back({what, how, index, from, to}); }
};

// Of one rank; every rank of a pipeline coordinate has the same, but for the sums that a parameter server's workers leave to
// it. Layout and buckets outlive it.
class EffectTable {
 public:
  EffectTable(const Layout& layout, std::span<const Bucket> buckets, int rank);

  // Of actions that differ in the microbatch alone it is one. Actions of whole stages touch nothing here: what they hand
  // over is known to who runs them against each other.
  const Effects& of(const Action& action);
  // Of parameters, gradients, states or directions of a unit, or of the losses, between two steps.
  State at_rest(Resource what, int unit);

 private:
  Effects make(const Action& action);
  void compute(const Action& action, Effects& effects);
  void change_saved(const Action& action, Effects& effects) const;
  void move(const Action& action, Effects& effects) const;
  void step(const Action& action, Effects& effects);
  State parameters_at_rest(int unit) const;
  State parameters_behind_step(int unit) const;
  State unsummed(int unit);
  const std::vector<arch::ParamSpec>& table();

  const Layout* layout_;
  std::span<const Bucket> buckets_;
  int rank_;
  size_t places_;  // of layers, units, stages and buckets
  std::vector<arch::ParamSpec> table_;  // made once it is asked for
  std::optional<HostPlan> plan_;        // the same
  std::optional<std::set<int>> scattered_;  // the same: units with matrices that no rank has whole
  std::vector<std::unique_ptr<const Effects>> known_;  // by kind, what is moved or which part, and place
};

// The units whose parameters an action reads, each part of a divided layer as all of it: F and RECOMPUTE, B and I of blocks and head
// their own and tied ones. W and the embedding's backward read none. The head's F counts although its B or I does all the work while
// training (nn/head.h): in an evaluation it reads, and what its B needs is so under way one action earlier.
std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table);
// The units whose gradients it adds to, of a divided layer its last part: B and W those of their layer; B and I of the head (layer
// `head`) that of its projection, which may be a tied one.
std::vector<int> units_written(const Action& action, const std::vector<arch::ParamSpec>& table, int head);

// The layers whose backward adds to the bucket's gradients, ascending: its own, and further users of tied parameters.
std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table);

// What a rank has started and not yet joined, by what it touches. `Started` stands for one that was started: an action, a moment, a call.
template <typename Started>
class Pending {
 public:
  // An action that is joined later has begun. What was started before it on the same resources ends before it does: who
  // joins it has joined those.
  void start(const Effects& effects, const Action& action, const Started& started) {
    join(effects, action);
    for (const Touch& touch : effects.touches)
      if (touch.how == Access::kCreate || touch.how == Access::kUpdate || touch.how == Access::kAdd)
        started_[key(touch, touch.index, action)] = started;
  }

  // What the action waits for; one that touches several of its resources is named for each.
  std::vector<Started> of(const Effects& effects, const Action& action) const {
    std::vector<Started> found;
    for (const Touch& touch : effects.touches)
      for_each(started_, touch, action, [&](const auto& entry) { found.push_back(entry->second); });
    return found;
  }

  // It has waited: they are not named again.
  void join(const Effects& effects, const Action& action) {
    for (const Touch& touch : effects.touches)
      for_each(started_, touch, action, [&](const auto& entry) { started_.erase(entry); });
  }

 private:
  using Key = std::tuple<Resource, int, int>;  // index, microbatch

  static Key key(const Touch& touch, int index, const Action& action) {
    return {touch.what, index, by_microbatch(touch.what) ? action.microbatch : kEvery};
  }
  // What was started on what is touched; `use` may erase it.
  template <typename Map, typename Use>
  static void for_each(Map& started, const Touch& touch, const Action& action, const Use& use) {
    if (touch.index != kEvery) {
      for (const int index : {touch.index, kEvery})
        if (const auto found = started.find(key(touch, index, action)); found != started.end()) use(found);
      return;
    }
    for (auto entry = started.lower_bound({touch.what, kEvery, kEvery}); entry != started.end() && std::get<0>(entry->first) == touch.what;)
      use(entry++);
  }

  std::map<Key, Started> started_;
};

}  // namespace lockstep::program
