#include "apps/lockstep/runtime/backends.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <system_error>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/mpi_world.h"
#include "lockstep/comm/nccl_world.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/config/fields.h"
#include "lockstep/launch/backend_choice.h"
#include "lockstep/launch/region_handoff.h"

namespace lockstep::apps {
namespace {

using config::Backend;
using std::chrono::milliseconds;

struct Join {
  const launch::Identity& identity;
  milliseconds start_deadline;  // of all ranks' coming
  milliseconds deadline;        // of every wait from then on
};

// Ranks that the launcher gives no common name are told by their common parent.
std::string job_name(const launch::Identity& identity) {
  const std::string job = identity.job.empty() ? cat("children of process ", getppid()) : identity.job;
  return identity.attempt.empty() ? job : cat(job, ", attempt ", identity.attempt);
}

launch::SharedRegion region_of(const Join& join) {
  const launch::Identity& identity = join.identity;
  if (identity.region_fd >= 0) return launch::SharedRegion::from_descriptor(identity.region_fd);
  if (identity.alone()) return launch::SharedRegion::anonymous(launch::region_bytes(1));
  return launch::share_region({.job = job_name(identity),
                               .token = identity.token,
                               .rank = identity.rank,
                               .world_size = identity.world_size,
                               .deadline = join.start_deadline});
}

std::unique_ptr<comm::World> join_shared_memory(const Join& join) {
  return std::make_unique<comm::SharedMemoryWorld>(std::make_shared<const launch::SharedRegion>(region_of(join)),
                                                   join.identity.rank, join.identity.world_size,
                                                   comm::SharedMemoryOptions{.deadline = join.deadline});
}

// A port of the loopback interface and a token that rank 0 makes up, told to the ranks of this host.
comm::RendezvousOptions meet_on_host(const Join& join, comm::World& host) {
  comm::RendezvousOptions options{.place = {"127.0.0.1", 0}, .serve = host.rank() == 0};
  std::array<int64_t, 2> told{};
  if (options.serve) {
    options.listening_fd = comm::listen_at(options.place);
    told[0] = comm::port_of(options.listening_fd);
    if (getrandom(&told[1], sizeof told[1], 0) != sizeof told[1])
      throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  const at::Tensor tensor = at::from_blob(told.data(), {2}, at::kLong);
  host.all_ranks("rendezvous")->broadcast(tensor, 0, {.id = program::call_id(program::Purpose::kStorePlace)}).wait();
  options.place.port = static_cast<int>(told[0]);
  options.token = cat(join.identity.token, told[1]);
  return options;
}

// On several hosts: where the launcher says that rank 0 is, or torchrun's agent.
comm::RendezvousOptions meet_at_master(const launch::Identity& identity) {
  if (identity.master_address.empty() || identity.master_port == 0)
    throw EnvironmentError(
        {.code = "LS3121",
         .what = cat("rank ", identity.rank, " of ", identity.world_size, " (", identity.source,
                     "): nothing says where rank 0 is to be found"),
         .way_out = "export MASTER_ADDR and MASTER_PORT to all ranks, an address of rank 0's host and a free port"});
  return {.place = {identity.master_address, identity.master_port},
          .serve = identity.rank == 0 && !identity.agent_store,
          .token = identity.token};
}

// `host`: the ranks, where all are on this one.
std::unique_ptr<comm::World> join_nccl(const Join& join, comm::World* host) {
  const launch::Identity& identity = join.identity;
  comm::RendezvousOptions options = host ? meet_on_host(join, *host) : meet_at_master(identity);
  options.attempt = identity.attempt;
  options.rank = identity.rank;
  options.world_size = identity.world_size;
  options.deadline = join.start_deadline;
  return comm::join_nccl(identity.rank, identity.world_size, comm::open_store(options),
                         {.deadline = join.deadline,
                          .local_rank = identity.local_rank,
                          .address = comm::own_address_towards(options.place),
                          .token = options.token});
}

void announce(const launch::Identity& identity, const launch::BackendChoice& choice) {
  if (identity.started_by_us() || identity.alone() || identity.rank != 0) return;
  print(cat("joining ", identity.world_size, " ranks over ", name_of(choice.backend), " (", choice.why, "); told by ", identity.source, "\n"),
        stderr);
}

// `host` as in join_nccl.
std::unique_ptr<comm::World> join_over(Backend backend, const Join& join, std::unique_ptr<comm::World> host) {
  switch (backend) {
    case Backend::kSharedMemory:
      return host ? std::move(host) : join_shared_memory(join);
    case Backend::kMpi:
      return comm::join_mpi(join.identity.rank, join.identity.world_size,
                            {.deadline = join.deadline, .start_deadline = join.start_deadline});
    case Backend::kNccl:
      return join_nccl(join, host.get());
    case Backend::kAuto:
      break;
  }
  LOCKSTEP_CHECK(false, "backend ", name_of(backend), " was not resolved");
}

// Says why where there is no backend; that waits until the ranks of one host have compared what they were told.
struct Choice {
  std::optional<launch::BackendChoice> made{};
  std::exception_ptr refusal{};
};
Choice choose(const launch::Identity& identity, const config::RunConfig& config) {
  try {
    std::optional<int> gpus;
    if (config.train.device == config::Device::kCuda) gpus = static_cast<int>(at::getNumGPUs());
    return {.made = launch::choose_backend(identity, config, gpus)};
  } catch (const Error&) {
    if (!identity.on_one_host()) throw;
    return {.refusal = std::current_exception()};
  }
}

// The verb and its flags, then `more`, then the versions of Lockstep and LibTorch.
std::vector<train::Fact> job_facts(const CommandLine& command_line, const std::vector<train::Fact>& more) {
  std::vector<train::Fact> facts = {{.name = "verb", .value = command_line.verb}};
  std::map<std::string, std::string> flags;  // written several times: all values, in order
  for (const auto& [name, value] : command_line.common_flags) {
    std::string& all = flags["--" + name];
    all += (all.empty() ? "" : ", ") + (value.empty() ? "given" : value);
  }
  for (const auto& [name, value] : flags) facts.push_back({.name = name, .value = value});
  facts.insert(facts.end(), more.begin(), more.end());
  const std::vector<train::Fact> versions = train::version_facts(LOCKSTEP_VERSION);
  facts.insert(facts.end(), versions.begin(), versions.end());
  return facts;
}

}  // namespace

std::unique_ptr<comm::World> join_world(const CommandLine& command_line, const config::RunConfig& config,
                                        milliseconds deadline, const std::function<std::vector<train::Fact>()>& facts) {
  const launch::Identity& identity = command_line.identity;
  const auto compare = [&](comm::World& world) { train::require_same_job(world, job_facts(command_line, facts())); };
  const Choice choice = choose(identity, config);
  if (choice.made) announce(identity, *choice.made);
  const std::chrono::duration<double> start(config.train.join_timeout.seconds);
  const Join join{.identity = identity, .start_deadline = std::chrono::ceil<milliseconds>(start), .deadline = deadline};
  std::unique_ptr<comm::World> host;
  if (identity.on_one_host()) host = join_shared_memory(join);
  if (host && !identity.alone()) compare(*host);
  if (!choice.made) std::rethrow_exception(choice.refusal);
  const bool compared = host != nullptr;
  std::unique_ptr<comm::World> world = join_over(choice.made->backend, join, std::move(host));
  if (!compared) compare(*world);
  return world;
}

}  // namespace lockstep::apps
