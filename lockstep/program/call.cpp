#include "lockstep/program/call.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/check.h"

namespace lockstep::program {
namespace {

CallId owned(Purpose purpose, Owner owner, int number) {
  LOCKSTEP_CHECK(number >= 0 && number <= std::numeric_limits<int16_t>::max(), "a call of owner number ", number);
  return {.purpose = purpose, .owner = owner, .index = static_cast<int16_t>(number)};
}

CallId with_name(CallId id, std::string_view name) {
  id.name = {};
  std::copy_n(name.begin(), std::min(name.size(), id.name.size()), id.name.begin());
  return id;
}

std::string owner_text(const CallId& id) {
  const bool every = id.index == CallId::kEvery;
  switch (id.owner) {
    case Owner::kNone:
      return "";
    case Owner::kEmbedding:
      return "embed";
    case Owner::kBlock:
      return every ? "blocks.*" : cat("blocks.", id.index);
    case Owner::kHead:
      return "head";
    case Owner::kStage:
      return every ? "stage" : cat("stage ", id.index);
    case Owner::kBucket:
      return every ? "bucket" : cat("bucket ", id.index);
  }
  throw InternalError("no such owner of a call");
}

constexpr std::array<std::string_view, 7> kPhaseTexts = {"", "forward", "backward", "gather", "softmax", "logits", "size"};
static_assert(kPhaseTexts[static_cast<size_t>(CallPhase::kSize)] == "size");

}  // namespace

CallId CallId::with(CallPhase other) const {
  CallId id = *this;
  id.phase = other;
  return id;
}

CallId CallId::of_part(std::string_view part) const { return with_name(*this, part); }

CallId CallId::of_every_owner() const {
  CallId id = *this;
  if (owner == Owner::kBlock || owner == Owner::kStage || owner == Owner::kBucket) id.index = kEvery;
  return id;
}

CallId call_id(Purpose purpose) { return {.purpose = purpose}; }
CallId call_of_bucket(Purpose purpose, int bucket) { return owned(purpose, Owner::kBucket, bucket); }
CallId call_of_stage(Purpose purpose, int stage) { return owned(purpose, Owner::kStage, stage); }

CallId call_of_layer(Purpose purpose, const arch::LayerSpec& layer) {
  switch (layer.kind) {
    case arch::LayerKind::kEmbedding:
      return owned(purpose, Owner::kEmbedding, 0);
    case arch::LayerKind::kBlock:
      return owned(purpose, Owner::kBlock, layer.index - 1);  // the embedding is layer 0
    case arch::LayerKind::kHead:
      return owned(purpose, Owner::kHead, 0);
  }
  throw InternalError("no such kind of a layer");
}

CallId call_of_parameter(std::string_view name) { return with_name(call_id(Purpose::kWholeParameter), name); }
CallId named_call(std::string_view name) { return with_name({}, name); }

std::string call_text(const CallId& id) {
  std::string text(id.purpose == Purpose::kLayer ? "" : purpose_text(id.purpose));
  const auto add = [&text](std::string_view word, const char* between = " ") {
    if (!word.empty() && !text.empty()) text += between;
    text += word;
  };
  add(owner_text(id));
  add({id.name.data(), strnlen(id.name.data(), id.name.size())}, id.purpose == Purpose::kLayer ? "." : " ");
  add(kPhaseTexts.at(static_cast<size_t>(id.phase)));
  return text;
}

}  // namespace lockstep::program
