// Saving beside training: the step only waits for a copy of this rank's share, a thread writes it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

struct SaverOptions {
  std::unique_ptr<comm::Communicator> world;  // of all ranks, for this saver alone: its calls run beside those of training
  std::filesystem::path directory;            // as in SaveRequest
  int keep = 0;
};

// At most one save is in flight. Each writes the bytes that save() writes of the same state. Host memory: one copy of
// this rank's share (own_share), kept from save to save. All ranks make the same calls in the same order; what start()
// or wait() return and throw is the outcome of the save before, as save() reports it, alike on all ranks.
class Saver {
 public:
  explicit Saver(SaverOptions options);
  // Lets a save in flight end, as its communicator's deadlines bound it; its outcome is lost.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Waits for the save in flight, if any, and starts this one. `state` is copied when this returns.
  std::optional<SaveResult> start(std::span<const engine::StateTensor> state, const TrainState& train_state);
  // Between two steps: the outcome of the save in flight once it ended on all ranks, nothing before that or without
  // one. Collective over `training`, another communicator of all ranks, while a save is in flight; silent otherwise.
  std::optional<SaveResult> poll(comm::Communicator& training);
  // The outcome of the save in flight; nothing without one.
  std::optional<SaveResult> wait();

 private:
  void stage(std::span<const engine::StateTensor> state);

  SaverOptions options_;
  std::unique_ptr<std::byte[]> buffer_;  // what `staged_` lies in
  size_t capacity_ = 0;                  // bytes of it
  std::vector<engine::StateTensor> staged_;
  TrainState train_state_;
  std::future<SaveResult> in_flight_;  // last: ends before what it reads
};

}  // namespace lockstep::checkpoint
