// Saving beside training: the step only waits for a copy of this rank's share, a thread writes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

struct SaverOptions {
  std::unique_ptr<comm::Communicator> world;  // of all ranks, for this saver alone: its calls run beside those of training
  std::filesystem::path directory;            // as in SaveRequest
  int keep = 0;
  std::chrono::milliseconds stall_timeout{600000};  // longest time without progress
  Progress progress{};                              // called on the thread that writes
  std::function<void()> guard{};                    // as in SaveRequest; called on that thread too
};

// At most one save is in flight. Each writes the bytes that save() writes of the same state. Host memory: one copy of
// this rank's share (own_share), kept from save to save. All ranks make the same calls in the same order; what start()
// or wait() return and throw is the outcome of the save before, as save() reports it, alike on all ranks.
//
// A save that hangs (a file system that does not answer) is given up: CheckpointError LS1314 names the rank, what it was
// doing and for how long. It cannot be ended, so its thread is left alone from then on; earlier steps are whole.
class Saver {
 public:
  explicit Saver(SaverOptions options);
  // Lets a save in flight end, as its communicator's deadlines and `stall_timeout` bound it; its outcome is lost.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Waits for the save in flight, if any, and starts this one. `state` is copied when this returns; PeerLostError where it may
  // be what an aborted call has left (comm::Communicator::confirm), and nothing is saved.
  std::optional<SaveResult> start(std::span<const engine::StateTensor> state, const TrainState& train_state);
  // Between two steps: the outcome of the save in flight once it ended on all ranks, nothing before that or without
  // one. Collective over `training`, another communicator of all ranks, while a save is in flight; silent otherwise. A
  // save that hangs on one rank, or whose ranks have lost one another, is given up on all of them.
  std::optional<SaveResult> poll(comm::Communicator& training);
  // The outcome of the save in flight; nothing without one.
  std::optional<SaveResult> wait();

  // Thread-safe: the last collectives of saving, and what the save in flight does: "writing .../x.safetensors for 2 s".
  std::string last_calls() const;
  std::string activity() const;

 private:
  struct Job;
  void stage(std::span<const engine::StateTensor> state);
  std::string problem() const;
  [[noreturn]] void give_up(const std::string& problem);

  std::shared_ptr<Job> job_;  // all that the thread uses: it outlives this object where the save hangs
  std::thread thread_;        // joinable while a save is in flight
  bool given_up_ = false;
};

}  // namespace lockstep::checkpoint
