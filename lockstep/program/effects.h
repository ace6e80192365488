// What an action touches, where it runs and when it is joined: the one text that knows it of each action kind. The waits of
// the simulator, the lanes of the drawing and the rules of the verifier about what is alive follow from it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// What lives on a rank from one action to another.
enum class Resource : uint8_t {
  kInput,       // of a layer, for a microbatch: the output of the layer below
  kOutputGrad,  // the gradient of a layer's output, for a microbatch
  kSaved,       // what F of a layer keeps for its backward, for a microbatch
  kSent,        // what is on its way to a neighbour of the pipeline, by the stage here, for a microbatch
  kParameters,  // the compute copy of a unit: whole, or this rank's shard of it
  kGradients,   // of a unit, summed over what has run so far
  kStates,      // optimizer state of a unit
  kLosses,      // loss sum and valid tokens of the step
  kTokens,      // valid tokens alone, known ahead of the losses
  kNorm,        // of the gradients of the step
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

struct Touch {
  Resource what = Resource::kInput;
  Access how = Access::kRead;
  int index = kEvery;  // layer, unit (the layer that owns it) or stage; 0 where there is one. The microbatch is the action's.
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
};

// Of one rank; every rank of a pipeline coordinate has the same. Layout and buckets outlive it.
class EffectTable {
 public:
  EffectTable(const Layout& layout, std::span<const Bucket> buckets, int rank);

  // Of actions that differ in the microbatch alone it is one. Actions of whole stages touch nothing here: what they hand
  // over is known to who runs them against each other.
  const Effects& of(const Action& action);

 private:
  Effects make(const Action& action);
  void compute(const Action& action, Effects& effects);
  void move(const Action& action, Effects& effects) const;
  void touch_units(std::span<const int> units, Resource what, Access how, Effects& effects) const;
  std::span<const int> bucket(const Action& action) const;

  const Layout* layout_;
  std::span<const Bucket> buckets_;
  int rank_;
  std::vector<arch::ParamSpec> table_;  // made once something computes
  std::map<std::tuple<ActionKind, int, int, int, int, Moved>, Effects> known_;
};

// REDUCE_GRAD, SHARD_GRAD, REDUCE_SHARD, PUSH.
bool reduces(ActionKind kind);
// SEND_F, RECV_F, SEND_B, RECV_B: between the ranks of pp.
bool is_transfer(ActionKind kind);

// The units (layers that own them) whose parameters an action reads: F and RECOMPUTE, B and I of blocks and head their own
// and tied ones. W and the embedding's backward read none. The head's F counts although its B or I does all the work while
// training (nn/head.h): in an evaluation it reads, and what its B needs is so under way one action earlier.
std::vector<int> units_read(const Action& action, const std::vector<arch::ParamSpec>& table);
// The units whose gradients it adds to: B and W their own; B and I of the head (layer `head`) that of its projection, which
// may be a tied one.
std::vector<int> units_written(const Action& action, const std::vector<arch::ParamSpec>& table, int head);

// The layers whose backward adds to the bucket's gradients, ascending: its own, and further users of tied parameters.
std::vector<int> writers(const Bucket& bucket, const std::vector<arch::ParamSpec>& table);

}  // namespace lockstep::program
