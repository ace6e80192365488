// A training step as data: lists of actions, and which rank runs which. passes/ makes it, predict/ folds traffic and memory from it, render/ draws
// it, verify/ checks it, plan/ simulates it and engine/ interprets it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/program/layout.h"

namespace lockstep::program {

// What each touches, when it starts and who waits for it: effects.h.
enum class ActionKind {
  kForward,         // F   forward of a layer (of a whole stage before expand_layers) for a microbatch
  kBackward,        // B   = I then W
  kBackwardInput,   // I   gradient of the input
  kBackwardWeight,  // W   gradients of the weights, accumulated into the gradient buffer
  kRecompute,       // RECOMPUTE  what the layer's B or I and W need and its F did not keep
  kDispatchForward,   // DISPATCH_F  between the parts of a divided F: rows go to their experts
  kCombineForward,    // COMBINE_F   what the experts made of them comes back
  kCombineBackward,   // COMBINE_B   between those of a divided B or I: the gradient of what came back goes to the experts
  kDispatchBackward,  // DISPATCH_B  and that of the rows comes back
  kSendForward,     // SEND_F  the output of a stage goes to the rank of the next stage
  kRecvForward,     // RECV_F  the input of a stage comes from the rank of the stage before it
  kSendBackward,    // SEND_B  the gradient of a stage's input goes to the rank of the stage before it
  kRecvBackward,    // RECV_B  the gradient of a stage's output comes from the rank of the next stage
  kUnshard,         // UNSHARD  a unit's parameters are gathered from the ranks of dp_shard
  kReshard,         // RESHARD  and dropped but for this rank's shard (nothing moves)
  kFetch,           // FETCH  from the host (or disk) to the device
  kEvict,           // EVICT  from the device to the host (or disk); parameters and other unchanged things are dropped
  kReduceGrad,      // REDUCE_GRAD  a bucket: all-reduce of the sum over the data axes; with zero a reduce-scatter over
                    // dp_shard, unit by unit, where gradients are transient after every microbatch
  kShardGrad,       // SHARD_GRAD  a bucket of transient gradients: this rank's shard is added to what is kept of the
                    // step (on the host where the optimizer lives there), the rest is dropped
  kReduceShard,     // REDUCE_SHARD  a bucket: all-reduce of this rank's shard over dp_replicate
  kPush,            // PUSH  a bucket: every rank sends its gradients, the server sums them in rank order
  kReduceTied,      // REDUCE_TIED  gradients of parameters that two stages hold (an embedding that is also the head's
                    // projection): the sum over the two; of this rank's shard
  kLoss,            // LOSS  all-reduce of loss sum, token count and the non-finite flag over the ranks of a model replica
  kReducePartial,   // REDUCE_PARTIAL  gradients that are parts of a sum over tp: of norms, biases and positions under
                    // sequence parallelism, of key/value heads that several ranks share
  kNorm,            // NORM  gradient norm over all parameters once, the clip factor and the one division by the tokens
  kStep,            // STEP  the optimizer, on what this rank owns; of one unit where it is followed by its UNSHARD
  kGatherUpdate,    // GATHER_UPDATE  of a unit's matrices that are updated whole (matrices.h): the optimizer's slots take the
                    // gradient, and what is to be orthogonalised goes to the owner of each matrix
  kScatterUpdate,   // SCATTER_UPDATE  owners orthogonalise, and pieces go back to who holds them, for STEP
  kPull,            // PULL  a bucket: the server sends updated parameters to every rank
  kTokens,          // TOKENS  with post-validation: all-reduce of the number of valid tokens over the data axes, for STEP
  kValidate,        // VALIDATE  with post-validation: was the STEP of the step before the right one? post_validation.h
};
// What of a layer's work for a microbatch an action is.
enum class Work : uint8_t {
  kNone,
  kForward,
  kInput,
  kWeight,
  kInputAndWeight,
  kAgain,  // a part of the forward
};
// What each is called and computes, and how pages show it.
struct KindWords {
  ActionKind kind;
  std::string_view name;
  std::string_view letter{};    // in drawings, in front of its layer or unit; empty = the name
  std::string_view verb{};      // in messages, of a layer; empty = the name
  Work work = Work::kNone;
  bool sends = false, receives = false;  // between the ranks of pp: activations
  bool gradients = false;                // or their gradients, back
  bool exchanges = false;                // between the parts of a divided layer: rows and its experts
  bool comes_and_goes = false;  // what is elsewhere between its uses, or made again: such lists are shown as rounds
  bool opens_round = false;     // beside what computes
};
inline constexpr KindWords kActionKinds[] = {
    {.kind = ActionKind::kForward, .name = "F", .verb = "forward", .work = Work::kForward},
    {.kind = ActionKind::kBackward, .name = "B", .verb = "backward", .work = Work::kInputAndWeight},
    {.kind = ActionKind::kBackwardInput, .name = "I", .verb = "backward of the input", .work = Work::kInput},
    {.kind = ActionKind::kBackwardWeight, .name = "W", .verb = "backward of the weights", .work = Work::kWeight},
    {.kind = ActionKind::kRecompute, .name = "RECOMPUTE", .letter = "f", .verb = "recomputation", .work = Work::kAgain, .comes_and_goes = true},
    {.kind = ActionKind::kDispatchForward, .name = "DISPATCH_F", .letter = "d", .exchanges = true},
    {.kind = ActionKind::kCombineForward, .name = "COMBINE_F", .letter = "c", .exchanges = true},
    {.kind = ActionKind::kCombineBackward, .name = "COMBINE_B", .letter = "C", .gradients = true, .exchanges = true},
    {.kind = ActionKind::kDispatchBackward, .name = "DISPATCH_B", .letter = "D", .gradients = true, .exchanges = true},
    {.kind = ActionKind::kSendForward, .name = "SEND_F", .sends = true},
    {.kind = ActionKind::kRecvForward, .name = "RECV_F", .receives = true},
    {.kind = ActionKind::kSendBackward, .name = "SEND_B", .sends = true, .gradients = true},
    {.kind = ActionKind::kRecvBackward, .name = "RECV_B", .receives = true, .gradients = true},
    {.kind = ActionKind::kUnshard, .name = "UNSHARD", .letter = "+", .comes_and_goes = true},
    {.kind = ActionKind::kReshard, .name = "RESHARD", .letter = "-", .comes_and_goes = true},
    {.kind = ActionKind::kFetch, .name = "FETCH", .letter = "+", .comes_and_goes = true},
    {.kind = ActionKind::kEvict, .name = "EVICT", .letter = "-", .comes_and_goes = true},
    {.kind = ActionKind::kReduceGrad, .name = "REDUCE_GRAD", .letter = "R"},
    {.kind = ActionKind::kShardGrad, .name = "SHARD_GRAD", .letter = "S", .comes_and_goes = true},
    {.kind = ActionKind::kReduceShard, .name = "REDUCE_SHARD", .letter = "A"},
    {.kind = ActionKind::kPush, .name = "PUSH", .letter = ">"},
    {.kind = ActionKind::kReduceTied, .name = "REDUCE_TIED"},
    {.kind = ActionKind::kLoss, .name = "LOSS"},
    {.kind = ActionKind::kReducePartial, .name = "REDUCE_PARTIAL"},
    {.kind = ActionKind::kNorm, .name = "NORM"},
    {.kind = ActionKind::kStep, .name = "STEP", .letter = "U", .opens_round = true},
    {.kind = ActionKind::kGatherUpdate, .name = "GATHER_UPDATE", .letter = "G"},
    {.kind = ActionKind::kScatterUpdate, .name = "SCATTER_UPDATE", .letter = "O"},
    {.kind = ActionKind::kPull, .name = "PULL", .letter = "<"},
    {.kind = ActionKind::kTokens, .name = "TOKENS"},
    {.kind = ActionKind::kValidate, .name = "VALIDATE"},
};
// Its row.
constexpr const KindWords& words_of(ActionKind kind) { return kActionKinds[static_cast<size_t>(kind)]; }
constexpr std::string_view action_name(ActionKind kind) { return words_of(kind).name; }
constexpr Work work_of(ActionKind kind) { return words_of(kind).work; }
// F, B, I, W and RECOMPUTE.
constexpr bool computes(ActionKind kind) { return work_of(kind) != Work::kNone; }
// B and I: they take the gradient of a layer's output and make that of its input.
constexpr bool goes_back(ActionKind kind) { return work_of(kind) == Work::kInput || work_of(kind) == Work::kInputAndWeight; }
// B and W.
constexpr bool adds_to_weights(ActionKind kind) { return work_of(kind) == Work::kWeight || work_of(kind) == Work::kInputAndWeight; }
// SEND_F, RECV_F, SEND_B, RECV_B.
constexpr bool is_transfer(ActionKind kind) { return words_of(kind).sends || words_of(kind).receives; }
// DISPATCH_F, COMBINE_F, COMBINE_B, DISPATCH_B.
constexpr bool exchanges(ActionKind kind) { return words_of(kind).exchanges; }
// DISPATCH_F and COMBINE_B: rows, or gradients, on their way to experts; the two others are on the way back.
constexpr bool leads_to_experts(ActionKind kind) { return kind == ActionKind::kDispatchForward || kind == ActionKind::kCombineBackward; }
// What kinds are known by where what they touch (effects.h) does not matter, as while a program is made.
// REDUCE_GRAD, SHARD_GRAD, REDUCE_SHARD, PUSH.
constexpr bool reduces(ActionKind kind) {
  return kind == ActionKind::kReduceGrad || kind == ActionKind::kShardGrad || kind == ActionKind::kReduceShard || kind == ActionKind::kPush;
}
// Those and PULL.
constexpr bool of_bucket(ActionKind kind) { return reduces(kind) || kind == ActionKind::kPull; }
constexpr bool gathers(ActionKind kind) { return kind == ActionKind::kUnshard; }
constexpr bool drops_gathered(ActionKind kind) { return kind == ActionKind::kReshard; }
constexpr bool updates(ActionKind kind) { return kind == ActionKind::kStep; }
constexpr bool makes_norm(ActionKind kind) { return kind == ActionKind::kNorm; }
constexpr bool sums_tied(ActionKind kind) { return kind == ActionKind::kReduceTied; }
constexpr bool sums_losses(ActionKind kind) { return kind == ActionKind::kLoss; }
// Between device and host or disk.
constexpr bool fetches(ActionKind kind) { return kind == ActionKind::kFetch; }
constexpr bool is_move(ActionKind kind) { return fetches(kind) || kind == ActionKind::kEvict; }
// What it sums is scattered over the units, so its size follows from what lies in this rank's shard.
constexpr bool sums_partial(ActionKind kind) { return kind == ActionKind::kReducePartial; }
// What each rank sends follows from what it holds and owns.
constexpr bool moves_matrices(ActionKind kind) { return kind == ActionKind::kGatherUpdate || kind == ActionKind::kScatterUpdate; }
static_assert([] {
  for (size_t i = 0; i < std::size(kActionKinds); ++i)
    if (static_cast<size_t>(kActionKinds[i].kind) != i) return false;
  return true;
}());

// What FETCH and EVICT move.
enum class Moved { kParameters, kOptimizer, kActivation };

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = -1;       // before expand_layers; SEND_*, RECV_*: the stage on this rank
  int layer = -1;       // after it
  int microbatch = -1;
  int bucket = -1;      // REDUCE_GRAD, SHARD_GRAD, REDUCE_SHARD, PUSH, PULL
  int unit = -1;        // UNSHARD, RESHARD, REDUCE_TIED, FETCH and EVICT of parameters or optimizer state, GATHER_UPDATE, SCATTER_UPDATE, STEP: its id
                        // (arch::ParamSpec::unit), that of a parameter group of a layer; STEP with -1: all
  Moved moved = Moved::kParameters;  // FETCH, EVICT; an activation has layer and microbatch
  int part = -1;        // F, B, I of a divided layer: 0 up to the rows that leave for the experts, 1 the experts, 2 from where their
                        // results are back; -1: all of it
  auto operator<=>(const Action&) const = default;
};
inline constexpr int kParts = 3;
// Of a layer's pass it is all, or the first part; all, or the last part.
constexpr bool begins_pass(const Action& action) { return action.part <= 0; }
constexpr bool ends_pass(const Action& action) { return action.part < 0 || action.part == kParts - 1; }
// What all actions are known by that differ in the microbatch alone.
constexpr Action without_microbatch(Action action) {
  action.microbatch = -1;
  return action;
}

