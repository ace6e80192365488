#include "lockstep/launch/backend_choice.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::launch {
namespace {

using config::Backend;

[[noreturn]] void refuse(const Identity& identity, const std::string& what, const std::string& way_out) {
  throw EnvironmentError(
      {.code = "LS3121",
       .what = cat("rank ", identity.rank, " of ", identity.world_size, " (", identity.source, "): ", what),
       .way_out = way_out});
}

std::string hosts_text(const Identity& identity) {
  if (identity.on_one_host()) return "all ranks are on one host";
  if (identity.local_size == 0) return "nothing says how many ranks are on this host";
  return cat(identity.local_size, " of ", identity.world_size, " ranks are on this host");
}

bool can_start_mpi(Launcher launcher) {
  return launcher == Launcher::kOpenMpi || launcher == Launcher::kPmi || launcher == Launcher::kSlurm;
}

// NCCL refuses two ranks on one GPU. Sharing one is slow and must be meant, so "auto" does not choose it.
void require_a_gpu_each(const Identity& identity, std::optional<int> gpus) {
  if (!gpus || *gpus == 0 || identity.local_size <= *gpus) return;
  const std::string others = identity.on_one_host() ? "shared_memory" : "mpi";
  refuse(identity,
         cat("nccl joins ranks that have a GPU each, but ", identity.local_size, " ranks are on this host with ", *gpus,
             *gpus == 1 ? " GPU" : " GPUs"),
         cat("start ", *gpus, *gpus == 1 ? " rank" : " ranks", " on this host; or set parallel.backend = \"", others,
             "\": ranks then share a GPU, and tensors go through the host, which is slow"));
}

BackendChoice asked_for(const Identity& identity, const config::RunConfig& config, std::optional<int> gpus) {
  const Backend backend = config.parallel.backend;
  const std::string name = cat("parallel.backend = \"", name_of(backend), "\"");
  if (backend == Backend::kSharedMemory && identity.local_size != 0 && !identity.on_one_host())
    refuse(identity, cat(name, " joins the ranks of one host, but ", hosts_text(identity)),
           "start the ranks with mpirun and parallel.backend = \"mpi\"");
  if (backend == Backend::kMpi && !can_start_mpi(identity.launcher))
    refuse(identity, cat(name, " needs ranks that mpirun (or srun --mpi=pmix) has started"),
           cat("mpirun -n ", identity.world_size, " lockstep ...; or leave parallel.backend at \"auto\""));
  if (backend == Backend::kNccl && config.train.device != config::Device::kCuda)
    refuse(identity,
           cat(name, " moves tensors between GPUs, but train.device = \"", name_of(config.train.device), "\""),
           "set train.device = \"cuda\", or leave parallel.backend at \"auto\"");
  if (backend == Backend::kNccl) require_a_gpu_each(identity, gpus);
  return {.backend = backend, .why = cat(name, "; ", hosts_text(identity))};
}

}  // namespace

BackendChoice choose_backend(const Identity& identity, const config::RunConfig& config, std::optional<int> gpus) {
  if (identity.alone()) return {.backend = Backend::kSharedMemory, .why = "one rank"};
  if (config.parallel.backend != Backend::kAuto) return asked_for(identity, config, gpus);
  if (config.train.device == config::Device::kCuda) {
    require_a_gpu_each(identity, gpus);
    return {.backend = Backend::kNccl, .why = cat("ranks compute on GPUs; ", hosts_text(identity))};
  }
  if (identity.on_one_host()) return {.backend = Backend::kSharedMemory, .why = hosts_text(identity)};
  if (identity.local_size != 0 && identity.launcher == Launcher::kOpenMpi)
    return {.backend = Backend::kMpi, .why = cat("under mpirun, ", hosts_text(identity))};
  refuse(
      identity, cat("no backend joins these ranks on its own: ", hosts_text(identity)),
      identity.local_size == 0
          ? "if all are on this host: --parallel.backend=shared_memory; if mpirun started them: --parallel.backend=mpi"
          : "start them with mpirun, or with srun --mpi=pmix and --parallel.backend=mpi; GPUs use nccl");
}

}  // namespace lockstep::launch
