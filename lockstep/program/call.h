// What a collective is for, as data: the key of the ledger, and what ranks compare. Its text is made where it is printed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "lockstep/arch/params.h"

namespace lockstep::program {

enum class Purpose : uint8_t {
  kOther,  // no call of the program: a test's, or none at all. It has a name
  // Of the actions of a list.
  kLayer,  // inside a sharded layer; CallId::name and phase say where
  kSendForward, kRecvForward, kSendBackward, kRecvBackward,  // of a stage
  kUnshard,                                                  // of a layer's unit
  kReduceGrad, kReduceShard, kPush, kPull,                   // of a bucket
  kReduceTied, kReducePartial, kLoss, kNorm, kTokens,
  kGatherUpdate, kScatterUpdate,                             // of a layer's unit
  // Beside them.
  kNonFinite, kWholeParameter, kEvaluate, kStop, kStart, kMemory, kTrace,
  kVerdict, kWorstUpdate,
  kReplicaCounters, kReplicaDigests, kReplicaVerdict, kReplicaTensors, kReplicaWords,
  kRunLock, kBeginning, kSetAside,
  kCheckpointPrepare, kCheckpointWrite, kCheckpointPublish, kCheckpointBytes, kCheckpointInFlight, kCheckpointHangs,
  kCheckpointModel, kCheckpointLoad, kCheckpointCount, kCheckpointStep,
  kJobFacts, kJobWords, kJobMet, kStorePlace, kGpuRoom,
};
struct PurposeText {
  Purpose purpose;
  std::string_view text;
};
inline constexpr PurposeText kPurposes[] = {
    {Purpose::kOther, ""},
    {Purpose::kLayer, "tp"},  // in tables of purposes; the text of a call begins with its layer
    {Purpose::kSendForward, "send_f"},
    {Purpose::kRecvForward, "recv_f"},
    {Purpose::kSendBackward, "send_b"},
    {Purpose::kRecvBackward, "recv_b"},
    {Purpose::kUnshard, "unshard"},
    {Purpose::kReduceGrad, "reduce_grad"},
    {Purpose::kReduceShard, "reduce_shard"},
    {Purpose::kPush, "push"},
    {Purpose::kPull, "pull"},
    {Purpose::kReduceTied, "reduce_tied"},
    {Purpose::kReducePartial, "reduce_partial"},
    {Purpose::kLoss, "loss"},
    {Purpose::kNorm, "norm"},
    {Purpose::kTokens, "tokens"},
    {Purpose::kGatherUpdate, "gather_update"},
    {Purpose::kScatterUpdate, "scatter_update"},
    {Purpose::kNonFinite, "non-finite"},
    {Purpose::kWholeParameter, "whole"},
    {Purpose::kEvaluate, "eval"},
    {Purpose::kStop, "stop"},
    {Purpose::kStart, "start"},
    {Purpose::kMemory, "memory"},
    {Purpose::kTrace, "trace"},
    {Purpose::kVerdict, "verdict"},
    {Purpose::kWorstUpdate, "worst update"},
    {Purpose::kReplicaCounters, "counters"},
    {Purpose::kReplicaDigests, "replica digests"},
    {Purpose::kReplicaVerdict, "replica verdict"},
    {Purpose::kReplicaTensors, "replica tensors"},
    {Purpose::kReplicaWords, "how replicas differ"},
    {Purpose::kRunLock, "run lock"},
    {Purpose::kBeginning, "beginning"},
    {Purpose::kSetAside, "set aside"},
    {Purpose::kCheckpointPrepare, "checkpoint prepare"},
    {Purpose::kCheckpointWrite, "checkpoint write"},
    {Purpose::kCheckpointPublish, "checkpoint publish"},
    {Purpose::kCheckpointBytes, "checkpoint bytes"},
    {Purpose::kCheckpointInFlight, "checkpoint in flight"},
    {Purpose::kCheckpointHangs, "checkpoint hangs"},
    {Purpose::kCheckpointModel, "checkpoint model"},
    {Purpose::kCheckpointLoad, "checkpoint load"},
    {Purpose::kCheckpointCount, "checkpoint count"},
    {Purpose::kCheckpointStep, "checkpoint step"},
    {Purpose::kJobFacts, "what the ranks were told"},
    {Purpose::kJobWords, "how the ranks differ"},
    {Purpose::kJobMet, "the ranks are of one job"},
    {Purpose::kStorePlace, "where the store is"},
    {Purpose::kGpuRoom, "all have looked"},
};
constexpr std::string_view purpose_text(Purpose purpose) { return kPurposes[static_cast<size_t>(purpose)].text; }
static_assert([] {
  for (size_t i = 0; i < std::size(kPurposes); ++i)
    if (static_cast<size_t>(kPurposes[i].purpose) != i) return false;
  return true;
}());

// Whose call it is; CallId::index is its number.
enum class Owner : uint8_t { kNone, kEmbedding, kBlock, kHead, kStage, kBucket };
// When, or what for, its owner makes several.
enum class CallPhase : uint8_t {
  kNone,
  kForward,
  kBackward,
  kGather,   // the input once more, for the weight gradient
  kSoftmax,  // what the ranks of a cut vocabulary know of each row
  kLogits,   // generation
  kSize,     // how much the call of the same id that follows carries
};

// 40 bytes that may lie in memory that processes share. Equal on all ranks of a call.
struct CallId {
  static constexpr int16_t kEvery = -1;

  Purpose purpose = Purpose::kOther;
  Owner owner = Owner::kNone;
  CallPhase phase = CallPhase::kNone;
  // The part of a layer ("attention.qkv"; none: all of it), a parameter, what kOther is; ended by a zero where it is shorter.
  std::array<char, 35> name{};
  int16_t index = 0;  // of the owner: a block, a stage, a bucket; kEvery: all of them
  auto operator<=>(const CallId&) const = default;

  CallId with(CallPhase other) const;
  CallId of_part(std::string_view part) const;  // of the same layer
  CallId of_every_owner() const;  // "reduce_grad bucket", "blocks.*.mlp.down forward": calls of one kind in one row
};
static_assert(sizeof(CallId) == 40);

// InternalError where the number is above 32767.
CallId call_id(Purpose purpose);
CallId call_of_bucket(Purpose purpose, int bucket);
CallId call_of_stage(Purpose purpose, int stage);
CallId call_of_layer(Purpose purpose, const arch::LayerSpec& layer);
// "whole blocks.3.mlp.down.weight"; what is beyond 35 characters is cut off.
CallId call_of_parameter(std::string_view name);
// Of tests, and where there is no call.
CallId named_call(std::string_view name);

// "reduce_grad bucket 0", "loss", "unshard blocks.3", "blocks.3.mlp.down forward", "send_f stage 1".
std::string call_text(const CallId& id);

}  // namespace lockstep::program
