#include "lockstep/train/stop_request.h"

#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <system_error>

namespace lockstep::train {
namespace {

// All that a handler may touch.
volatile sig_atomic_t last_signal = 0;
volatile sig_atomic_t second_signal_ends = 0;

void on_signal(int signal) {
  if (last_signal != 0 && second_signal_ends != 0)
    _exit(static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated));
  last_signal = signal;
}

bool take(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::remove(file, ignored);
}

}  // namespace

ExitCode exit_code(Request request) {
  if (request == Request::kInterrupt) return ExitCode::kInterrupted;
  return request == Request::kRequeue ? ExitCode::kSaved : ExitCode::kOk;
}

std::string describe(Request request) {
  switch (request) {
    case Request::kNone:
      return "nothing";
    case Request::kSave:
      return "the file 'save'";
    case Request::kRequeue:
      return "SIGTERM, SIGUSR1, SIGHUP or --stop-after";
    case Request::kStop:
      return "the file 'stop'";
    case Request::kInterrupt:
      return "SIGINT";
  }
  return "";
}

Request take_switch_file(const std::filesystem::path& run_directory) {
  const bool save = take(run_directory / "save");
  if (take(run_directory / "stop")) return Request::kStop;
  return save ? Request::kSave : Request::kNone;
}

StopSignals::StopSignals(bool second_ends) {
  last_signal = 0;
  second_signal_ends = second_ends ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    const bool may_be_ignored = kSignals[i] == SIGINT || kSignals[i] == SIGHUP;
    if (!may_be_ignored || before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

Request StopSignals::request() const {
  if (last_signal == 0) return Request::kNone;
  return last_signal == SIGINT ? Request::kInterrupt : Request::kRequeue;
}

Request RequestAgreement::agreed(int64_t step, bool pending) {
  if (!asked_.value.defined()) ask(step);
  if (pending && asked_.step == step) return Request::kNone;
  asked_.work.wait();
  const auto request = static_cast<Request>(asked_.value.item<int64_t>());
  asked_ = {};
  if (pending && request == Request::kNone) ask(step);
  return request;
}

void RequestAgreement::ask(int64_t step) {
  asked_ = {.step = step, .value = at::tensor({static_cast<int64_t>(mine_())}, at::kLong)};
  asked_.work = world_.all_reduce(
      asked_.value, {.id = program::call_id(program::Purpose::kStop), .algorithm = program::Algorithm::kDirect, .op = comm::ReduceOp::kMax});
}

}  // namespace lockstep::train
