#include "lockstep/launch/local_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/host_memory.h"
#include "lockstep/launch/identity.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::launch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kTailBytes = 16 * 1024;  // of a rank's output, kept for the report

[[noreturn]] void fail(const std::string& what, int error) {
  throw EnvironmentError({.code = "LS3111",
                          .what = cat("starting ranks: ", what, ": ", std::strerror(error)),
                          .way_out = "see the limits of this shell with 'ulimit -a'"});
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads any more
    text.remove_prefix(static_cast<size_t>(written));
  }
}

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Blocks the signals that end a job and the one that tells of a child's end, and offers them for reading instead.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&set, signal);
    for (const int signal : {SIGINT, SIGHUP})  // a blocked signal is kept even where nohup or the shell ignores it
      if (!is_ignored(signal)) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    descriptor_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (descriptor_.get() < 0) fail("signalfd", errno);
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int descriptor() const { return descriptor_.get(); }
  const sigset_t& before() const { return before_; }
  std::optional<int> next() {
    signalfd_siginfo information{};
    if (read(descriptor_.get(), &information, sizeof information) != sizeof information) return std::nullopt;
    return static_cast<int>(information.ssi_signo);
  }

 private:
  sigset_t before_{};
  Descriptor descriptor_;
};

struct Child {
  int rank = 0;
  pid_t pid = -1;
  Descriptor output;  // of all but the first
  Descriptor log;
  std::string tail;
  bool running = false;
  bool pressed = false;  // was made to end, by us
  int status = 0;        // as waitpid gives it

  bool ended_by_signal() const { return !running && WIFSIGNALED(status); }
  bool ended_by_signal(int signal) const { return ended_by_signal() && WTERMSIG(status) == signal; }
  int exit_code() const { return ended_by_signal() ? static_cast<int>(ExitCode::kPeerLost) : WEXITSTATUS(status); }
  bool returned(ExitCode code) const { return !running && !ended_by_signal() && exit_code() == static_cast<int>(code); }
};

// Between fork and exec: only calls that are safe there.
[[noreturn]] void become(const char* program, char* const* arguments, pid_t parent, const sigset_t& signals, int output,
                         int region) {
  setpgid(0, 0);  // a terminal's Ctrl-C reaches the launcher alone, which passes it on once
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(static_cast<int>(ExitCode::kPeerLost));
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  fcntl(region, F_SETFD, 0);
  signal(SIGUSR2, SIG_IGN);  // asks what a rank is doing: until the rank listens, it must not end it
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  execv(program, arguments);
  constexpr std::string_view text = "error LS3111: this program cannot be run: ";
  (void)!write(STDERR_FILENO, text.data(), text.size());
  (void)!write(STDERR_FILENO, program, std::strlen(program));
  (void)!write(STDERR_FILENO, "\n", 1);
  _exit(static_cast<int>(ExitCode::kEnvironment));
}

// One start of all ranks.
class LocalRanks {
 public:
  struct Outcome {
    int code = 0;
    bool lost = false;  // a rank, and nobody wanted the ranks to end
  };

  LocalRanks(const LocalLaunch& launch, Signals& signals)
      : launch_(launch),
        signals_(signals),
        region_(SharedRegion::memfd(region_bytes(launch.ranks))),
        program_(resolve(launch.program)),
        kills_before_(memory_kills(launch.system_root)) {}
  ~LocalRanks() {
    for (Child& child : children_) end(child, SIGKILL);
    for (Child& child : children_)
      if (child.running) waitpid(child.pid, nullptr, 0);
  }
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  Outcome run() {
    children_.reserve(static_cast<size_t>(launch_.ranks));
    for (int local_rank = 0; local_rank < launch_.ranks; ++local_rank) start(local_rank);
    while (running() > 0) {
      wait();
      while (const std::optional<int> signal = signals_.next()) handle(*signal);
      reap();
      press();
    }
    for (Child& child : children_) read_output(child);
    const Outcome outcome = report();
    return {.code = outcome.code, .lost = outcome.lost && !stop_signal_};
  }

 private:
  // The link itself would name the shell or interpreter that a child becomes later.
  static std::string resolve(const std::filesystem::path& program) {
    std::error_code problem;
    const std::filesystem::path target = std::filesystem::read_symlink(program, problem);
    return problem || program != "/proc/self/exe" ? program.string() : target.string();
  }

