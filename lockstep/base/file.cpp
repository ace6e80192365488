#include "lockstep/base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* doing, const fs::path& path) {
  const int code = errno;
  throw EnvironmentError({.code = "LS3101", .what = cat(doing, " ", path.string(), ": ", std::strerror(code))});
}

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write", path);
    content.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void require_file(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return;
  std::string hint;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (fs::is_directory(folder, ignored)) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) names.push_back(entry.path().filename().string());
    const std::string near = nearest(path.filename().string(), names);
    if (!near.empty()) hint = cat("nearest is ", (path.parent_path() / near).string());
  } else {
    hint = cat("its folder ", folder.string(), " does not exist either");
  }
  throw DataError({.code = "LS1203", .what = cat(path.string(), ": no such file"), .way_out = hint});
}

std::string read_file(const fs::path& path) {
  require_file(path);
  std::ifstream stream(path, std::ios::binary);
  std::string content;
  if (stream) {
    stream.seekg(0, std::ios::end);
    content.resize(static_cast<size_t>(std::max<std::streamoff>(0, stream.tellg())));
    stream.seekg(0);
    stream.read(content.data(), static_cast<std::streamsize>(content.size()));
  }
  if (!stream) throw DataError({.code = "LS1204", .what = cat("cannot read ", path.string())});
  return content;
}

void write_file(const fs::path& path, std::string_view content) {
  const fs::path temporary = path.string() + ".tmp-" + std::to_string(::getpid());
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) fail("cannot create", temporary);
    write_all(file.get(), content, temporary);
    if (::fsync(file.get()) != 0) fail("cannot sync", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("cannot rename to", path);
  sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void sync_directory(const fs::path& directory) {
  const Descriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) fail("cannot open", directory);
  if (::fsync(folder.get()) != 0) fail("cannot sync", directory);
}

}  // namespace lockstep
