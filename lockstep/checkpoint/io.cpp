#include "lockstep/checkpoint/io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_read(const fs::path& path, std::string_view reason) {
  throw DataError({.code = "LS1204", .what = cat("cannot read ", path.string(), ": ", reason)});
}

[[noreturn]] void fail_write(const char* doing, const fs::path& path) {
  const int code = errno;
  throw EnvironmentError({.code = "LS3101", .what = cat(doing, " ", path.string(), ": ", std::strerror(code))});
}

}  // namespace

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on regular files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd_ < 0) {
    const int code = errno;
    if (code == ENOENT) require_file(path_);
    fail_read(path_, code == ELOOP ? "it is a symbolic link" : std::strerror(code));
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    fail_read(path_, "not a regular file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void InputFile::read(uint64_t offset, void* out, size_t size) const {
  auto* to = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = ::pread(fd_, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(path_, std::strerror(errno));
    if (got == 0) fail_read(path_, cat("it ends at byte ", offset, ", ", size, " bytes too early"));
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
}

OutputFile::OutputFile(fs::path path, Progress progress) : path_(std::move(path)), progress_(std::move(progress)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) fail_write("cannot create", path_);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::tell(const char* doing) const {
  if (progress_) progress_(cat(doing, " ", path_.string()));
}

void OutputFile::write(const void* data, size_t size) {
  constexpr size_t kPiece = 16 << 20;
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    tell("writing");
    const ssize_t written = ::write(fd_, from, std::min(size, kPiece));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_write("cannot write", path_);
    from += written;
    size_ += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
}

void OutputFile::finish() {
  tell("syncing");
  if (::fsync(fd_) != 0) fail_write("cannot sync", path_);
  if (::close(std::exchange(fd_, -1)) != 0) fail_write("cannot close", path_);
}

}  // namespace lockstep::checkpoint
