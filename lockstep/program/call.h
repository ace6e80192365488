// What a collective is for, as data: the key of the ledger, and what ranks compare. Its text is made where it is printed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "lockstep/arch/layer_description.h"

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
inline constexpr auto kPurposes = [] {
  using enum Purpose;
  return std::to_array<PurposeText>({
      {kOther, ""},
      {kLayer, "tp"},  // in tables of purposes; the text of a call begins with its layer
      {kSendForward, "send_f"}, {kRecvForward, "recv_f"}, {kSendBackward, "send_b"}, {kRecvBackward, "recv_b"},
      {kUnshard, "unshard"},
      {kReduceGrad, "reduce_grad"}, {kReduceShard, "reduce_shard"}, {kPush, "push"}, {kPull, "pull"},
      {kReduceTied, "reduce_tied"}, {kReducePartial, "reduce_partial"}, {kLoss, "loss"}, {kNorm, "norm"}, {kTokens, "tokens"},
      {kGatherUpdate, "gather_update"}, {kScatterUpdate, "scatter_update"},
      {kNonFinite, "non-finite"}, {kWholeParameter, "whole"}, {kEvaluate, "eval"}, {kStop, "stop"}, {kStart, "start"},
      {kMemory, "memory"}, {kTrace, "trace"}, {kVerdict, "verdict"}, {kWorstUpdate, "worst update"},
      {kReplicaCounters, "counters"}, {kReplicaDigests, "replica digests"}, {kReplicaVerdict, "replica verdict"},
      {kReplicaTensors, "replica tensors"}, {kReplicaWords, "how replicas differ"},
      {kRunLock, "run lock"}, {kBeginning, "beginning"}, {kSetAside, "set aside"},
      {kCheckpointPrepare, "checkpoint prepare"}, {kCheckpointWrite, "checkpoint write"},
      {kCheckpointPublish, "checkpoint publish"}, {kCheckpointBytes, "checkpoint bytes"},
      {kCheckpointInFlight, "checkpoint in flight"}, {kCheckpointHangs, "checkpoint hangs"},
      {kCheckpointModel, "checkpoint model"}, {kCheckpointLoad, "checkpoint load"}, {kCheckpointCount, "checkpoint count"},
      {kCheckpointStep, "checkpoint step"},
      {kJobFacts, "what the ranks were told"}, {kJobWords, "how the ranks differ"}, {kJobMet, "the ranks are of one job"},
      {kStorePlace, "where the store is"}, {kGpuRoom, "all have looked"},
  });
}();
constexpr std::string_view purpose_text(Purpose purpose) { return kPurposes[static_cast<size_t>(purpose)].text; }
static_assert([] {
  for (size_t i = 0; i < std::size(kPurposes); ++i)
    if (static_cast<size_t>(kPurposes[i].purpose) != i) return false;
  return true;
}());

// Whose call it is; CallId::index is its number.
enum class Owner : uint8_t { kNone, kEmbedding, kBlock, kHead, kStage, kBucket };
// When, or what for, its owner makes several.
using arch::CallPhase;

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
