#include "lockstep/comm/mpi_world.h"

#include <dlfcn.h>

#include <filesystem>
#include <map>

#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/mpi_plugin_file.h"
#include "lockstep/comm/mpi_transport.h"

namespace lockstep::comm {
namespace {

class MpiWorld : public World {
 public:
  MpiWorld(std::shared_ptr<MpiJob> job, const MpiOptions& options)
      : job_(std::move(job)), options_(options), tags_(static_cast<size_t>(job_->size())) {}
  ~MpiWorld() override { job_->end(std::uncaught_exceptions() == exceptions_at_start_); }

  int rank() const override { return job_->rank(); }
  int size() const override { return job_->size(); }
  std::string backend() const override { return "mpi"; }
  void abort(const std::string& reason) override { job_->abort(reason); }

  std::unique_ptr<Communicator> communicator(const std::vector<int>& ranks, const std::string& axis) override {
    MpiGroup group{.name = group_name(axis, ranks), .ranks = ranks, .rank = group_rank(axis, ranks, rank(), size())};
    group.key = hash64(cat(group.name, "#", made_[group.name]++));
    for (const int peer : ranks) group.tags.push_back(tag_with(peer));
    return std::make_unique<Communicator>(
        std::make_unique<MpiTransport>(job_, std::move(group)),
        CommunicatorOptions{.axis = axis, .ranks = ranks, .deadline = options_.deadline});
  }

 private:
  // Two ranks make the groups that both are in, in the same order: its number among them tells their messages apart, and
  // nobody needs to be asked. 0 is for letters.
  int tag_with(int peer) {
    const int tag = ++tags_[static_cast<size_t>(peer)];
    if (tag <= job_->api().largest_tag()) return tag;
    throw EnvironmentError({.code = "LS3006",
                            .what = cat("MPI has no tag for another group with rank ", peer, ": ", tag - 1,
                                        " have been made"),
                            .way_out = "make each communicator once and keep it"});
  }

  std::shared_ptr<MpiJob> job_;
  MpiOptions options_;
  std::vector<int> tags_;            // used so far, by peer
  std::map<std::string, int> made_;  // groups made of the same ranks and axis: tells the second from the first
  int exceptions_at_start_ = std::uncaught_exceptions();
};

// The folder of the library (or program) that this code is part of.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&join_mpi), &info) || !info.dli_fname) return ".";
  return std::filesystem::weakly_canonical(info.dli_fname).parent_path();
}

}  // namespace

std::unique_ptr<World> join_mpi(int rank, int world_size, const MpiOptions& options) {
  const auto job = std::make_shared<MpiJob>(std::unique_ptr<MpiApi>(load_mpi_plugin(own_folder(), LOCKSTEP_WITH_MPI)()));
  job->start({.joining = options.start_deadline, .peers = options.deadline});
  if (job->rank() == rank && job->size() == world_size) return std::make_unique<MpiWorld>(job, options);
  const EnvironmentError error(
      {.code = "LS3031",
       .what = cat("this process is rank ", rank, " of ", world_size, ", but for MPI (", job->api().library(), ") it is rank ",
                   job->rank(), " of ", job->size()),
       .way_out = "start the ranks with the mpirun of this MPI library, and let it alone number them"});
  job->end(false);
  throw error;
}

}  // namespace lockstep::comm
