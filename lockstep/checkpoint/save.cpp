#include "lockstep/checkpoint/save.h"

#include <unistd.h>

#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/agree.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/checkpoint/shard_writer.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using program::Purpose;

class Writing {
 public:
  explicit Writing(const SaveRequest& request)
      : request_(request),
        final_(request.directory / step_name(request.train_state.step)),
        temporary_(request.directory / cat(kTemporaryPrefix, step_name(request.train_state.step))) {}

  SaveResult run() {
    together(Purpose::kCheckpointPrepare, "prepare", [this] { on_rank_0(&Writing::prepare); });
    together(Purpose::kCheckpointWrite, "write", [this] { write_own(); });
    together(Purpose::kCheckpointPublish, "publish", [this] { on_rank_0(&Writing::publish); });
    result_.path = final_;
    result_.step = request_.train_state.step;
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    result_.bytes = static_cast<uint64_t>(
        broadcast_number(request_.world, program::call_id(Purpose::kCheckpointBytes), static_cast<int64_t>(result_.bytes)));
    return std::move(result_);
  }

 private:
  void together(Purpose purpose, const std::string& part, const std::function<void()>& work) {
    const std::string problem = agree(request_.world, program::call_id(purpose), [&] {
      tell(part);
      work();
      tell("");
    });
    if (problem.empty()) return;
    throw CheckpointError({.code = "LS1306",
                           .what = cat("checkpoint of step ", request_.train_state.step, " was not written: ", problem),
                           .way_out = cat("earlier checkpoints in ", request_.directory.string(), " are untouched")});
  }
  void tell(const std::string& doing) const {
    if (request_.progress) request_.progress(doing);
  }
  void on_rank_0(void (Writing::*work)()) {
    if (request_.world.rank() == 0) (this->*work)();
  }

  void prepare() {
    if (request_.guard) request_.guard();
    fs::create_directories(request_.directory);
    repair_steps(request_.directory);
    remove_temporary(request_.directory);
    fs::create_directory(temporary_);
  }

  // Not named *.safetensors: readers of the folder take every such file.
  fs::path fragment(int rank) const { return temporary_ / cat("fragment-", rank, ".json"); }

  void write_own() {
    const int rank = request_.world.rank();
    if (!fs::is_directory(temporary_))
      throw CheckpointError({.code = "LS1306",
                             .what = cat("cannot see ", temporary_.string(), ", which rank 0 made: ",
                                         "checkpoints need a file system that all ranks share")});
    Manifest own = write_shards(temporary_, request_.state, rank, request_.progress);
    if (!request_.copied) request_.world.confirm();
    own.step = request_.train_state.step;
    write_file(fragment(rank), manifest_text(own));
  }

  Manifest gather() const {
    Manifest manifest{.step = request_.train_state.step, .version = request_.train_state.version};
    for (int rank = 0; rank < request_.world.size(); ++rank) {
      const std::string path = fragment(rank).string();
      manifest.merge(parse_manifest(read_file(path), path, /*partial=*/true));
    }
    check_cover(manifest, temporary_.string());
    return manifest;
  }

  void publish() {
    Manifest manifest = gather();
    const std::string state = train_state_text(request_.train_state);
    write_file(temporary_ / kTrainStateName, state);
    manifest.files[kTrainStateName] = {.size = state.size(), .hash = hash64(state)};
    for (int rank = 0; rank < request_.world.size(); ++rank) fs::remove(fragment(rank));
    for (const char* sub : {"model", "optim"}) {
      if (fs::exists(temporary_ / sub)) sync_directory(temporary_ / sub);
    }
    write_file(temporary_ / kManifestName, manifest_text(manifest));
    if (request_.guard) request_.guard();
    publish_step(temporary_, final_);
    result_.warning = point_latest(request_.directory, final_.filename().string());
    read_manifest(final_);
    result_.bytes = manifest.total_bytes();
    result_.removed = remove_old_steps(request_.directory, manifest.step, request_.keep);
  }

  const SaveRequest& request_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  fs::path final_;
  fs::path temporary_;
  SaveResult result_{};
};

}  // namespace

SaveResult save(const SaveRequest& request) {
  return Writing(request).run();
}

}  // namespace lockstep::checkpoint
