// What every verb that computes needs on its rank: configuration, layout and the world of ranks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "apps/lockstep/command_line.h"
#include "lockstep/comm/world.h"
#include "lockstep/program/layout.h"

namespace lockstep::apps {

struct RankJobOptions {
  std::optional<std::chrono::milliseconds> deadline{};  // of every wait for a peer; unset: train.comm_timeout
  bool twin = false;  // rank 0 also runs the one-rank twin
};

class RankJob {
 public:
  // Joins the world that the identity names (a world of one where there is none), sets the number of compute threads and
  // turns memory accounts on. Ranks that were not told the same end with ConfigError LS1103 (train::require_same_job); those
  // that another launcher has started then judge layout, data and memory, which `lockstep -n` does before it starts them. What goes
  // wrong later must reach the peers: run the verb's work inside guarded().
  explicit RankJob(const CommandLine& command_line, const RankJobOptions& options = {});

  const config::LoadedConfig& loaded() const { return loaded_; }
  const config::RunConfig& config() const { return loaded_.config; }
  const program::Layout& layout() const { return layout_; }
  comm::World& world() const { return *world_; }

 private:
  void judge(const launch::Identity& identity, int threads, bool twin);

  config::LoadedConfig loaded_;
  program::Layout layout_;
  std::unique_ptr<comm::World> world_;
};

// Runs `work`; an exception releases the peers that wait for this rank before it goes on up.
template <typename Work>
auto guarded(const RankJob& job, Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    job.world().abort(error.what());
    throw;
  }
}

}  // namespace lockstep::apps
