// What a run must remember beside its tensors: train_state.json of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/base/json.h"

namespace lockstep::checkpoint {

struct TrainState {
  int64_t step = 0;              // optimizer steps done
  int64_t consumed_samples = 0;  // the data position: sample i is a pure function of (seed, i)
  int64_t consumed_tokens = 0;
  uint64_t seed = 0;
  Json data = Json::object();   // identity of the data and its order, as the trainer states it: compared on resume
  Json model = Json::object();  // the model's configuration
  std::string version{};        // of Lockstep
  // What was trained with, by name, as the trainer states it: what differs when a run goes on is told, never refused. Empty in
  // checkpoints of versions that did not keep it.
  Json settings = Json::object();
  // Load of the experts in the last step, by layer and expert, where the next step goes by it (engine/expert_loads.h); else {}.
  Json last_loads = Json::object();
  // Information only: any layout loads what any layout saved.
  int world_size = 0;
  std::string layout{};
  bool operator==(const TrainState&) const = default;
};

std::string train_state_text(const TrainState& state);
// DataError LS1205 or CheckpointError LS1302 naming `origin` and the field.
TrainState parse_train_state(std::string_view text, std::string_view origin);

}  // namespace lockstep::checkpoint
