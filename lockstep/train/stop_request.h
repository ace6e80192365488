// What a run is asked for from outside: to save, or to stop. Signals reach one rank, switch files are seen by rank 0
// alone: the ranks agree on the largest request between two steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <signal.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::train {

// In the order of who wins.
enum class Request : int64_t {
  kNone,
  kSave,       // file `save`: save and go on
  kRequeue,    // SIGTERM, SIGUSR1, SIGHUP, --stop-after: save; the job is to be started again
  kStop,       // file `stop`: save; somebody wants the run to rest
  kInterrupt,  // SIGINT: save; the person is still there
};

inline bool stops(Request request) { return request > Request::kSave; }
ExitCode exit_code(Request request);        // kOk, kSaved or kInterrupted
std::string describe(Request request);      // "SIGTERM, SIGUSR1, SIGHUP or --stop-after"

// Takes the switch files of a run directory: a file that is there is removed, and is the request.
Request take_switch_file(const std::filesystem::path& run_directory);

// Listens to SIGTERM, SIGUSR1, SIGHUP and SIGINT while it lives, once per process at a time; one of the last two that was
// ignored (SIGHUP by `nohup`, SIGINT by a shell's background) stays so. With `second_ends` the second signal ends the process at once, with
// kInterrupted or kTerminated; ranks below launch_local leave that to it, since batch systems signal every process.
class StopSignals {
 public:
  explicit StopSignals(bool second_ends);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  Request request() const;

 private:
  static constexpr std::array kSignals = {SIGTERM, SIGUSR1, SIGHUP, SIGINT};
  std::array<struct sigaction, kSignals.size()> before_{};
};

// All ranks act on the same request behind the same step.
class RequestAgreement {
 public:
  // `world` outlives it; `mine` is what this rank has been asked for so far.
  RequestAgreement(comm::Communicator& world, std::function<Request()> mine) : world_(world), mine_(std::move(mine)) {}

  // Collective, behind step `step`. While a step is pending nobody waits here: what was asked behind the step before counts.
  Request agreed(int64_t step, bool pending);

 private:
  void ask(int64_t step);

  comm::Communicator& world_;
  std::function<Request()> mine_;
  struct Asked {
    int64_t step = 0;
    at::Tensor value{};  // a Request; undefined: nothing is in flight
    comm::Work work{};
  };
  Asked asked_;
};

}  // namespace lockstep::train