// What SEND and RECV are.
struct Transfer {
  bool sends = false;    // else it receives
  bool forward = false;  // activations, to the next stage; else their gradients, to the stage before
  int neighbour = -1;    // the stage at the other end
};
constexpr Transfer transfer_of(const Action& action) {
  const bool sends = words_of(action.kind).sends, forward = !words_of(action.kind).gradients;
  return {.sends = sends, .forward = forward, .neighbour = action.stage + (sends == forward ? 1 : -1)};
}

// Gradients that travel together: units of one group of consecutive layers, hence one contiguous slice of the flat gradient buffer.
struct Bucket {
  std::vector<int> units;   // of one group, in backward order; they are complete in this order
  int64_t begin = 0;        // elements of the flat buffer
  int64_t end = 0;
  int pipeline = 0;         // coordinate on pp of the ranks whose gradients these are
  int64_t numel() const { return end - begin; }
  bool operator==(const Bucket&) const = default;
};
// That its units are of.
inline arch::ParameterGroup group_of(const Layout& layout, const Bucket& bucket) {
  return layout.group_of(bucket.units.empty() ? 0 : bucket.units.front());
}
inline Domain domain_of(const Layout& layout, const Bucket& bucket) { return layout.domain(group_of(layout, bucket)); }

// What layers are called wherever they are printed: "embed", "b0" .. "b11", "head", of a model with `num_layers` layers in all; and
// units by id: "b3 rows" is the second parameter group of "b3", "b3 experts" the third.
std::string layer_label(int layer, int num_layers);
// "b0", "b0..b3".
std::string label_range(int first, int last, int num_layers);
// Behind the label of a divided layer: "a", "b", "c"; nothing for all of it.
std::string part_letter(const Action& action);
// "F b3 m1", "REDUCE_GRAD head", "PUSH b5..b3" (the layers of the bucket), "REDUCE_GRAD b3 m1", "UNSHARD b3", "STEP";
// "FETCH b3" moves its parameters, "FETCH state of b3" those of the optimizer, "FETCH input of b3 m1" an activation.
std::string action_text(const Action& action, const std::vector<Bucket>& buckets, int num_layers);

// Ranks that do the same share a list: there are as many lists as differ, whatever the number of ranks.
struct Program {
  std::vector<std::vector<Action>> lists{};  // each is run by some rank
  std::vector<int32_t> list_of{};            // by rank: which of them it runs
  std::vector<Bucket> buckets{};  // of every coordinate on pp in turn; of one of them in the order in which backward fills them
  // Tensors that may be on their way in a channel between two pipeline ranks at once: a SEND waits for the one this many
  // before it. Until then the sender keeps what it sent.
  int channel_depth = 1;

  // From the list of every rank; equal ones become one.
  static Program of_ranks(std::vector<std::vector<Action>> ranks);
  int world_size() const { return static_cast<int>(list_of.size()); }
  size_t list_index(int rank) const { return static_cast<size_t>(list_of.at(static_cast<size_t>(rank))); }
  const std::vector<Action>& list(int rank) const { return lists.at(list_index(rank)); }
  bool same_list(int a, int b) const { return list_index(a) == list_index(b) || list(a) == list(b); }
  // Of every list the first rank that runs it.
  std::vector<int> first_ranks() const;
};

}  // namespace lockstep::program
