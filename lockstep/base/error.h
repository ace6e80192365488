// The two kinds of failure: a typed exception for bad input, a bad environment or a lost peer (Error and its children),
// and InternalError for a broken invariant (thrown by base/check.h). The library never calls exit(); a verb turns an
// Error into its message on stderr and its exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

// What the program `lockstep` returns; see docs/errors.md.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,        // command line or configuration, with file and line or the equation
  kEnvironment = 3,  // no GPU, no LibTorch, a port, a system call
  kOutOfMemory = 4,
  kDiverged = 5,    // a non-finite loss or gradient
  kPeerLost = 6,    // a rank died or never arrived
  kData = 7,        // an input file: missing, malformed, too short, token ids beyond the vocabulary
  kCheckpoint = 8,  // a checkpoint: none that is whole, damaged, or of another model
  kMismatch = 9,    // what must be the same is not: a layout and its twin (`verify`), replicas
  kInternal = 70,
  kSaved = 75,         // stopped after saving a checkpoint: start again to go on
  kInterrupted = 130,  // by SIGINT, saved or not
  kTerminated = 143,   // by SIGTERM or SIGUSR1, before a checkpoint was complete
};

// One message: what is wrong with the values filled in, where (file:line:column, or empty), and the way out.
struct Message {
  std::string code;     // "LS1042": stable, one per situation
  std::string what;     // one line; further lines are indented
  std::string where{};  // "run.toml:12:1"
  std::string way_out{};
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, Message message);
  ExitCode exit_code() const { return exit_code_; }
  const Message& message() const { return message_; }

 private:
  ExitCode exit_code_;
  Message message_;
};

// One class per exit code, so that callers can catch what they can mend.
template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(Message message) : Error(kCode, std::move(message)) {}
};
using ConfigError = ErrorOf<ExitCode::kUsage>;
using EnvironmentError = ErrorOf<ExitCode::kEnvironment>;
using OutOfMemoryError = ErrorOf<ExitCode::kOutOfMemory>;
using DivergedError = ErrorOf<ExitCode::kDiverged>;
using PeerLostError = ErrorOf<ExitCode::kPeerLost>;
using DataError = ErrorOf<ExitCode::kData>;
using CheckpointError = ErrorOf<ExitCode::kCheckpoint>;

// A broken invariant of ours, never reachable by input.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace lockstep
