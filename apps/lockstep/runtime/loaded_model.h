// A model in memory, alone or as one of several ranks that hold it together.
#pragma once

#include <memory>

#include "apps/lockstep/generate_ranks.h"
#include "apps/lockstep/runtime/model_source.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/world.h"
#include "lockstep/model/decode.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::apps {

class LoadedModel {
 public:
  // Joins the other ranks where this process is one of several, sets the number of compute threads (--threads, or this
  // rank's share of the cores) and reads this rank's part of the parameters. Ranks that were not told the same end with
  // ConfigError LS1103, those that cannot share the heads or the experts of the model then with LS1007.
  LoadedModel(const CommandLine& command_line, const ModelSource& source);

  model::Decoder& decoder() { return *decoder_; }
  bool is_first() const { return !world_ || world_->rank() == 0; }
  int ranks() const { return world_ ? world_->size() : 1; }
  // Seconds that this rank waited for others since the last call.
  double take_communication_seconds();

  // Runs `work`; an exception releases the peers that wait for this rank.
  template <typename Work>
  auto guarded(Work work) {
    try {
      return work();
    } catch (const std::exception& error) {
      if (world_) world_->abort(error.what());
      throw;
    }
  }

 private:
  void load(const ModelSource& source, const GenerateDegrees& degrees);

  std::unique_ptr<comm::World> world_;
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<parallel::TensorGroup> group_;
  std::unique_ptr<comm::Communicator> context_communicator_;
  std::unique_ptr<parallel::ContextGroup> context_;  // null where each rank has whole texts
  std::unique_ptr<comm::Communicator> expert_communicator_;
  std::unique_ptr<parallel::ExpertGroup> experts_;  // null where each rank has all experts, whole
  std::unique_ptr<engine::ParameterStore> store_;
  std::unique_ptr<model::Decoder> decoder_;
};

}  // namespace lockstep::apps