  Identity identity_of(int local_rank) const {
    Identity identity = launch_.first;
    identity.world_size = std::max(identity.world_size, launch_.ranks);
    identity.rank += local_rank;
    identity.local_rank = local_rank;
    identity.local_size = launch_.ranks;
    identity.region_fd = region_.descriptor();
    return identity;
  }

  void start(int local_rank) {
    std::vector<std::string> words = {program_};
    words.insert(words.end(), launch_.arguments.begin(), launch_.arguments.end());
    const Identity identity = identity_of(local_rank);
    for (std::string& flag : identity_flags(identity)) words.push_back(std::move(flag));
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);

    Child child;
    child.rank = identity.rank;
    Descriptor writer;
    if (local_rank > 0) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe", errno);
      child.output = Descriptor(ends[0]);
      writer = Descriptor(ends[1]);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
    }
    const pid_t parent = getpid();
    child.pid = fork();
    if (child.pid < 0) fail(cat("fork of rank ", child.rank), errno);
    if (child.pid == 0)
      become(program_.c_str(), arguments.data(), parent, signals_.before(), writer.get(), region_.descriptor());
    setpgid(child.pid, child.pid);  // both sides do it, so that it holds whoever is first
    child.running = true;
    children_.push_back(std::move(child));
  }

  Descriptor open_log(int rank) const {
    std::string number = std::to_string(rank);
    number.insert(0, number.size() < 4 ? 4 - number.size() : 0, '0');
    const std::filesystem::path path = launch_.log_dir / cat("rank-", number, ".out");
    // Never cut: a run that trains there already writes to it too, until this one is refused.
    Descriptor log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (log.get() < 0) fail(path.string(), errno);
    return log;
  }

  int running() const {
    int count = 0;
    for (const Child& child : children_) count += child.running;
    return count;
  }

  void wait() {
    std::vector<pollfd> watched = {{signals_.descriptor(), POLLIN, 0}};
    for (const Child& child : children_)
      if (child.output.get() >= 0) watched.push_back({child.output.get(), POLLIN, 0});
    int timeout = -1;
    if (next_step_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*next_step_ - Clock::now()).count();
      timeout = static_cast<int>(std::max<int64_t>(0, left + 1));
    }
    poll(watched.data(), watched.size(), timeout);
    for (Child& child : children_) read_output(child);
  }

  void read_output(Child& child) {
    if (child.output.get() < 0) return;
    char buffer[4096];
    ssize_t count;
    while ((count = read(child.output.get(), buffer, sizeof buffer)) > 0) {
      const std::string_view text(buffer, static_cast<size_t>(count));
      child.tail += text;
      keep(child, text);
      if (child.tail.size() > 2 * kTailBytes) child.tail.erase(0, child.tail.size() - kTailBytes);
    }
    if (count == 0) child.output = Descriptor();
  }

  // Rank 0 makes the folder when the job is good: what comes before waits in the tail.
  void keep(Child& child, std::string_view text) const {
    if (child.log.get() >= 0) return write_all(child.log.get(), text);
    std::error_code problem;
    if (launch_.log_dir.empty() || !std::filesystem::is_directory(launch_.log_dir, problem)) return;
    child.log = open_log(child.rank);
    write_all(child.log.get(), child.tail);
  }

  void handle(int signal) {
    if (signal == SIGCHLD) return;
    if (signal != SIGUSR2 && stop_signal_) return end_at_once(signal);
    if (signal != SIGUSR2) stop_signal_ = signal;
    // A question is for the rank alone, an end also for what it started.
    for (const Child& child : children_)
      if (child.running) kill(signal == SIGUSR2 ? child.pid : -child.pid, signal);
  }

  void end_at_once(int signal) {
    stop_signal_ = signal;
    for (Child& child : children_) end(child, SIGKILL);
  }

  // To the whole process group of a rank: what it started goes with it.
  static void end(Child& child, int signal) {
    if (!child.running) return;
    child.pressed = true;
    kill(-child.pid, signal);
  }

  void reap() {
    for (Child& child : children_) {
      if (!child.running || waitpid(child.pid, &child.status, WNOHANG) != child.pid) continue;
      child.running = false;
      const int code = child.exit_code();
      if (code == 0) continue;
      ended_.push_back(static_cast<size_t>(&child - children_.data()));
      // Ranks that stop as they were told end one by one, some still saving: no hurry then, a second signal ends them.
      if (!next_step_ && !is_stop(child)) next_step_ = Clock::now() + launch_.grace;
    }
  }

  // After the first failure: SIGTERM when the grace is over, SIGKILL after another.
  void press() {
    if (!next_step_ || Clock::now() < *next_step_) return;
    for (Child& child : children_) end(child, next_signal_);
    next_signal_ = SIGKILL;
    next_step_ = Clock::now() + launch_.grace;
  }

  // Stopped as it was told.
  static bool is_stop(const Child& child) {
    return child.returned(ExitCode::kSaved) || child.returned(ExitCode::kInterrupted);
  }

  bool is_echo(const Child& child) const {
    return child.pressed || child.returned(ExitCode::kPeerLost) || is_stop(child) ||
           (stop_signal_ && child.ended_by_signal(*stop_signal_));
  }

  // The first failure that is not the echo of another's; rank 0 where it failed alike, since its message is shown.
  const Child& culprit() const {
    const Child& rank0 = children_.front();
    for (const size_t place : ended_) {
      const Child& child = children_[place];
      if (!is_echo(child)) return child.status == rank0.status && !is_echo(rank0) ? rank0 : child;
    }
    for (const size_t place : ended_)
      if (!is_stop(children_[place])) return children_[place];
    return children_[ended_.front()];
  }

  bool all_stopped_alike() const {
    return std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
      return is_stop(child) && child.status == children_.front().status;
    });
  }

  // Where the ranks were told to stop and did not: nobody is to blame but the signal.
  int report_signal() const {
    const bool by_person = *stop_signal_ == SIGINT;
    write_all(launch_.error_fd, cat("ended by SIG", sigabbrev_np(*stop_signal_), " before a checkpoint was complete\n"));
    return static_cast<int>(by_person ? ExitCode::kInterrupted : ExitCode::kTerminated);
  }

  // What the kernel did for want of memory, where that may have ended the rank; else empty.
  std::string shortage(const Child& child) const {
    if (!child.ended_by_signal(SIGKILL) || child.pressed) return "";
    return kills_text(kills_before_, memory_kills(launch_.system_root));
  }

  Outcome report() const {
    if (ended_.empty()) return {};
    const Child& child = culprit();
    const int code = child.exit_code();
    if (all_stopped_alike()) return {.code = code};
    if (stop_signal_ && is_echo(child)) return {.code = report_signal()};
    std::string text;
    if (!child.tail.empty()) {
      std::string_view tail = child.tail;
      if (tail.back() == '\n') tail.remove_suffix(1);
      for (const std::string& line : split(tail, '\n')) text += cat("[rank ", child.rank, "] ", line, "\n");
    }
    const std::string short_of_memory = shortage(child);
    if (!short_of_memory.empty()) {
      text += cat("error LS4004: rank ", child.rank, " was ended by signal 9 (Killed): ", short_of_memory,
                  "\n  `lockstep show memory` says what the ranks need, and what to change\n");
    } else if (child.ended_by_signal()) {
      const int signal = WTERMSIG(child.status);
      text += cat("rank ", child.rank, " was ended by signal ", signal, " (", strsignal(signal), ")\n");
    } else {
      text += cat("rank ", child.rank, " ended with exit code ", child.exit_code(), "\n");
    }
    write_all(launch_.error_fd, text);
    return {.code = short_of_memory.empty() ? code : static_cast<int>(ExitCode::kOutOfMemory),
            .lost = code == static_cast<int>(ExitCode::kPeerLost)};
  }

  const LocalLaunch& launch_;
  Signals& signals_;
  SharedRegion region_;
  std::string program_;
  MemoryKills kills_before_;
  std::vector<Child> children_;
  std::vector<size_t> ended_;  // children that failed, in the order of their ends
  std::optional<int> stop_signal_;  // the last one that we were sent
  int next_signal_ = SIGTERM;
  std::optional<Clock::time_point> next_step_;
};

}  // namespace

int launch_local(const LocalLaunch& launch) {
  LOCKSTEP_CHECK(launch.ranks >= 1, "ranks = ", launch.ranks);
  Signals signals;
  for (int restarts = 0;; ++restarts) {
    const LocalRanks::Outcome outcome = LocalRanks(launch, signals).run();
    if (!outcome.lost || restarts == launch.max_restarts) return outcome.code;
    write_all(launch.error_fd,
              cat("starting all ranks again (", restarts + 1, " of ", launch.max_restarts, " restarts)\n"));
  }
}

}  // namespace lockstep::launch
