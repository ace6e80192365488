#include "lockstep/train/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::string_view kPrefix = "holder-";
constexpr milliseconds kLook{500};        // between two looks at another's counter
constexpr milliseconds kLastWords{5000};  // for giving the lock back on a file system that may hang

std::optional<int64_t> number_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto number = parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return number && *number > 0 ? number : std::nullopt;
}

fs::path file_of(const fs::path& folder, int64_t number) { return folder / cat(kPrefix, number); }

std::vector<int64_t> numbers_in(const fs::path& folder) {
  std::vector<int64_t> numbers;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    if (const auto number = number_of(entry.path().filename().string())) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

[[noreturn]] void fail(const char* doing, const fs::path& path, int code) {
  throw EnvironmentError({.code = "LS3101", .what = cat(doing, " ", path.string(), ": ", std::strerror(code))});
}

// Nothing where the file is gone.
std::optional<std::string> read_lock(const fs::path& path) {
  std::string text(4096, '\0');
  // Opened anew each time: only then does a network file system show what another host has written.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.open() && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (!file.open()) fail("cannot open", path, errno);
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  if (got < 0) fail("cannot read", path, errno);
  text.resize(static_cast<size_t>(got));
  return text;
}

bool write_lock(int file, const LockContent& content) {
  const std::string text = content.text();
  return ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) && ::fsync(file) == 0;
}

[[noreturn]] void refuse(const fs::path& folder, const std::string& who, bool same_host) {
  throw CheckpointError(
      {.code = "LS1315",
       .what = cat("another run trains in ", folder.parent_path().string(), ": ", who),
       .way_out = cat("choose another run.name or run.dir, or let that one end first",
                      same_host ? " (kill -TERM lets it save)" : cat("; if it is no run, remove ", folder.string()))});
}

}  // namespace

// The lock that is held, and what the thread that shows it uses: it outlives the lock where the file system hangs.
struct RunLock::Beating {
  Beating(fs::path given_path, Descriptor given_file, LockContent given_content)
      : path(std::move(given_path)), file(std::move(given_file)), content(std::move(given_content)) {}

  void run(milliseconds beat) {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, beat, [this] { return ending; })) {
      lock.unlock();
      ++content.beats;
      write_lock(file.get(), content);  // a beat that fails is made up by the next
      if (is_taken()) lost = true;
      lock.lock();
    }
    lock.unlock();
    content.released = true;
    write_lock(file.get(), content);  // where this fails, the process will be gone
    lock.lock();
    ended = true;
    changed.notify_all();
  }
  // By another: a later lock, or another file of the name. A folder that somebody has removed is nobody's.
  bool is_taken() const {
    const std::vector<int64_t> numbers = numbers_in(path.parent_path());
    if (numbers.empty()) return false;
    struct stat mine {}, there {};
    if (numbers.back() != number_of(path.filename())) return true;
    return ::fstat(file.get(), &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
           (mine.st_ino != there.st_ino || mine.st_dev != there.st_dev);
  }

  const fs::path path;
  const Descriptor file;
  LockContent content;  // the thread's
  std::atomic<bool> lost = false;
  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false, ended = false;
};

struct RunLock::Watched {
  int64_t number = 0;
  std::string text{};  // as it was first seen
  std::string who{};
  milliseconds waited{0};
};

RunLock::RunLock(fs::path run_directory, RunLockOptions options)
    : folder_(std::move(run_directory) / "lock"), options_(std::move(options)) {}

RunLock::~RunLock() {
  if (!beating_) return;
  std::unique_lock lock(beating_->mutex);
  beating_->ending = true;
  beating_->changed.notify_all();
  const bool ended = beating_->changed.wait_for(lock, kLastWords, [this] { return beating_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

bool RunLock::try_take() {
  std::error_code code;
  fs::create_directories(folder_, code);
  if (code) fail("cannot make", folder_, code.value());
  const std::vector<int64_t> numbers = numbers_in(folder_);
  if (numbers.empty()) return take(1, "");
  const int64_t number = numbers.back();
  const std::optional<std::string> text = read_lock(file_of(folder_, number));
  if (!text) return pause();  // gone since it was listed: somebody has taken over
  const std::optional<LockContent> content = LockContent::parse(*text);
  if (content && content->released) return take(number + 1, "");
  const std::string who = content ? content->holder.words() : "a lock that nobody has signed";
  if (content && content->holder.can_be_seen_from(options_.self)) {
    const LockHolder now = LockHolder::of(content->holder.pid);
    if (now.started != 0 && now.started == content->holder.started) refuse(folder_, who, true);
    return take(number + 1, cat(who, ", which has ended without giving it back"));
  }
  if (!watched_ || watched_->number != number) {
    watched_ = std::make_unique<Watched>(Watched{.number = number, .text = *text, .who = who});
  } else if (watched_->text != *text) {
    refuse(folder_, who, false);
  }
  if (watched_->waited >= options_.patience)
    return take(number + 1, cat(who, ", which gave no sign of life for ",
                                format_duration(std::chrono::duration<double>(options_.patience).count())));
  watched_->waited += kLook;
  return pause();
}

// False: the lock is not held.
bool RunLock::pause() {
  options_.pause ? options_.pause(kLook) : std::this_thread::sleep_for(kLook);
  return false;
}

std::string RunLock::watched() const {
  if (!watched_ || beating_) return "";
  return cat("the lock of ", folder_.parent_path().string(), " is held by ", watched_->who, ": watching for ",
             format_duration(std::chrono::duration<double>(options_.patience).count()), " whether it is alive");
}

// False where somebody else was faster.
bool RunLock::take(int64_t number, const std::string& from) {
  if (options_.before_take) options_.before_take();
  const fs::path path = file_of(folder_, number);
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file.open() && errno == EEXIST) return false;
  if (!file.open()) fail("cannot create", path, errno);
  const LockContent content{.holder = options_.self};
  if (!write_lock(file.get(), content)) {
    const int why = errno;
    ::unlink(path.c_str());
    fail("cannot write", path, why);
  }
  // One who was slow to take the lock after this one finds it gone, and the one behind it there.
  const std::vector<int64_t> numbers = numbers_in(folder_);
  if (numbers.empty() || numbers.back() != number) {
    ::unlink(path.c_str());
    return false;
  }
  std::error_code ignored;
  for (const int64_t earlier : numbers) {
    if (earlier < number) fs::remove(file_of(folder_, earlier), ignored);
  }
  took_over_ = from;
  beating_ = std::make_shared<Beating>(path, std::move(file), content);
  thread_ = std::thread([state = beating_, beat = options_.beat] { state->run(beat); });
  return true;
}

void RunLock::check() const {
  if (beating_ && beating_->lost) lost();
}

void RunLock::look() const {
  if (beating_ && (beating_->lost || beating_->is_taken())) lost();
}

void RunLock::lost() const {
  const std::vector<int64_t> numbers = numbers_in(folder_);
  const auto text = numbers.empty() ? std::nullopt : read_lock(file_of(folder_, numbers.back()));
  const std::optional<LockContent> now = text ? LockContent::parse(*text) : std::nullopt;
  throw CheckpointError({.code = "LS1316",
                         .what = cat("this run gave no sign of life for so long that another has taken over ",
                                     folder_.parent_path().string(),
                                     now && !(now->holder == options_.self) ? cat(": ", now->holder.words()) : ""),
                         .way_out = "what it had saved is kept; let the other one go on"});
}

}  // namespace lockstep::train
